//! Definitions for both sides of the kernel boundary: flow keys, session entries, wire formats of
//! the data plane, and the pure translation of a TCP header.
//!
//! The crate has no maps, sockets or async code. All types are plain data with a fixed layout
//! (`repr(C)`), so that an eBPF program and user space read the same bytes.
#![no_std]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]

pub mod adopt;
pub mod chain;
pub mod checksum;
pub mod counter;
pub mod delta;
pub mod detour;
#[cfg(not(target_arch = "bpf"))]
pub mod element;
pub mod event;
pub mod flow;
pub mod fresh;
pub mod icmp;
pub mod mark;
pub mod packet_services;
pub mod policy;
pub mod probe;
pub mod rule;
pub mod seq;
pub mod session;
pub mod shim;
pub mod short;
pub mod siphash;
pub mod tcp;
pub mod transit;
pub mod translate;
pub mod two_paths;
#[cfg(not(target_arch = "bpf"))]
pub mod view;
pub mod wire;

pub use counter::Counter;
pub use delta::Delta;
#[cfg(not(target_arch = "bpf"))]
pub use element::Element;
pub use event::{Event, EventKind};
pub use flow::{Addr, FlowKey, FlowRef, Path, ShortKey};
pub use session::{Offer, Session, State, Translation};
#[cfg(not(target_arch = "bpf"))]
pub use view::View;
