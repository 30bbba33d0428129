//! Configuration of the data plane.

use std::net::IpAddr;
use std::path::PathBuf;

use dysco_common::rule::Rule;

use crate::attach::Attach;
use crate::xdp::Xdp;

/// Configuration with which the data plane starts.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Directory on a BPF file system for maps and links.
    pub pin_dir: PathBuf,
    /// Number of sessions that there is room for. The maps of an earlier run keep theirs.
    pub max_sessions: u32,
    /// Interfaces to attach to.
    pub interfaces: Vec<String>,
    /// The method of attaching.
    pub attach: Attach,
    /// Use of XDP for relaying.
    pub xdp: Xdp,
    /// Rules that select the sessions to track; none for all. At most 16.
    pub rules: Vec<Rule>,
    /// Source ports of the subsessions that a chain's SYN opens: the first port, and the number
    /// of ports.
    pub ports: (u16, u16),
    /// This host's addresses. The host ignores the payload of a chain's SYN that is addressed to
    /// another host.
    pub addresses: Vec<IpAddr>,
}
