//! The chains of sessions that live, explored: who decides and the left and right
//! anchors (`dysco_proto::{head,lead,tail}`), hosts of chains among them, and hosts that
//! sessions only pass, on a data plane of which only the paths are kept: which one an
//! anchor takes on either side, which ones it hears, and which hosts know them. Either path may carry any segment, so that no byte can be
//! lost but by one that is sent where nobody hears it.

pub mod ask;
pub mod calm;
pub mod carrying;
pub mod check;
pub mod config;
pub mod engine;
pub mod entry;
pub mod host;
pub mod lines;
pub mod model;
pub mod seed;
pub mod seeded;
pub mod state;
pub mod stream;
pub mod transit;
pub mod world;
