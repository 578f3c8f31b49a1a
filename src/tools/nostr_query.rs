//! nostr_query.
