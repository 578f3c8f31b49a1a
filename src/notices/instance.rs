//! Whether another instance uses the agent's key (design §5, "Age").
//!
//! What the agent sends is part of its history before it leaves, in the same write as the signed reply. So a message of its
//! own that comes in and is not there was sent by somebody else. Only messages count: soul, skills and lists are also
//! changed by `didactyl publish` and by the owner's other clients, which is how they are meant to be changed.

use std::time::Duration;

use nostr::prelude::PublicKey;

use super::{Fact, raise};
use crate::app::App;
use crate::error::Error;
use crate::history::StoredMessage;
use crate::sweep::ledger;

/// An older message says nothing about now, and the history need not reach further back.
const RECENT: Duration = Duration::from_secs(24 * 60 * 60);

/// So long a process of another store may still have been at work when this one began.
const HANDOVER: Duration = Duration::from_secs(15 * 60);

/// Looks at a message of the agent's own to `peer` that came in, before it is written into the history: where the history
/// does not have it and it must be another instance's, the fact is raised. Were it written first, a process that ends
/// between the two would hide it for good.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable.
pub(crate) async fn suspect(app: &App, peer: &PublicKey, message: &StoredMessage) -> Result<(), Error> {
    // In standby another instance is what one expects.
    if app.config.standby || message.created_at + RECENT < app.clock.now() {
        return Ok(());
    }
    if app.store.read(&[message.key(peer)]).await?.iter().any(Option::is_some) {
        return Ok(());
    }
    match ledger::started_at(app).await? {
        Some(start) if message.created_at > start + HANDOVER => {
            raise(app, &Fact::OtherInstance(message.created_at)).await
        }
        // What was written before the agent's start is no riddle; nor is anything before its first sweep ended.
        _ => Ok(()),
    }
}
