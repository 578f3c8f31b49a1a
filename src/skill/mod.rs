//! skill.
