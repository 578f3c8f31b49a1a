//! agent_identity.
