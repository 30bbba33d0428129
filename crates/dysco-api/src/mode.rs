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
    /// Bypass where the hosts on both sides run dyscod, local otherwise.
    #[default]
    Auto,
    /// The hosts on both sides take its place: packets pass it by.
    Bypass,
    /// Its own host's kernel takes its place for requests, and the server's host
    /// sends replies straight to the client. Only by this word: a firewall beside the
    /// proxy may drop acknowledgements of replies that it has not seen.
    Return,
    /// Its own host's kernel takes its place.
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
