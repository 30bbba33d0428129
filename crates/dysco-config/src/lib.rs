//! The daemon's configuration and its policy: what the files may say, and what came out
//! of them once they were held against this host. `dyscod` runs by them and `dyscoctl`
//! checks them; the crate depends on the words of the local API, on the agent for this
//! host's interfaces, and on `dysco-pki`.

mod check;
mod error;
mod interface;
mod log;
mod on_host;
pub mod policy;
pub mod private;
mod reload;
mod reserved;
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
pub use error::ConfigError;
pub use error::Place;
pub use interface::{Interface, list as interfaces, strict_reverse_path};
pub use log::{change_filter, init_logging};
pub use on_host::{can_listen, can_pin, missing_socket};
pub use reserved::{PortsError, release_ports, reserve_ports};
pub use values::{Address, PortList, PortRange, Prefix};

/// Where the configuration is looked for.
pub const DEFAULT_CONFIG: &str = "/etc/dysco/dyscod.toml";
/// Where shims report to.
const DEFAULT_SHIM_SOCKET: &str = "/run/dysco/shim.sock";
/// The name of the socket of metrics, beside that of the API.
const METRICS_SOCKET: &str = "metrics.sock";
/// Where keys and certificates lie.
const DEFAULT_PKI_DIR: &str = "/etc/dysco/pki";
/// Where maps and programs are pinned.
pub const DEFAULT_PIN_DIR: &str = "/sys/fs/bpf/dysco";
/// Where the policy is.
const DEFAULT_POLICY: &str = "/etc/dysco/policy.toml";
/// Where the daemon keeps what must outlive it.
const DEFAULT_STATE_DIR: &str = "/run/dysco/state";
/// UDP port of the control channel.
const CONTROL_PORT: u16 = 7474;
/// Source ports of new subsessions.
const NEW_PATH_PORTS: RangeInclusive<u16> = 61000..=64999;

/// A checked configuration: every default filled in, every name resolved.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    /// This host.
    pub host: Host,
    /// The channel to other daemons.
    pub control: Control,
    /// The local API.
    pub api: Api,
    /// The shims' socket.
    pub shim: Shim,
    /// The eBPF side.
    pub data_plane: DataPlane,
    /// What is tracked; with none, every session is.
    pub track: Vec<Track>,
    /// How proxies leave.
    pub removal: Removal,
    /// How sessions are steered.
    pub chain: Chain,
    /// Listeners of which the operator says more than the shim can see.
    #[serde(rename = "listener")]
    pub listeners: Vec<Listener>,
    /// How proxies without the shim are watched.
    pub watch: Watch,
    /// When the daemon runs.
    pub scheduling: Scheduling,
    /// Metrics.
    pub metrics: Metrics,
    /// Logging.
    pub log: Log,
}

/// This host.
#[derive(Clone, Debug, Serialize)]
pub struct Host {
    /// Its name in listings and logs.
    pub name: String,
    /// The addresses its peers know it by; all are in its certificate.
    pub addresses: Vec<IpAddr>,
    /// The interfaces that sessions pass.
    pub interfaces: Vec<Interface>,
}

/// The channel to other daemons.
#[derive(Clone, Debug, Serialize)]
pub struct Control {
    /// Local addresses; unspecified for all.
    pub listen: Vec<IpAddr>,
    /// The UDP port, the same in the whole fleet.
    pub port: u16,
    /// Hosts that this one stays connected with, and has keys of: others it meets when a
    /// session needs them.
    pub peers: Vec<IpAddr>,
    /// Keys and certificates.
    #[serde(flatten)]
    pub pki: PkiPaths,
}

/// The local API.
#[derive(Clone, Debug, Serialize)]
pub struct Api {
    /// Path of the socket.
    pub socket: PathBuf,
    /// The group that may read, as configured.
    pub group: Option<String>,
    /// Its number.
    #[serde(skip)]
    pub gid: Option<u32>,
}

/// The shims' socket.
#[derive(Clone, Debug, Serialize)]
pub struct Shim {
    /// Path of the socket.
    pub socket: PathBuf,
}

/// The eBPF side.
#[derive(Clone, Debug, Serialize)]
pub struct DataPlane {
    /// Where maps and programs are pinned.
    pub pin_dir: PathBuf,
    /// How many sessions there may be.
    pub max_sessions: u32,
    /// How programs are attached.
    pub attach: Attach,
    /// Whether XDP relays.
    pub xdp: Xdp,
    /// Are sessions entered that were there before the start?
    pub adopt: bool,
}

/// How programs are attached to an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attach {
    /// TCX where the kernel has it (6.6), clsact otherwise.
    #[default]
    Auto,
    /// TCX only.
    Tcx,
    /// The clsact qdisc.
    Clsact,
}

