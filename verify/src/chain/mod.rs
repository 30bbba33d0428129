//! Exploration of the chains of live sessions: the deciding host and the left and right anchors
//! (`dysco_proto::{head,lead,tail}`), hosts of chains among them, and hosts that sessions only
//! pass. The data plane models only the paths: the path that an anchor takes on either side, the
//! paths that it hears, and the hosts that know them. Either path may carry any segment, so that a
//! byte is lost only if it is sent where no host hears it.

mod ask;
mod carrying;
mod check;
mod commands;
pub mod config;
mod configuration;
mod engine;
mod entry;
mod fate;
mod host;
mod lines;
pub mod model;
mod passed;
mod place;
mod quiesce;
mod seed;
pub mod seeded;
mod several_requests;
mod state;
mod stream;
mod streams;
mod transit;
mod without_bytes;
mod world;
