//! The daemon's configuration and its policy: the contents of the files, and the result of
//! checking them against this host. `dyscod` runs by this configuration and `dyscoctl` checks it.
//! The crate depends on the types of the local API, on the agent for this host's interfaces, and
//! on `dysco-pki`.

mod check;
mod error;
mod fleet;
mod instance;
mod interface;
mod log;
mod namespaces;
mod on_host;
pub mod policy;
pub mod private;
mod reload;
mod repeats;
mod reserved;
mod rights;
mod schema;
mod values;

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dysco_api::{ListenAddress, Mode};
use dysco_pki::{Credentials, PkiError};
use serde::Serialize;

pub use check::is_host;
pub use dysco_pki::PkiPaths;
pub use error::{ConfigError, Place};
pub use fleet::{EtcdUrl, Fleet};
pub use instance::{Instance, Places, Source};
pub use interface::{Interface, list as interfaces, strict_reverse_path};
pub use log::{change_filter, init_logging, log_last_repeats, log_repeats};
pub use namespaces::{NAMED, Namespaces, can_enter};
pub use on_host::{can_listen, can_pin, missing_socket};
pub use reserved::{PortsError, release_ports, reserve_ports};
pub use rights::Rights;
pub use values::{Address, PortList, PortRange, Prefix};

/// Default path of the configuration file.
pub const DEFAULT_CONFIG: &str = "/etc/dysco/dyscod.toml";
/// Default path of the socket that shims report to.
const DEFAULT_SHIM_SOCKET: &str = "/run/dysco/shim.sock";
/// File name of the metrics socket, which is in the same directory as the API socket.
const METRICS_SOCKET: &str = "metrics.sock";
/// Default directory of keys and certificates.
const DEFAULT_PKI_DIR: &str = "/etc/dysco/pki";
/// Default directory in which maps and programs are pinned.
pub const DEFAULT_PIN_DIR: &str = "/sys/fs/bpf/dysco";
/// Default path of the policy file.
const DEFAULT_POLICY: &str = "/etc/dysco/policy.toml";
/// Default directory of the state that must outlive the daemon.
const DEFAULT_STATE_DIR: &str = "/run/dysco/state";
/// UDP port of the control channel.
const CONTROL_PORT: u16 = 7474;
/// Source ports of new subsessions.
const NEW_PATH_PORTS: RangeInclusive<u16> = 61000..=64999;

/// A checked configuration: every default is filled in, and every name is resolved.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    /// Settings of this host.
    pub host: Host,
    /// Settings of the channel to other daemons.
    pub control: Control,
    /// Settings of the local API.
    pub api: Api,
    /// Settings of the shims' socket.
    pub shim: Shim,
    /// Settings of the eBPF programs and maps.
    pub data_plane: DataPlane,
    /// Sessions to track. If the list is empty, every session is tracked.
    pub track: Vec<Track>,
    /// Settings for the removal of proxies.
    pub removal: Removal,
    /// Settings for steering sessions through chains.
    pub chain: Chain,
    /// Settings of the store of the fleet's policy and hosts.
    pub fleet: Fleet,
    /// Listeners for which the operator declares more than the shim can observe.
    #[serde(rename = "listener")]
    pub listeners: Vec<Listener>,
    /// Settings for watching proxies that run without the shim.
    pub watch: Watch,
    /// Settings of session services.
    pub services: Services,
    /// Settings for the scheduling of the daemon's threads.
    pub scheduling: Scheduling,
    /// Settings of the metrics.
    pub metrics: Metrics,
    /// Settings of the log.
    pub log: Log,
}

/// Settings of this host.
#[derive(Clone, Debug, Serialize)]
pub struct Host {
    /// Name of this host in listings and logs.
    pub name: String,
    /// Addresses by which peers know this host. Its certificate contains all of them.
    pub addresses: Vec<IpAddr>,
    /// Interfaces that sessions pass.
    pub interfaces: Vec<Interface>,
    /// Other network namespaces that are served, each by an instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Namespaces>,
}

