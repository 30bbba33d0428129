//! Requests of operators in a plan, and kills.

use serde::{Deserialize, Serialize};

/// Mode of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// The daemon chooses.
    Auto,
    /// From host to host, without the proxy's host.
    Bypass,
    /// Through the kernel of the proxy's host.
    Local,
    /// Through the kernel of the proxy's host for requests; replies go straight from the server's
    /// host.
    Return,
}

impl Mode {
    /// Returns the word that `dyscoctl` uses.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::Bypass => "bypass",
            Mode::Local => "local",
            Mode::Return => "return",
        }
    }
}

/// A request of an operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    /// The proxy leaves all its sessions.
    Remove {
        /// Mode of the removal.
        mode: Mode,
        /// True if the operator names the listener, and thereby vouches for it.
        listen: bool,
        /// True if the command only reports, and changes nothing.
        dry_run: bool,
    },
    /// The proxy leaves all its sessions as they become removable.
    Drain,
    /// A host enters the chains of all sessions that the asked host has opened.
    Insert {
        /// Host that enters.
        host: u8,
    },
    /// All sessions that the asked host has opened get this chain.
    Reconfigure {
        /// Hosts of the chain.
        chain: Vec<u8>,
    },
    /// A host replaces another host.
    Replace {
        /// Host that leaves.
        old: u8,
        /// Host that enters.
        new: u8,
        /// True if the firewall's state moves to the new host.
        state: bool,
    },
    /// Services come into all sessions that have an end on the asked host.
    Put {
        /// The services, as on the command line.
        services: Vec<String>,
    },
    /// Services leave these sessions.
    Take {
        /// Those that leave, as on the command line. An empty list means all.
        services: Vec<String>,
    },
    /// Listings, which change nothing.
    Look,
}

/// One command of an operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Operation {
    /// Time of the command, in milliseconds.
    pub at_ms: u64,
    /// Number of the host that runs the command.
    pub host: u8,
    /// The request.
    pub ask: Ask,
    /// Milliseconds after which the operator's own process is killed, if it is killed.
    pub cancel_ms: Option<u64>,
}

/// A process that is killed or a link that is cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Victim {
    /// The daemon of a host. It is started again.
    Daemon {
        /// Number of the host.
        host: u8,
        /// Milliseconds until the restart.
        back_ms: u64,
    },
    /// The daemon of a host, which fails at this step of a change if it reaches the step. If it
    /// dies there, it is started again.
    DaemonAt {
        /// Number of the host.
        host: u8,
        /// A word of `DYSCOD_FAULTS`: `die:STEP` or `drop:MESSAGE`.
        step: String,
        /// Milliseconds until the restart.
        back_ms: u64,
    },
    /// The proxy of a host, permanently.
    Proxy {
        /// Number of the host.
        host: u8,
    },
    /// The whole host of a proxy, permanently: its link, its daemon and its proxy.
    Host {
        /// Number of the host.
        host: u8,
    },
    /// The processes that run the services of a host.
    Handlers {
        /// Number of the host.
        host: u8,
    },
    /// The link of a host, which goes down and comes up again.
    Link {
        /// Number of the host.
        host: u8,
        /// Milliseconds until the link is up again.
        back_ms: u64,
    },
}

/// One kill.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kill {
    /// Time of the kill, in milliseconds.
    pub at_ms: u64,
    /// Victim of the kill.
    pub victim: Victim,
}
