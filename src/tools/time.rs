//! time.
