//! nostr_admin_profile.
