//! sqlite.
