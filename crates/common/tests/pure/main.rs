//! The pure part of the data plane: tables of cases, and properties that hold
//! for all of them.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod adopt;
mod chain;
mod checksum;
mod delta;
mod element;
mod fresh;
mod header;
mod hint;
mod icmp;
mod probe;
mod reference;
mod transit;
mod translate;
mod two_paths;
mod wire;