/// Whether what this host relays is sent back by XDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Xdp {
    /// On interfaces of network cards whose driver is known to gain by it.
    #[default]
    Auto,
    /// On every interface.
    On,
    /// On none.
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

/// Sessions to track: by the SYN's destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Track {
    /// The destination's prefix.
    pub destination: Prefix,
    /// Its ports; never empty.
    pub ports: Vec<PortRange>,
}

/// How proxies leave.
#[derive(Clone, Debug, Serialize)]
pub struct Removal {
    /// Without being asked, as soon as a pair is transparent.
    pub automatic: bool,
    /// By which way, unless a request names one.
    pub mode: Mode,
    /// How long a session that this host relays may be silent before it is
    /// taken for dead.
    #[serde(serialize_with = "values::as_secs", rename = "relay_idle_s")]
    pub relay_idle: Duration,
    /// How long a change may take before it rolls back.
    #[serde(serialize_with = "values::as_millis", rename = "timeout_ms")]
    pub timeout: Duration,
    /// How many changes may be under way at once.
    pub concurrency: usize,
    /// Source ports of new subsessions.
    pub ports: PortRange,
    /// Keep the kernel from handing these ports out.
    pub reserve_ports: bool,
    /// Where the daemon keeps what must outlive it.
    pub state_dir: PathBuf,
}

/// How sessions are steered.
#[derive(Clone, Debug, Serialize)]
pub struct Chain {
    /// The policy's file; where there never was one, no session has a chain.
    pub policy: PathBuf,
}

/// A listener of a proxy on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listener {
    /// Its address; without an IP, all addresses.
    pub address: ListenAddress,
    /// The operator's word: directions that have not spliced are transparent;
    /// or, if false, sessions keep their proxy whatever it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transparent: Option<bool>,
    /// HAProxy's runtime socket, asked whether the listener is in mode tcp.
    pub haproxy_socket: Option<PathBuf>,
}

/// How the sockets of a proxy without the shim are watched, until the kernel's
/// counts have shown which belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Watch {
    /// The counts must agree at so many moments, with data in between.
    pub moments: usize,
    /// So many bytes must pass meanwhile, in one direction at least.
    pub bytes: i64,
    /// The first and the last such moment are at least so far apart.
    #[serde(serialize_with = "values::as_millis", rename = "window_ms")]
    pub window: Duration,
    /// Longer is not watched.
    #[serde(serialize_with = "values::as_millis", rename = "limit_ms")]
    pub limit: Duration,
}

/// When the daemon runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Scheduling {
    /// Before others, while it takes few turns: a change is then as fast on a
    /// busy host.
    pub realtime: bool,
}

/// Metrics.
#[derive(Clone, Debug, Serialize)]
pub struct Metrics {
    /// Path of the unix socket.
    pub socket: PathBuf,
    /// The TCP address and port, besides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Whether that port is for TLS, and for clients with a certificate of the authority.
    pub tls: bool,
}

/// Logging.
#[derive(Clone, Debug, Serialize)]
pub struct Log {
    /// Plain or JSON.
    pub format: LogFormat,
    /// A `tracing` filter, such as `info` or `dysco=debug`.
    pub filter: String,
}

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Plain,
    /// One JSON object a line.
    Json,
}

impl Config {
    /// Reads and checks a file: syntax, keys, values, and what they name on
    /// this host (interfaces, group, keys and certificate).
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let config = Config::without_keys(path)?;
        config.credentials()?;
        Ok(config)
    }

    /// The same without a look at keys and certificate.
    pub fn without_keys(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let file = schema::parse(path, &text)?;
        check::check(path, &text, file, &interface::list()?)
    }

    /// Reads this host's certificate and key.
    pub fn credentials(&self) -> Result<Credentials, PkiError> {
        dysco_pki::load(&self.control.pki, &self.host.addresses)
    }

    /// The configuration as a file would have it, every default spelt out.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string_pretty(self)
    }

    /// The tracking rules as the data plane has them.
    pub fn rules(&self) -> Vec<dysco_common::rule::Rule> {
        self.track.iter().flat_map(Track::rules).collect()
    }

    /// What the operator said of the listener at `address`; the most exact
    /// entry counts.
    pub fn listener(&self, address: SocketAddr) -> Option<&Listener> {
        let matching = self.listeners.iter().filter(|l| l.address.matches(address));
        matching.max_by_key(|l| l.address.ip.is_some())
    }
}

impl Track {
    fn rules(&self) -> impl Iterator<Item = dysco_common::rule::Rule> + '_ {
        self.ports
            .iter()
            .map(|ports| self.destination.rule(ports.first, ports.last))
    }
}

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests;
