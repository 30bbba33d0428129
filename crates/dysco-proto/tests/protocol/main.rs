//! The session protocol in a simulated world: see `world.rs`.

#![allow(clippy::unwrap_used, reason = "a panic in a test is the report")]

mod checks;
mod plane;
mod rechain;
mod world;

mod authority;
mod closing;
mod codec;
mod contention;
mod dies;
mod doubt;
mod faults;
mod later;
mod local;
mod numbered;
mod odd;
mod plan;
mod resized;
mod restarted;
mod returns;
mod segments;
mod timers;
