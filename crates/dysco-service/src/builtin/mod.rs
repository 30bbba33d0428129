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

pub use compress::Compress;
pub use count::Count;
pub use crypt::{Crypt, Key};
pub use latency::Latency;
pub use null::Null;
pub use shape::{Limits, Shape, rates};
pub use socks::Socks;
pub use split::Split;
