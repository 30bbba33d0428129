//! The services that come with Dysco.

mod compress;
mod count;
mod crypt;
mod null;
mod socks;

pub use compress::Compress;
pub use count::Count;
pub use crypt::{Crypt, Key};
pub use null::Null;
pub use socks::Socks;
