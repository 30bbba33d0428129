//! A plan: all that is decided before anything runs. It can be written to a file,
//! changed by hand, and run again.

mod acts;
mod draw;
mod traffic;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

pub use acts::{Ask, Kill, Mode, Operation, Victim};
pub use draw::draw;
pub use traffic::{ProxyKind, ProxyPlan, SessionKind, SessionPlan, Side};

/// The port that servers listen on.
pub const SERVER_PORT: u16 = 9000;
/// The port that proxies listen on.
pub const PROXY_PORT: u16 = 8080;

/// All decisions of a seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The seed that it was drawn from; also of what boxes do to single packets.
    pub seed: u64,
    /// How long sessions run, in milliseconds.
    pub live_ms: u64,
    /// Hosts around one router.
    pub hosts: Vec<HostPlan>,
    /// Devices on links and paths.
    pub boxes: Vec<BoxPlan>,
    /// Proxies, at most one a host.
    pub proxies: Vec<ProxyPlan>,
    /// Sessions.
    pub sessions: Vec<SessionPlan>,
    /// Commands of operators.
    pub operations: Vec<Operation>,
    /// What is killed or cut.
    pub kills: Vec<Kill>,
}

/// A host's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Opens sessions.
    Client,
    /// Runs a proxy.
    Proxy,
    /// Accepts sessions.
    Server,
    /// Forwards, with strict connection tracking.
    Firewall,
}

/// How a host is joined to the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// A veth pair.
    Veth,
    /// A veth pair whose near end is a port of a bridge, which has the address.
    Bridge,
    /// Two veth pairs: the host sends by the second, and hears by the first.
    TwoUplinks,
    /// A pair of tun devices, without Ethernet headers.
    Tun,
    /// A veth pair behind a router that translates the host's address.
    Nat,
}

/// One host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostPlan {
    /// Its number, from which its addresses follow.
    pub number: u8,
    /// Its part.
    pub part: Part,
    /// Whether it runs `dyscod`.
    pub daemon: bool,
    /// How it is joined to the router.
    pub link: Link,
    /// What its kernel does otherwise: names and values of sysctls.
    pub sysctls: Vec<(String, String)>,
    /// The MTU of its link.
    pub mtu: u32,
}

impl HostPlan {
    /// Its name.
    pub fn name(&self) -> String {
        format!("h{}", self.number)
    }
}

/// The address of a host.
pub fn address(number: u8, v6: bool) -> IpAddr {
    own(number, v6, 1)
}

/// The address of the router on a host's link.
pub fn gateway(number: u8, v6: bool) -> IpAddr {
    own(number, v6, 254)
}

fn own(number: u8, v6: bool, last: u8) -> IpAddr {
    match v6 {
        false => Ipv4Addr::new(10, 0, number, last).into(),
        true => Ipv6Addr::new(0xfd00, number.into(), 0, 0, 0, 0, 0, last.into()).into(),
    }
}

/// Where a box stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// At the router, between two hosts, both ways.
    Path {
        /// One of them.
        from: u8,
        /// The other.
        to: u8,
    },
    /// On a host itself, before what it hears.
    Host {
        /// The host.
        host: u8,
    },
}

impl Place {
    /// Whether packets that pass one pass the other.
    pub fn is_same(self, other: Place) -> bool {
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

/// What a box does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoxKind {
    /// Answers SYNs with a reset.
    RejectByReset,
    /// Answers SYNs with an ICMP error.
    RejectByIcmp,
    /// Drops SYNs.
    DropSyns,
    /// Loses so many packets of a thousand.
    Lose {
        /// Of a thousand.
        permille: u32,
    },
    /// Carries packets of so many bytes at most, and says so.
    Narrow {
        /// Bytes.
        mtu: u32,
    },
    /// Drops what connection tracking calls invalid.
    DropInvalid,
    /// Lets in nothing but what it saw opening.
    Stateful,
    /// Answers SYNs itself, and opens the rest of the way when the client is real.
    Synproxy,
    /// Gives connections other sequence numbers.
    Renumber {
        /// Added to the numbers of the one who opened.
        up: u32,
        /// Added to the numbers of the other.
        down: u32,
        /// Whether it translates SACK blocks as well.
        sack: bool,
    },
    /// Adds to the clocks in timestamps.
    ShiftClocks {
        /// To the clock of the one who opened.
        up: u32,
        /// To the clock of the other.
        down: u32,
    },
    /// Takes the SACK option out of SYNs.
    StripSack,
    /// Takes the timestamps out of all packets.
    StripTimestamps,
    /// Takes the window scale out of SYNs.
    StripScale,
    /// Lowers the MSS of SYNs.
    ClampMss {
        /// Bytes.
        mss: u16,
    },
    /// Holds back some packets until others have passed.
    Reorder {
        /// Of a thousand.
        permille: u32,
    },
    /// Sends some packets twice.
    Duplicate {
        /// Of a thousand.
        permille: u32,
    },
    /// Holds back every packet.
    Delay {
        /// Milliseconds.
        ms: u64,
    },
}

/// One box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoxPlan {
    /// Its number, for its device and its rules.
    pub number: u8,
    /// When it begins to work, in milliseconds.
    pub from_ms: u64,
    /// Where.
    pub place: Place,
    /// What it does.
    pub kind: BoxKind,
}

impl Plan {
    /// A host of it.
    pub fn host(&self, number: u8) -> Option<&HostPlan> {
        self.hosts.iter().find(|h| h.number == number)
    }

    /// The proxy of a host.
    pub fn proxy(&self, host: u8) -> Option<&ProxyPlan> {
        self.proxies.iter().find(|p| p.host == host)
    }

    /// The same without Dysco: no daemon, no operation. With `calm`, no proxy is killed either.
    pub fn control(&self, calm: bool) -> Plan {
        let mut control = self.clone();
        control.operations.clear();
        control.hosts.iter_mut().for_each(|h| h.daemon = false);
        control.kills.retain(|k| match k.victim {
            Victim::Daemon { .. } | Victim::DaemonAt { .. } => false,
            Victim::Proxy { .. } | Victim::Host { .. } => !calm,
            Victim::Link { .. } => true,
        });
        control
    }
}
