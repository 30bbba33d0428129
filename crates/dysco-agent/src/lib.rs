//! The data plane as seen from user space: loading, attaching, pinning, adoption, the session
//! table and events. This crate knows nothing of peers or of the protocol.

mod adopt;
mod agent;
mod attach;
mod btf;
mod chain;
mod delta;
mod detour;
mod error;
mod events;
mod filters;
mod interfaces;
mod leftover;
pub mod links;
mod load;
mod mapped;
mod memory;
mod need;
mod netlink;
mod packet_services;
mod qdiscs;
mod receives;
mod relay;
mod route;
mod second_path;
mod sockets;
mod steer;
mod xdp;

pub use adopt::Adoption;
pub use agent::{Agent, AgentConfig, NewPath};
pub use attach::{Attach, Attached};
pub use detour::{DetourLink, Numbers, Start};
pub use dysco_common as common;
pub use dysco_common::view::Need;
pub use error::AgentError;
pub use events::{Events, Happened};
pub use interfaces::InterfaceChange;
pub use leftover::{Alone, Leftover};
pub use load::{LAYOUT, hints, refuse_others, try_programs};
pub use need::need_of;
pub use receives::{Receives, try_receives};
pub use relay::Joint;
pub use route::{Neighbour, NeighbourFlags, NeighbourState, Route, Routes};
pub use sockets::try_sockets;
pub use xdp::Xdp;

/// The eBPF programs as built for this version.
#[repr(C, align(8))]
struct Aligned<B: ?Sized>(B);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/dysco")));
static HEADERLESS: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(
    env!("OUT_DIR"),
    "/dysco_headerless"
)));

/// Returns the object file with the eBPF programs, for tests that run them directly.
pub fn object() -> &'static [u8] {
    &OBJECT.0
}

/// Returns the object file with the programs for interfaces whose packets begin with the IP header.
pub(crate) fn headerless_object() -> &'static [u8] {
    &HEADERLESS.0
}
