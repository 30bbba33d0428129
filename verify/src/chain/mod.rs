//! Exploration of the chains of live sessions: the deciding host and the left and right anchors
//! (`dysco_proto::{head,lead,tail}`), hosts of chains among them, and hosts that sessions only
//! pass. The data plane models only the paths: the path that an anchor takes on either side, the
//! paths that it hears, and the hosts that know them. Either path may carry any segment, so that a
//! byte is lost only if it is sent where no host hears it.

pub mod ask;
pub mod carrying;
pub mod check;
pub mod commands;
pub mod config;
pub mod configuration;
pub mod engine;
pub mod entry;
pub mod fate;
pub mod host;
pub mod lines;
pub mod model;
pub mod passed;
pub mod place;
pub mod quiesce;
pub mod seed;
pub mod seeded;
pub mod several_requests;
pub mod state;
pub mod stream;
pub mod streams;
pub mod transit;
pub mod without_bytes;
pub mod world;
