//! Errors that ICMP and ICMPv6 report about a session's segments: too big, unreachable, time
//! exceeded. Each error quotes the headers of the segment. After a change the network uses another
//! five-tuple and other numbers than the session's end. An error is therefore translated before it
//! is delivered.
//!
//! A [`Message`] holds the bytes of such a packet in network byte order, from the IP header on. Its
//! arguments and results are in host order, except ports and addresses.

mod fate;
mod message;

pub use fate::{Fate, Quoted, about_received, about_relayed, about_sent};
pub use message::{Message, QUOTED, READ};
