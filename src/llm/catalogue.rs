//! catalogue.
