//! Server of the local API: a unix socket, one JSON object a line. A group may read, root may
//! change.

mod call;
mod caller;
mod connection;
mod error;
mod process;
mod server;
mod stats;

pub use call::Call;
pub use caller::{Caller, Policy};
pub use error::ApiError;
pub use server::{Server, ServerConfig, serve};
pub(crate) use server::{admit, bind};
pub use stats::{ApiCounts, counts};

#[cfg(test)]
mod tests;
