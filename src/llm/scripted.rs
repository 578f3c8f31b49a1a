//! scripted.
