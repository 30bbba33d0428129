//! The session protocol in a simulated world: see `world.rs`.

#![allow(clippy::unwrap_used, reason = "a panic in a test is the report")]

mod chain_updates;
mod checks;
mod plane;
mod world;

mod authority;
mod closing;
mod codec;
mod contention;
mod dies;
mod faults;
mod later;
mod local;
mod numbered;
mod odd;
mod path_liveness;
mod plan;
mod resized;
mod restarted;
mod returns;
mod segments;
mod timers;
