//! Services that come into a session and leave it (`engine/services` of `dyscod`), with the shipped
//! decisions of `dysco_common::detour` about each packet.
//!
//! A session has two ends. In a configuration with services at one end, the host of the first end
//! has a handler with two sockets, and the other end's host runs nothing. In a configuration with
//! services at both ends, each host has a handler with one socket, the handlers have a connection
//! to each other, and the daemons exchange the messages of `dysco_proto::pairs`.
//!
//! These modules repeat code of the daemon and of the programs that cannot run without them:
//! [`alone`] follows `engine/services/progress.rs`; [`pair`] follows
//! `engine/services/pair/{invite,message,progress}.rs`; [`record`] follows
//! `dysco-agent/src/detour/memory.rs`; [`packets`] follows `dysco-ebpf/src/detour.rs`.

mod actions;
mod alone;
pub mod config;
mod daemon;
mod fate;
mod handler;
pub mod model;
mod network;
mod packets;
mod pair;
mod quiesce;
mod record;
mod seed;
mod tcp;
mod tunnel;
mod world;
