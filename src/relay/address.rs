//! address.
