//! `dyscod` and `dyscoctl`: the session protocol as a sans-IO state machine,
//! the control channel between daemons, the proxy's side of a removal, the
//! local API and the command line. Knows nothing of packet bytes.

pub mod api;
pub mod cli;
pub mod engine;
mod notify;
