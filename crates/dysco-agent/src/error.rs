//! Failures of the data plane.

use std::io;
use std::path::PathBuf;

/// A failure of the data plane: what was done, to what, and why it failed.
#[derive(thiserror::Error, Debug)]
pub enum AgentError {
    /// The session table is full.
    #[error("failed to make an entry: the session table is full; raise max_sessions")]
    NoRoom,
    /// The pin directory cannot be used.
    #[error(
        "cannot use {path} for pinned maps: {source}; mount a BPF file system there: mount -t bpf bpf /sys/fs/bpf"
    )]
    PinDirectory {
        /// The directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The data plane of a build with other maps is still pinned.
    #[error(
        "another version's data plane is pinned in {path}, and its programs still carry sessions; \
         when those have ended, take it away: rm -r {path} (before Linux 6.6 also, for each \
         interface: tc qdisc del dev INTERFACE clsact)"
    )]
    Layout {
        /// Its directory.
        path: PathBuf,
    },
    /// Another daemon uses the pinned maps.
    #[error(
        "another dyscod runs{} with the maps pinned in {path}: stop that one first, or give this one a pin_dir of its own under [data_plane]",
        process(.by)
    )]
    Taken {
        /// Their directory.
        path: PathBuf,
        /// The other daemon's process id, if it is visible from here.
        by: Option<u32>,
    },
    /// The kernel refused the programs.
    #[error(
        "the kernel refused the eBPF programs: {0}; dyscod needs Linux 6.1 or later, CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    )]
    Load(#[from] aya::EbpfError),
    /// The kernel refused a program.
    #[error("the kernel refused the eBPF program {name}: {source}")]
    Program {
        /// Its name.
        name: &'static str,
        /// The reason, with the verifier's log.
        source: Box<aya::programs::ProgramError>,
    },
    /// The object lacks a part: its build does not fit this daemon.
    #[error("the eBPF object has no {0}: it was built for another version")]
    Missing(&'static str),
    /// The programs cannot be attached to an interface.
    #[error("cannot attach to interface {interface}: {source}")]
    Attach {
        /// Its name.
        interface: String,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A packet would be changed on two of the interfaces.
    #[error(
        "cannot attach to interface {upper}, which is a {kind} over {lower}: the programs are on one of the two, and would change each packet again on the other; list one of them in [host] interfaces"
    )]
    Stacked {
        /// The upper interface.
        upper: String,
        /// The kind of the upper interface.
        kind: String,
        /// The lower interface.
        lower: String,
    },
    /// An interface that is to relay by XDP cannot.
    #[error(
        "cannot relay by XDP on interface {interface}: {source}; set xdp = \"auto\" or \"off\" under [data_plane]"
    )]
    Xdp {
        /// Its name.
        interface: String,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A map operation failed.
    #[error("cannot {operation} in map {map}: {source}")]
    Map {
        /// The operation that failed.
        operation: &'static str,
        /// The map.
        map: &'static str,
        /// The reason.
        source: aya::maps::MapError,
    },
    /// The session array cannot be mapped into memory.
    #[error("cannot map the session array into memory: {0}")]
    Memory(#[source] nix::errno::Errno),
    /// A route cannot be looked up.
    #[error("cannot look up the route to {to}: {source}")]
    Route {
        /// The destination.
        to: std::net::IpAddr,
        /// The reason.
        source: Box<rtnetlink::Error>,
    },
    /// The kernel would drop packets that arrive by this interface under this address, because
    /// its route to the address uses another interface (`rp_filter`).
    #[error(
        "what comes from {0} by the new path's interface is dropped: the way to it is by another, and rp_filter is 1"
    )]
    ReversePath(std::net::IpAddr),
    /// There is no route.
    #[error("there is no route to {0}")]
    NoRoute(std::net::IpAddr),
    /// A system call on a socket failed.
    #[error("cannot {operation}: {source}")]
    System {
        /// The operation that failed.
        operation: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The kernel does not show its sockets.
    #[error(
        "cannot see the sockets of sessions that were there first, by the kernel's description of its types (/sys/kernel/btf/vmlinux): {0}; the kernel needs CONFIG_DEBUG_INFO_BTF and Linux 6.1 or later, or set adopt = false under [data_plane]"
    )]
    NoSockets(String),
    /// The five-tuple of a new path is in use.
    #[error("the five-tuple {0:?} is in use")]
    PathInUse(dysco_common::FlowKey),
    /// The path has no five-tuple: no SYN has come by it, or the path is gone.
    #[error("the path has no five-tuple: it is not open")]
    PathNotOpen,
}

fn process(by: &Option<u32>) -> String {
    by.map(|pid| format!(" (process {pid})"))
        .unwrap_or_default()
}
