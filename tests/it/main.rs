//! The one integration test binary: the real handler, relays and models on loopback, every store.

// What the modules share is `pub` inside one binary, which nobody outside can reach.
#![allow(unreachable_pub)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test that cannot go on fails; clippy.toml exempts only the test functions, not their helpers"
)]

mod agent;
mod aws;
mod aws_cases;
mod bridge;
mod commands;
mod connections;
mod context;
mod context_debug;
mod conversation;
mod crash;
mod cron;
mod delivery;
mod dm;
mod dm_cases;
mod documents;
mod doors;
mod fake_relay;
mod fallback;
mod faults;
mod foreign_model;
mod ground;
mod hostile;
mod instance;
mod interop;
mod listen;
mod measure;
mod model_cases;
mod notices;
mod once;
mod outage;
mod outbox;
mod process;
mod providers;
mod publish;
mod relay;
mod relay_cases;
mod resume;
mod retry;
mod round_trips;
mod runtime_api;
mod samples;
mod schedules;
mod sea;
mod senders;
mod serve;
mod skills;
mod slices;
mod standby;
mod store;
mod tick;
mod tokens;
mod tool_loop;
mod wire;
