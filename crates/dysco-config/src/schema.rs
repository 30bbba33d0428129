//! The file as written: every key, without defaults.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use dysco_api::{ListenAddress, Mode};
use serde::Deserialize;
use toml::Spanned;

use super::error::{ConfigError, Place};
use super::values::{Address, PortList, PortRange, Prefix, cause_of, parsed};
use super::{Attach, EtcdUrl, LogFormat, Namespaces, Xdp};

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub host: Option<Spanned<Host>>,
    #[serde(default)]
    pub control: Control,
    #[serde(default)]
    pub api: Api,
    #[serde(default)]
    pub shim: Shim,
    #[serde(default)]
    pub data_plane: DataPlane,
    #[serde(default)]
    pub track: Vec<Spanned<Track>>,
    #[serde(default)]
    pub removal: Removal,
    #[serde(default)]
    pub chain: Chain,
    #[serde(default)]
    pub fleet: Fleet,
    #[serde(default)]
    pub listener: Vec<Spanned<Listener>>,
    #[serde(default)]
    pub watch: Watch,
    #[serde(default)]
    pub services: Services,
    #[serde(default)]
    pub scheduling: Scheduling,
    #[serde(default)]
    pub metrics: Metrics,
    #[serde(default)]
    pub log: Log,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Host {
    pub name: Option<Spanned<String>>,
    pub addresses: Option<Spanned<Vec<Spanned<Address>>>>,
    pub interfaces: Option<Spanned<Vec<Spanned<String>>>>,
    pub namespaces: Option<Namespaces>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Control {
    pub listen: Option<Spanned<Vec<Address>>>,
    pub port: Option<Spanned<u16>>,
    #[serde(default)]
    pub peers: Vec<Spanned<Address>>,
    pub pki_dir: Option<PathBuf>,
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub revoked: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Api {
    pub socket: Option<Spanned<PathBuf>>,
    pub group: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shim {
    pub socket: Option<Spanned<PathBuf>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DataPlane {
    pub pin_dir: Option<Spanned<PathBuf>>,
    pub max_sessions: Option<Spanned<u32>>,
    pub attach: Option<Attach>,
    pub xdp: Option<Xdp>,
    pub adopt: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Track {
    pub destination: Option<Prefix>,
    pub ports: Option<PortList>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Removal {
    pub automatic: Option<bool>,
    pub mode: Option<Mode>,
    pub relay_idle_s: Option<Spanned<u64>>,
    pub timeout_ms: Option<Spanned<u64>>,
    pub concurrency: Option<Spanned<usize>>,
    pub ports: Option<Spanned<PortRange>>,
    pub reserve_ports: Option<bool>,
    pub state_dir: Option<Spanned<PathBuf>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Chain {
    pub policy: Option<Spanned<PathBuf>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fleet {
    #[serde(default)]
    pub etcd: Vec<Spanned<EtcdUrl>>,
    pub prefix: Option<Spanned<String>>,
    pub lease_s: Option<Spanned<u64>>,
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Services {
    #[serde(default)]
    pub users: Vec<Spanned<String>>,
    pub invitations: Option<bool>,
    pub preload: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listener {
    #[serde(deserialize_with = "parsed")]
    pub address: ListenAddress,
    pub transparent: Option<bool>,
    pub haproxy_socket: Option<Spanned<PathBuf>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Watch {
    pub moments: Option<Spanned<usize>>,
    pub bytes: Option<Spanned<i64>>,
    pub window_ms: Option<Spanned<u64>>,
    pub limit_ms: Option<Spanned<u64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scheduling {
    pub realtime: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Metrics {
    pub socket: Option<Spanned<PathBuf>>,
    pub listen: Option<Spanned<SocketAddr>>,
    pub tls: Option<Spanned<bool>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    pub format: Option<LogFormat>,
    pub filter: Option<Spanned<String>>,
}

/// Reads the text. Errors state line and column.
pub(crate) fn parse(path: &Path, text: &str) -> Result<File, ConfigError> {
    toml::from_str(text).map_err(|error| ConfigError::At {
        place: Place::of(path, text, error.span().map(|span| span.start)),
        cause: cause_of(&error),
    })
}