/// Settings of the channel to other daemons.
#[derive(Clone, Debug, Serialize)]
pub struct Control {
    /// Local addresses to listen on; the unspecified address stands for all. An instance has none,
    /// and no channel.
    pub listen: Vec<IpAddr>,
    /// UDP port, the same in the whole fleet.
    pub port: u16,
    /// Hosts that this host stays connected with and has keys for. It connects to other hosts
    /// when a session needs them.
    pub peers: Vec<IpAddr>,
    /// Paths of keys and certificates.
    #[serde(flatten)]
    pub pki: PkiPaths,
}

/// Settings of the local API.
#[derive(Clone, Debug, Serialize)]
pub struct Api {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Name of the group that may read, as configured.
    pub group: Option<String>,
    /// Number of that group.
    #[serde(skip)]
    pub gid: Option<u32>,
}

/// Settings of the shims' socket.
#[derive(Clone, Debug, Serialize)]
pub struct Shim {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Name of an abstract socket, for programs that do not reach the path: those that have
    /// changed their root, and those in a container.
    #[serde(skip)]
    pub abstract_name: PathBuf,
}

/// Settings of the eBPF programs and maps.
#[derive(Clone, Debug, Serialize)]
pub struct DataPlane {
    /// Directory in which maps and programs are pinned.
    pub pin_dir: PathBuf,
    /// Maximum number of sessions.
    pub max_sessions: u32,
    /// Method by which programs are attached.
    pub attach: Attach,
    /// Interfaces on which XDP relays.
    pub xdp: Xdp,
    /// True if sessions that existed before the start are adopted.
    pub adopt: bool,
}

/// Method by which programs are attached to an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attach {
    /// TCX if the kernel has it (6.6 and later), clsact otherwise.
    #[default]
    Auto,
    /// TCX, without a fallback.
    Tcx,
    /// The clsact qdisc.
    Clsact,
}

/// Interfaces on which XDP sends back the packets that this host relays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Xdp {
    /// Interfaces of network cards whose driver is known to benefit.
    #[default]
    Auto,
    /// Every interface.
    On,
    /// No interface.
    Off,
}

impl From<Xdp> for dysco_agent::Xdp {
    fn from(xdp: Xdp) -> dysco_agent::Xdp {
        match xdp {
            Xdp::Auto => dysco_agent::Xdp::Auto,
            Xdp::On => dysco_agent::Xdp::On,
            Xdp::Off => dysco_agent::Xdp::Off,
        }
    }
}

/// Sessions to track, selected by the destination of the SYN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Track {
    /// Prefix of the destination.
    pub destination: Prefix,
    /// Ports of the destination; never empty.
    pub ports: Vec<PortRange>,
}

/// Settings for the removal of proxies.
#[derive(Clone, Debug, Serialize)]
pub struct Removal {
    /// True if proxies are removed without a request, as soon as a pair is transparent.
    pub automatic: bool,
    /// Mode of removal, unless a request names one.
    pub mode: Mode,
    /// Time after which a silent session that this host relays is considered dead.
    #[serde(serialize_with = "values::as_secs", rename = "relay_idle_s")]
    pub relay_idle: Duration,
    /// Time after which an unfinished change rolls back.
    #[serde(serialize_with = "values::as_millis", rename = "timeout_ms")]
    pub timeout: Duration,
    /// Maximum number of changes in progress at once.
    pub concurrency: usize,
    /// Source ports of new subsessions.
    pub ports: PortRange,
    /// True if the kernel is kept from assigning these ports to its own connections.
    pub reserve_ports: bool,
    /// Directory of the state that must outlive the daemon.
    pub state_dir: PathBuf,
}

/// Settings for steering sessions through chains.
#[derive(Clone, Debug, Serialize)]
pub struct Chain {
    /// Path of the policy file. If there never was such a file, no session has a chain.
    pub policy: PathBuf,
}

/// Settings of session services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Services {
    /// Names of the services that members of the API's group may run their programs with.
    pub users: Vec<String>,
    /// True if other hosts may put services at both ends into their sessions with this host.
    pub invitations: bool,
    /// True if the programs for sessions with handlers are loaded at the start.
    pub preload: bool,
}

