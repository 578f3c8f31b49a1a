//! Opening a connection: name, address check, TCP, TLS and WebSocket, all in one time.
//!
//! What may be dialled at all is told by `address`; what then happens on the connection is left to `websocket`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nostr::prelude::{Host, Keys, Url};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{Connector, client_async_tls_with_config};

use super::address::{is_public, is_public_name};
use super::frame::words;
use super::pool::Limits;
use super::websocket::Connection;
use super::{RelayError, Target, Trust};
use crate::https;

/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 4;

/// Bytes read from a socket at once; the library's default is allocated per connection and eight times as large.
const READ_BUFFER_BYTES: usize = 16 * 1024;

/// What all connections share.
pub(crate) struct Dialer {
    keys: Option<Keys>,
    limits: Limits,
    tls: Result<Connector, rustls::Error>,
    /// Relays of our own that are waited for before it is believed that they have nothing.
    challengers: Mutex<HashMap<Target, Challenger>>,
}

/// Whether a relay sends a challenge (NIP-42). Of those that are not known to, it is not expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Challenger {
    /// Nobody waited for one yet.
    Possible,
    /// It sent one.
    Known,
}

impl Dialer {
    /// A dialer that authenticates as `keys`, if there are any, where a relay of our own asks.
    pub(crate) fn new(keys: Option<Keys>, limits: Limits) -> Self {
        Self {
            keys,
            limits,
            tls: https::tls().map(|config| Connector::Rustls(Arc::new(config))),
            challengers: Mutex::default(),
        }
    }

    /// The relays whose challenge is waited for.
    pub(crate) fn challengers(&self) -> MutexGuard<'_, HashMap<Target, Challenger>> {
        self.challengers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the agent signs with.
    pub(crate) fn keys(&self) -> Option<&Keys> {
        self.keys.as_ref()
    }

    /// The limits it keeps.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Opens a connection to `target`.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        target: &Target,
        until: Instant,
    ) -> Result<Connection, RelayError> {
        let until = until.min(Instant::now() + self.limits.connect_timeout);
        timeout_at(until, async {
            let stream = tcp(&resolve(target).await?, until).await?;
            let config = WebSocketConfig::default()
                .read_buffer_size(READ_BUFFER_BYTES)
                .max_message_size(Some(self.limits.max_frame_bytes))
                .max_frame_size(Some(self.limits.max_frame_bytes));
            let tls = self.tls.clone().map_err(no_connection)?;
            let url = target.url.as_str();
            let (socket, _) = client_async_tls_with_config(url, stream, Some(config), Some(tls))
                .await
                .map_err(no_connection)?;
            Ok(Connection::new(Arc::clone(self), target.clone(), socket))
        })
        .await
        .unwrap_or(Err(RelayError::Timeout))
    }
}

fn no_connection(error: impl std::fmt::Display) -> RelayError {
    RelayError::Connect(words(&error.to_string()))
}

/// The addresses that may be dialled for `target`. They are connected to as they stand: a name that resolved to a
/// public address here cannot resolve to a private one a moment later.
async fn resolve(target: &Target) -> Result<Vec<SocketAddr>, RelayError> {
    let url: &Url = (&target.url).into();
    let port = url.port_or_known_default().unwrap_or(443);
    let foreign = target.trust == Trust::Foreign;
    let mut addresses = match url.host() {
        Some(Host::Ipv4(ip)) => vec![SocketAddr::new(ip.into(), port)],
        Some(Host::Ipv6(ip)) => vec![SocketAddr::new(ip.into(), port)],
        Some(Host::Domain(name)) if foreign && !is_public_name(name) => {
            return Err(RelayError::Refused("the name is one of a private network".into()));
        }
        Some(Host::Domain(name)) => {
            tokio::net::lookup_host((name, port)).await.map_err(no_connection)?.collect()
        }
        None => return Err(RelayError::Refused("the URL has no host".into())),
    };
    if foreign {
        addresses.retain(|address| is_public(address.ip()));
        if addresses.is_empty() {
            return Err(RelayError::Refused("the host has no public address".into()));
        }
    }
    // A function outside a VPC has no IPv6.
    addresses.sort_by_key(SocketAddr::is_ipv6);
    addresses.truncate(MAX_ADDRESSES);
    Ok(addresses)
}

async fn tcp(addresses: &[SocketAddr], until: Instant) -> Result<TcpStream, RelayError> {
    let mut failure = RelayError::Connect("the name has no address".into());
    for address in addresses {
        // Half of what is left, so that an address that swallows packets leaves time for the next one.
        let left = until.saturating_duration_since(Instant::now());
        let share = if Some(address) == addresses.last() { left } else { left / 2 };
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Frames are small and each waits for an answer. Without it they are only slower.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => failure = no_connection(error),
            Err(_) => failure = RelayError::Timeout,
        }
    }
    Err(failure)
}
