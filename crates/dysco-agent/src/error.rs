//! Failures of the data plane.

use std::io;
use std::path::PathBuf;

use dysco_common::detour::MAX_DETOURS;
use dysco_common::packet_services::MAX_PACKET_SERVICES;
use dysco_explain::{Explain, Explanation, display_explained};

/// An error of any library.
pub(crate) type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// A failure of the data plane: what was done, to what, and why it failed.
#[derive(thiserror::Error, Debug)]
pub enum AgentError {
    /// The session table is full.
    NoRoom,
    /// As many sessions as possible have services.
    NoDetour,
    /// As many sessions as possible have services of the packet plane.
    NoPacketServices,
    /// The pin directory cannot be used.
    PinDirectory {
        /// The directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The data plane of a build with other maps is still pinned.
    Layout {
        /// Its directory.
        path: PathBuf,
    },
    /// Another daemon uses the pinned maps.
    Taken {
        /// Their directory.
        path: PathBuf,
        /// The other daemon's process id, if it is visible from here.
        by: Option<u32>,
    },
    /// The kernel refused the programs.
    Load(#[from] aya::EbpfError),
    /// The kernel refused a program.
    Program {
        /// Its name.
        name: &'static str,
        /// The reason, with the verifier's log.
        source: Box<aya::programs::ProgramError>,
    },
    /// The object lacks a part: its build does not fit this daemon.
    Missing(&'static str),
    /// The programs cannot be attached to an interface.
    Attach {
        /// Its name.
        interface: String,
        /// The reason.
        source: AnyError,
    },
    /// A packet would be changed on two of the interfaces.
    Stacked {
        /// The upper interface.
        upper: String,
        /// The kind of the upper interface.
        kind: String,
        /// The lower interface.
        lower: String,
    },
    /// An interface that is to relay by XDP cannot.
    Xdp {
        /// Its name.
        interface: String,
        /// The reason.
        source: AnyError,
    },
    /// A map operation failed.
    Map {
        /// The operation that failed.
        operation: &'static str,
        /// The map.
        map: &'static str,
        /// The reason.
        source: aya::maps::MapError,
    },
    /// The session array cannot be mapped into memory.
    Memory(#[source] nix::errno::Errno),
    /// A route cannot be looked up.
    Route {
        /// The destination.
        to: std::net::IpAddr,
        /// The reason.
        source: Box<rtnetlink::Error>,
    },
    /// The kernel would drop packets that arrive by this interface under this address, because
    /// its route to the address uses another interface (`rp_filter`).
    ReversePath(std::net::IpAddr),
    /// There is no route.
    NoRoute(std::net::IpAddr),
    /// A system call on a socket failed.
    System {
        /// The operation that failed.
        operation: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The kernel does not show its sockets.
    NoSockets(String),
    /// The five-tuple of a new path is in use.
    PathInUse(dysco_common::FlowKey),
    /// The path has no five-tuple: no SYN has come by it, or the path is gone.
    PathNotOpen,
}

display_explained!(AgentError);

/// Returns an error with the errors below it, which some of them do not print.
fn whole(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let below = std::iter::successors(error.source(), |error| error.source());
    for error in below.map(ToString::to_string) {
        if !text.contains(&error) {
            text = format!("{text}: {error}");
        }
    }
    text
}

impl Explain for AgentError {
    #[expect(
        clippy::too_many_lines,
        reason = "a table, with an arm for each variant"
    )]
    fn explain(&self) -> Explanation {
        match self {
            AgentError::NoDetour => Explanation::new(
                "lead the session through its services",
                format!("{MAX_DETOURS} sessions of this host have services, and no more can"),
            )
            .hint("take services out of other sessions"),
            AgentError::NoPacketServices => Explanation::new(
                "serve the packets of the session",
                format!("{MAX_PACKET_SERVICES} sessions of this host have such services, and no more can"),
            )
            .hint("take services out of other sessions"),
            AgentError::NoRoom => {
                Explanation::new("make an entry", "the session table is full")
                    .hint("raise max_sessions")
            }
            AgentError::PinDirectory { path, source } => {
                Explanation::new(format!("use {} for pinned maps", path.display()), source)
                    .hint("mount a BPF file system there: mount -t bpf bpf /sys/fs/bpf")
            }
            AgentError::Layout { path } => {
                let path = path.display();
                Explanation::new(
                    format!("use the maps pinned in {path}"),
                    "they are another version's, whose programs still carry sessions",
                )
                .hint("once those sessions have ended, remove it: 'dyscoctl uninstall --force'")
            }
            AgentError::Taken { path, by } => Explanation::new(
                format!("use the maps pinned in {}", path.display()),
                format!("another dyscod runs{} with them", process(*by)),
            )
            .hint("stop that one first, or give this one a pin_dir of its own under [data_plane]"),
            AgentError::Load(source) => Explanation::new(
                "load the eBPF programs",
                format!("the kernel refused them: {source}"),
            )
            .hint("give dyscod Linux 6.1 or later, CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"),
            AgentError::Program { name, source } => Explanation::new(
                format!("load the eBPF program {name}"),
                format!("the kernel refused it: {source}"),
            ),
            AgentError::Missing(part) => Explanation::new(
                "load the eBPF programs",
                format!("the object has no {part}: it was built for another version"),
            ),
            AgentError::Attach { interface, source } => {
                Explanation::new(format!("attach to interface {interface}"), whole(&**source))
            }
            AgentError::Stacked { upper, kind, lower } => Explanation::new(
                format!("attach to interface {upper}"),
                format!(
                    "it is a {kind} over {lower}, and the programs on both would change each packet twice"
                ),
            )
            .hint("list one of them in [host] interfaces"),
            AgentError::Xdp { interface, source } => {
                Explanation::new(format!("relay by XDP on interface {interface}"), source)
                    .hint("set xdp = \"auto\" or \"off\" under [data_plane]")
            }
            AgentError::Map {
                operation,
                map,
                source,
            } => Explanation::new(format!("{operation} in map {map}"), whole(source)),
            AgentError::Memory(source) => {
                Explanation::new("map the session array into memory", source)
            }
            AgentError::Route { to, source } => {
                Explanation::new(format!("look up the route to {to}"), source)
            }
            AgentError::ReversePath(from) => Explanation::new(
                format!("use the new path to {from}"),
                format!(
                    "packets from {from} arrive by another interface than that of the route to {from}, and rp_filter is 1, so that the kernel drops them"
                ),
            )
            .hint("set rp_filter to 2 (loose) on that interface, or keep the middlebox"),
            AgentError::NoRoute(to) => {
                Explanation::new(format!("find the way to {to}"), format!("there is no route to {to}"))
            }
            AgentError::System { operation, source } => Explanation::new(operation, source),
            AgentError::NoSockets(why) => Explanation::new(
                "see the sockets of sessions that were there first, by the kernel's description of its types (/sys/kernel/btf/vmlinux)",
                why,
            )
            .hint("use a kernel with CONFIG_DEBUG_INFO_BTF, of Linux 6.1 or later, or set adopt = false under [data_plane]"),
            AgentError::PathInUse(key) => {
                Explanation::new("prepare a path", format!("the five-tuple {key:?} is in use"))
            }
            AgentError::PathNotOpen => {
                Explanation::new("use a path", "it has no five-tuple: it is not open")
            }
        }
    }
}

fn process(by: Option<u32>) -> String {
    by.map(|pid| format!(" (process {pid})"))
        .unwrap_or_default()
}