/// A listener of a proxy on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listener {
    /// Address of the listener; without an IP address, all addresses.
    pub address: ListenAddress,
    /// The operator's declaration. If true, directions that have not been spliced are
    /// transparent. If false, sessions keep their proxy in every case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transparent: Option<bool>,
    /// HAProxy's runtime socket, which reports whether the listener is in mode tcp.
    pub haproxy_socket: Option<PathBuf>,
}

/// Settings for watching the sockets of a proxy without the shim, until the kernel's counts show
/// which sockets belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Watch {
    /// Number of moments at which the counts must agree, with data in between.
    pub moments: usize,
    /// Number of bytes that must pass meanwhile in at least one direction.
    pub bytes: i64,
    /// Minimum time between the first and the last of these moments.
    #[serde(serialize_with = "values::as_millis", rename = "window_ms")]
    pub window: Duration,
    /// Maximum time for which the sockets are watched.
    #[serde(serialize_with = "values::as_millis", rename = "limit_ms")]
    pub limit: Duration,
}

/// Settings for the scheduling of the daemon's threads.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Scheduling {
    /// True if the daemon's threads run before others while they take few turns. A change is then
    /// equally fast on a busy host.
    pub realtime: bool,
}

/// Settings of the metrics.
#[derive(Clone, Debug, Serialize)]
pub struct Metrics {
    /// Path of the unix socket.
    pub socket: PathBuf,
    /// TCP address and port on which metrics are served in addition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// True if that port requires TLS and a client certificate of the authority.
    pub tls: bool,
}

/// Settings of the log.
#[derive(Clone, Debug, Serialize)]
pub struct Log {
    /// Format of the lines: plain or JSON.
    pub format: LogFormat,
    /// A `tracing` filter, such as `info` or `dysco=debug`.
    pub filter: String,
}

/// Format of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Plain,
    /// One JSON object a line.
    Json,
}

impl Config {
    /// Reads and checks a file: its syntax, keys and values, and the interfaces, group, keys and
    /// certificate of this host that it names.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        Config::load_from(&Source {
            file: path.into(),
            instance: None,
        })
    }

    /// Reads and checks a file as [`Config::load`] does, without keys and certificate.
    pub fn without_keys(path: &Path) -> Result<Config, ConfigError> {
        Config::without_keys_from(&Source {
            file: path.into(),
            instance: None,
        })
    }

    /// Reads and checks a file as [`Config::load`] does, for an instance if the source names one.
    pub fn load_from(source: &Source) -> Result<Config, ConfigError> {
        let config = Config::without_keys_from(source)?;
        config.credentials()?;
        Ok(config)
    }

    /// Reads and checks a file as [`Config::load_from`] does, without keys and certificate.
    pub fn without_keys_from(source: &Source) -> Result<Config, ConfigError> {
        let Source {
            file: path,
            instance,
        } = source;
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let file = schema::parse(path, &text)?;
        check::check_for(path, &text, file, &interface::list()?, instance.as_ref())
    }

    /// True if there is a channel to other hosts. An instance has none.
    pub fn has_channel(&self) -> bool {
        !self.control.listen.is_empty()
    }

    /// Reads this host's certificate and key. They are not compared with the addresses of an
    /// instance, which proves itself to nobody.
    pub fn credentials(&self) -> Result<Credentials, PkiError> {
        let addresses = match self.has_channel() {
            true => self.host.addresses.as_slice(),
            false => &[],
        };
        dysco_pki::load(&self.control.pki, addresses)
    }

    /// Returns the configuration in the form of a file with every default written out.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string_pretty(self)
    }

    /// Returns the tracking rules in the data plane's form.
    pub fn rules(&self) -> Vec<dysco_common::rule::Rule> {
        let of = |track: &Track| {
            let (to, ports) = (track.destination, track.ports.clone());
            ports.into_iter().map(move |p| to.rule(p.first, p.last))
        };
        self.track.iter().flat_map(of).collect()
    }

    /// Returns the operator's entry for the listener at `address`. An entry with an IP address
    /// takes precedence over one without.
    pub fn listener(&self, address: SocketAddr) -> Option<&Listener> {
        let matching = self.listeners.iter().filter(|l| l.address.matches(address));
        matching.max_by_key(|l| l.address.ip.is_some())
    }
}

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests;
