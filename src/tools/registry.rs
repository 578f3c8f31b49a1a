//! registry.
