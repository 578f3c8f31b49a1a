//! context.
