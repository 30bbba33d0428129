//! A plan: all decisions that precede a run. A plan can be written to a file, edited and run again.

mod acts;
mod draw;
mod traffic;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

pub(crate) use acts::{Ask, Kill, Mode, Operation, Victim};
pub(crate) use draw::draw;
pub(crate) use traffic::{ProxyKind, ProxyPlan, SessionKind, SessionPlan, Side};

/// Port on which servers listen.
pub(crate) const SERVER_PORT: u16 = 9000;
/// Port on which proxies listen.
pub(crate) const PROXY_PORT: u16 = 8080;

/// All decisions that follow from a seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Seed from which the plan was drawn. It also determines the effects of boxes of user space on
    /// single packets.
    pub seed: u64,
    /// Duration of the sessions, in milliseconds.
    pub live_ms: u64,
    /// Hosts around one router.
    pub hosts: Vec<HostPlan>,
    /// Devices on links and paths.
    pub boxes: Vec<BoxPlan>,
    /// Proxies, at most one per host.
    pub proxies: Vec<ProxyPlan>,
    /// Sessions.
    pub sessions: Vec<SessionPlan>,
    /// Commands of operators.
    pub operations: Vec<Operation>,
    /// Processes that are killed and links that are cut.
    pub kills: Vec<Kill>,
}

/// Role of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    /// Opens sessions.
    Client,
    /// Runs a proxy.
    Proxy,
    /// Accepts sessions.
    Server,
    /// Forwards, with strict connection tracking.
    Firewall,
}

/// Link between a host and the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Link {
    /// A veth pair.
    Veth,
    /// A veth pair whose near end is a port of a bridge. The bridge has the address.
    Bridge,
    /// Two veth pairs: the host sends by the second, and receives by the first.
    TwoUplinks,
    /// A pair of tun devices, without Ethernet headers.
    Tun,
    /// A veth pair behind a router that translates the host's address.
    Nat,
}

/// One host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostPlan {
    /// Number of the host. Its addresses follow from it.
    pub number: u8,
    /// Role of the host.
    pub part: Part,
    /// True if the host runs `dyscod`.
    pub daemon: bool,
    /// Link between the host and the router.
    pub link: Link,
    /// Names and values of sysctls that differ from the default.
    pub sysctls: Vec<(String, String)>,
    /// MTU of the host's link.
    pub mtu: u32,
}

impl HostPlan {
    /// Returns the host's name.
    pub(crate) fn name(&self) -> String {
        format!("h{}", self.number)
    }
}

/// Returns the address of a host.
pub(crate) fn address(number: u8, v6: bool) -> IpAddr {
    own(number, v6, 1)
}

/// Returns the address of the router on a host's link.
pub(crate) fn gateway(number: u8, v6: bool) -> IpAddr {
    own(number, v6, 254)
}

fn own(number: u8, v6: bool, last: u8) -> IpAddr {
    match v6 {
        false => Ipv4Addr::new(10, 0, number, last).into(),
        true => Ipv6Addr::new(0xfd00, number.into(), 0, 0, 0, 0, 0, last.into()).into(),
    }
}

/// Position of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Place {
    /// At the router, between two hosts, in both directions.
    Path {
        /// One of the two hosts.
        from: u8,
        /// The other host.
        to: u8,
    },
    /// On a host, before it receives packets.
    Host {
        /// Number of the host.
        host: u8,
    },
}

impl Place {
    /// True if packets that pass one position pass the other.
    pub(crate) fn is_same(self, other: Place) -> bool {
        match (self, other) {
            (Place::Path { from, to }, Place::Path { from: a, to: b }) => {
                (from, to) == (a, b) || (from, to) == (b, a)
            }
            (Place::Host { host }, Place::Host { host: other }) => host == other,
            (Place::Path { from, to }, Place::Host { host })
            | (Place::Host { host }, Place::Path { from, to }) => from == host || to == host,
        }
    }
}

/// Effect of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BoxKind {
    /// Answers SYNs with a reset.
    RejectByReset,
    /// Answers SYNs with an ICMP error.
    RejectByIcmp,
    /// Drops SYNs.
    DropSyns,
    /// Loses some packets. The kernel chooses them, in each run others.
    Lose {
        /// Number of packets per thousand.
        permille: u32,
    },
    /// Carries packets up to this size, and reports longer ones.
    Narrow {
        /// Maximum number of bytes.
        mtu: u32,
    },
    /// Drops packets that connection tracking classifies as invalid.
    DropInvalid,
    /// Admits only connections whose opening it has seen.
    Stateful,
    /// Answers SYNs itself, and opens the rest of the path when the client has proved to be real.
    Synproxy,
    /// Gives connections other sequence numbers.
    Renumber {
        /// Number added to the numbers of the end that opened the connection.
        up: u32,
        /// Number added to the numbers of the other end.
        down: u32,
        /// True if the box translates SACK blocks as well.
        sack: bool,
    },
    /// Adds to the clocks in timestamps.
    ShiftClocks {
        /// Number added to the clock of the end that opened the connection.
        up: u32,
        /// Number added to the clock of the other end.
        down: u32,
    },
    /// Removes the SACK option from SYNs.
    StripSack,
    /// Removes the timestamps from all packets.
    StripTimestamps,
    /// Removes the window scale option from SYNs.
    StripScale,
    /// Lowers the MSS of SYNs.
    ClampMss {
        /// Maximum segment size in bytes.
        mss: u16,
    },
    /// Holds back some packets until others have passed.
    Reorder {
        /// Number of packets per thousand.
        permille: u32,
    },
    /// Duplicates some packets.
    Duplicate {
        /// Number of packets per thousand.
        permille: u32,
    },
    /// Delays every packet.
    Delay {
        /// Delay in milliseconds.
        ms: u64,
    },
}

/// One box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BoxPlan {
    /// Number of the box, for its device and its rules.
    pub number: u8,
    /// Time at which the box begins to work, in milliseconds.
    pub from_ms: u64,
    /// Position of the box.
    pub place: Place,
    /// Effect of the box.
    pub kind: BoxKind,
}

impl Plan {
    /// True if a link of the plan may be down at this time, in milliseconds.
    pub(crate) fn cuts_link_before(&self, ms: u64) -> bool {
        let cuts = |victim: &Victim| matches!(victim, Victim::Host { .. } | Victim::Link { .. });
        self.kills
            .iter()
            .any(|kill| kill.at_ms <= ms && cuts(&kill.victim))
    }

    /// Returns a host of the plan.
    pub(crate) fn host(&self, number: u8) -> Option<&HostPlan> {
        self.hosts.iter().find(|h| h.number == number)
    }

    /// Returns the proxy of a host.
    pub(crate) fn proxy(&self, host: u8) -> Option<&ProxyPlan> {
        self.proxies.iter().find(|p| p.host == host)
    }

    /// Returns the same plan without Dysco: no daemon, no operation. With `undisturbed`, no proxy
    /// is killed either.
    pub(crate) fn control(&self, undisturbed: bool) -> Plan {
        let mut control = self.clone();
        control.operations.clear();
        control.hosts.iter_mut().for_each(|h| h.daemon = false);
        control.kills.retain(|k| match k.victim {
            Victim::Daemon { .. } | Victim::DaemonAt { .. } | Victim::Handlers { .. } => false,
            Victim::Proxy { .. } | Victim::Host { .. } => !undisturbed,
            Victim::Link { .. } => true,
        });
        control
    }
}
