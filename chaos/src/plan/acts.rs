//! What operators ask for in a plan, and what is killed.

use serde::{Deserialize, Serialize};

/// By which way a proxy is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The daemon's choice.
    Auto,
    /// From host to host.
    Bypass,
    /// Through the kernel of the proxy's host.
    Local,
    /// Replies straight from the server's host.
    Return,
}

impl Mode {
    /// As `dyscoctl` has it.
    pub fn word(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::Bypass => "bypass",
            Mode::Local => "local",
            Mode::Return => "return",
        }
    }
}

/// What an operator asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// The proxy leaves all its sessions.
    Remove {
        /// By which way.
        mode: Mode,
        /// Whether the operator names the listener, and so gives a word for it.
        listen: bool,
        /// Only told, not done.
        dry_run: bool,
    },
    /// The proxy leaves all its sessions as they become removable.
    Drain,
    /// A host comes into the chains of all sessions that the host asked has opened.
    Insert {
        /// The host that comes.
        host: u8,
    },
    /// All sessions that the host asked has opened get this chain.
    Reconfigure {
        /// The hosts.
        chain: Vec<u8>,
    },
    /// A host takes another's place.
    Replace {
        /// The one that leaves.
        old: u8,
        /// The one that comes.
        new: u8,
        /// Whether the firewall's state goes along.
        state: bool,
    },
    /// Listings, which change nothing.
    Look,
}

/// One command of an operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// When.
    pub at_ms: u64,
    /// On which host.
    pub host: u8,
    /// What.
    pub ask: Ask,
    /// The operator's own process is killed so much later.
    pub cancel_ms: Option<u64>,
}

/// What is killed or cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Victim {
    /// The daemon of a host; it is started again.
    Daemon {
        /// The host.
        host: u8,
        /// So much later.
        back_ms: u64,
    },
    /// The daemon of a host fails at this step of a change, if it comes to it; where it dies,
    /// it is started again.
    DaemonAt {
        /// The host.
        host: u8,
        /// A word of `DYSCOD_FAULTS`: `die:STEP` or `drop:MESSAGE`.
        step: String,
        /// So much later.
        back_ms: u64,
    },
    /// The proxy of a host, for good.
    Proxy {
        /// The host.
        host: u8,
    },
    /// The whole host of a proxy, for good: its link, its daemon and its proxy.
    Host {
        /// The host.
        host: u8,
    },
    /// The link of a host goes down, and up again.
    Link {
        /// The host.
        host: u8,
        /// So much later.
        back_ms: u64,
    },
}

/// One kill.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kill {
    /// When.
    pub at_ms: u64,
    /// What.
    pub victim: Victim,
}
