//! The session protocol in a pretended world: see `world.rs`.

mod plane;
mod world;

mod authority;
mod closing;
mod codec;
mod contention;
mod faults;
mod plan;
