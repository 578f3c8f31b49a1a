//! payload.
