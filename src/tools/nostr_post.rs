//! nostr_post.
