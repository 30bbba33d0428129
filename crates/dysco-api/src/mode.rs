//! The ways by which a proxy leaves a session.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The way by which a proxy leaves.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// `bypass` if the hosts on both sides run dyscod, `local` otherwise.
    #[default]
    Auto,
    /// Straight between the hosts on both sides.
    Bypass,
    /// The kernel of the proxy's host relays requests, and replies go straight to the
    /// client. `auto` never selects it: a firewall beside the proxy may drop
    /// acknowledgements of replies that it has not seen.
    Return,
    /// The kernel of the proxy's host relays.
    Local,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Auto => "auto",
            Mode::Bypass => "bypass",
            Mode::Return => "return",
            Mode::Local => "local",
        })
    }
}
