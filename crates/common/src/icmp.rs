//! Errors that ICMP and ICMPv6 report about a session's segments: too big, unreachable,
//! time exceeded. Each quotes the headers of the segment that it is about. After a change
//! the network knows the session by another five-tuple and by other numbers than its end
//! does, so an error is translated before it is delivered.
//!
//! A [`Message`] holds the bytes of such a packet in network byte order, from the IP
//! header on. What goes in and out of it is in host order, except ports and addresses.

mod fate;
mod message;

pub use fate::{Fate, Quoted, about_received, about_relayed, about_sent};
pub use message::{Message, QUOTED, READ};
