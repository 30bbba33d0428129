//! The services that come with Dysco.

mod compress;
mod count;
mod crypt;
mod latency;
mod null;
mod records;
mod shape;
mod socks;
mod split;

use dysco_explain::Cause;

pub use compress::Compress;
pub use count::Count;
pub use crypt::{Crypt, Key};
pub use latency::Latency;
pub use null::Null;
pub use shape::{Limits, Shape, rate_missing, rates};
pub use socks::Socks;
pub use split::Split;

/// Returns the reason for which a service refuses a call of an operation that it does not have.
/// `known` are those that it has, in the words of the hint.
fn no_operation(service: &str, question: &[u8], known: &str) -> Cause {
    let question = String::from_utf8_lossy(question);
    let cause = Cause::new(format!("{service} has no operation '{question}'"));
    cause.hint(format!("use {known}"))
}
