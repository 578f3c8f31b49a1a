//! Didactyl: a sovereign AI agent on Nostr that runs as one stateless Lambda function.

pub mod chat;
pub mod clock;
pub mod context;
pub mod error;
pub mod events;
pub mod kinds;
pub mod llm;
pub mod queue;
pub mod relay;
pub mod run;
pub mod skill;
pub mod state;
pub mod store;
pub mod tools;
pub mod trigger;
