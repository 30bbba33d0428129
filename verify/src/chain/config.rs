//! Configurations to explore: the requested chains and the possible faults.

use super::carrying::carrying;
use super::without_bytes::without_bytes;

pub use super::configuration::{Ask, Configuration, Faults, LEFT, RIGHT, Seen};

/// Returns all configurations. Each is explored to its last state.
pub fn all() -> Vec<Configuration> {
    let mut all = without_bytes();
    all.extend(carrying());
    all
}
