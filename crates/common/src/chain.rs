//! The payload that the SYN of a chain's session carries from one host to the next: the session,
//! the subsession of the SYN, the rest of the chain, and a proof.
//!
//! The payload follows any data of the SYN's own (TCP Fast Open). It always has the same length, so
//! that a program finds and checks it with fixed offsets.

mod element;
mod hop;
mod payload;

pub use element::{
    Chain, ElementKind, Given, MAX_CHAIN, Token, WireElement, numbered, path_number,
};
pub use hop::{Hop, Pending, Shared, ports};
pub use payload::{MAGIC, PAYLOAD, PROVEN, Payload, Unfit, VERSION};
