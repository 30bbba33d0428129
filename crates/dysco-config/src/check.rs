//! Conversion of the file into a checked configuration: applies defaults, checks ranges, and
//! resolves the names of this host's interfaces and groups.

mod control;
mod fleet;
mod host;

use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dysco_api::{DEFAULT_API_SOCKET, SERVICES};
use dysco_common::rule::MAX_RULES;
use dysco_explain::Cause;
use nix::unistd::Group;
use toml::Spanned;
use tracing_subscriber::EnvFilter;

use super::error::{ConfigError, Place};
use super::values::{PortRange, Prefix};
use super::{
    Api, Chain, Config, DEFAULT_PIN_DIR, DEFAULT_POLICY, DEFAULT_SHIM_SOCKET, DEFAULT_STATE_DIR,
    DataPlane, Instance, Interface, Listener, Log, METRICS_SOCKET, Metrics, NEW_PATH_PORTS,
    Removal, Scheduling, Services, Shim, Track, Watch, schema,
};

pub use control::is_host;

/// The file being checked, for places in errors.
struct Checker<'a> {
    path: &'a Path,
    text: &'a str,
}

/// Checks a file against this host's interfaces and groups.
#[cfg(test)]
pub(crate) fn check(
    path: &Path,
    text: &str,
    file: schema::File,
    interfaces: &[Interface],
) -> Result<Config, ConfigError> {
    check_for(path, text, file, interfaces, None)
}

/// Checks a file against the interfaces of this network namespace and the groups of this host. For
/// an instance, the result is its configuration.
pub(crate) fn check_for(
    path: &Path,
    text: &str,
    file: schema::File,
    interfaces: &[Interface],
    instance: Option<&Instance>,
) -> Result<Config, ConfigError> {
    let checker = Checker { path, text };
    let host = match instance {
        None => checker.host(file.host, interfaces)?,
        Some(instance) => checker.host_of(instance, file.host, interfaces)?,
    };
    let api = checker.api(file.api)?;
    let shim = checker.absolute(file.shim.socket, DEFAULT_SHIM_SOCKET)?;
    let control = checker.control(file.control, &host.addresses)?;
    let config = Config {
        fleet: checker.fleet(file.fleet, &control.pki)?,
        control,
        host,
        metrics: checker.metrics(file.metrics, &api)?,
        api,
        shim: Shim {
            abstract_name: shim.clone(),
            socket: shim,
        },
        data_plane: checker.data_plane(file.data_plane)?,
        track: checker.track(file.track)?,
        removal: checker.removal(file.removal)?,
        chain: Chain {
            policy: checker.absolute(file.chain.policy, DEFAULT_POLICY)?,
        },
        listeners: checker.listeners(file.listener)?,
        watch: checker.watch(file.watch)?,
        services: Services {
            users: checker.users(file.services.users)?,
            invitations: file.services.invitations.unwrap_or(true),
            preload: file.services.preload.unwrap_or(true),
        },
        scheduling: Scheduling {
            realtime: file.scheduling.realtime.unwrap_or(true),
        },
        log: checker.log(file.log)?,
    };
    Ok(match instance {
        None => config,
        Some(instance) => config.in_places(instance.inode),
    })
}

impl Checker<'_> {
    fn error(&self, span: Range<usize>, cause: impl Into<Cause>) -> ConfigError {
        ConfigError::At {
            place: Place::of(self.path, self.text, Some(span.start)),
            cause: cause.into(),
        }
    }

    /// Returns an error about something that the file lacks.
    fn error_of_file(&self, cause: Cause) -> ConfigError {
        ConfigError::At {
            place: Place::of(self.path, self.text, None),
            cause,
        }
    }

    fn api(&self, api: schema::Api) -> Result<Api, ConfigError> {
        let socket = self.absolute(api.socket, DEFAULT_API_SOCKET)?;
        let Some(group) = api.group else {
            return Ok(Api {
                socket,
                group: None,
                gid: None,
            });
        };
        let span = group.span();
        let group = group.into_inner();
        match Group::from_name(&group) {
            Ok(Some(found)) => Ok(Api {
                socket,
                group: Some(group),
                gid: Some(found.gid.as_raw()),
            }),
            Ok(None) => {
                let why = Cause::new(format!("there is no group '{group}'"))
                    .hint(format!("make it with 'groupadd {group}'"));
                Err(self.error(span, why))
            }
            Err(error) => Err(self.error(
                span,
                format!("group '{group}' cannot be looked up: {error}"),
            )),
        }
    }

    fn data_plane(&self, plane: schema::DataPlane) -> Result<DataPlane, ConfigError> {
        Ok(DataPlane {
            pin_dir: self.absolute(plane.pin_dir, DEFAULT_PIN_DIR)?,
            max_sessions: self.within("max_sessions", plane.max_sessions, 65536, 16..=1 << 22)?,
            attach: plane.attach.unwrap_or_default(),
            xdp: plane.xdp.unwrap_or_default(),
            adopt: plane.adopt.unwrap_or(true),
        })
    }

    /// Returns the names of the services that other users may run programs with. A name that is
    /// misspelt would be a service that nobody may have.
    fn users(&self, names: Vec<Spanned<String>>) -> Result<Vec<String>, ConfigError> {
        let known = |name: &String| SERVICES.contains(&name.as_str());
        if let Some(name) = names.iter().find(|name| !known(name.get_ref())) {
            let why = Cause::new(format!("users names no service: {}", name.get_ref()))
                .hint(format!("choose from {}", SERVICES.join(", ")));
            return Err(self.error(name.span(), why));
        }
        Ok(names.into_iter().map(Spanned::into_inner).collect())
    }

    fn track(&self, list: Vec<Spanned<schema::Track>>) -> Result<Vec<Track>, ConfigError> {
        let mut rules = 0;
        let mut tracks = Vec::new();
        for track in list {
            let span = track.span();
            let schema::Track { destination, ports } = track.into_inner();
            if destination.is_none() && ports.is_none() {
                let why = Cause::new("the rule has neither destination nor ports")
                    .hint("give destination, ports, or both");
                return Err(self.error(span, why));
            }
            let ports = ports.map_or_else(|| vec![PortRange::ALL], |list| list.0);
            rules += ports.len();
            if rules > MAX_RULES {
                let why = Cause::new(format!(
                    "more than {MAX_RULES} pairs of destination and ports"
                ))
                .hint("merge some, as with wider ranges");
                return Err(self.error(span, why));
            }
            tracks.push(Track {
                destination: destination.unwrap_or(Prefix::ALL),
                ports,
            });
        }
        Ok(tracks)
    }

    fn removal(&self, removal: schema::Removal) -> Result<Removal, ConfigError> {
        let default = PortRange {
            first: *NEW_PATH_PORTS.start(),
            last: *NEW_PATH_PORTS.end(),
        };
        let ports = match removal.ports {
            Some(ports) if ports.get_ref().first < 1024 => {
                let why = Cause::new("ports holds one below 1024")
                    .hint("use a range that no service listens in");
                return Err(self.error(ports.span(), why));
            }
            Some(ports) => ports.into_inner(),
            None => default,
        };
        let timeout = self.within("timeout_ms", removal.timeout_ms, 10_000, 100..=600_000)?;
        let day = 24 * 60 * 60;
        let idle = self.within("relay_idle_s", removal.relay_idle_s, day, 10..=30 * day)?;
        Ok(Removal {
            automatic: removal.automatic.unwrap_or(false),
            mode: removal.mode.unwrap_or_default(),
            relay_idle: Duration::from_secs(idle),
            timeout: Duration::from_millis(timeout),
            concurrency: self.within("concurrency", removal.concurrency, 32, 1..=4096)?,
            ports,
            reserve_ports: removal.reserve_ports.unwrap_or(true),
            state_dir: self.absolute(removal.state_dir, DEFAULT_STATE_DIR)?,
        })
    }

    fn listeners(
        &self,
        list: Vec<Spanned<schema::Listener>>,
    ) -> Result<Vec<Listener>, ConfigError> {
        let mut listeners: Vec<Listener> = Vec::new();
        for listener in list {
            let span = listener.span();
            let listener = listener.into_inner();
            let address = listener.address;
            if listener.transparent.is_none() && listener.haproxy_socket.is_none() {
                let why = Cause::new(format!("listener {address} says nothing"))
                    .hint("set transparent to true or false, or haproxy_socket");
                return Err(self.error(span, why));
            }
            if listeners.iter().any(|other| other.address == address) {
                let why =
                    Cause::new(format!("listener {address} is there twice")).hint("leave one out");
                return Err(self.error(span, why));
            }
            let haproxy_socket = match listener.haproxy_socket {
                Some(socket) => Some(self.absolute(Some(socket), "")?),
                None => None,
            };
            listeners.push(Listener {
                address,
                transparent: listener.transparent,
                haproxy_socket,
            });
        }
        Ok(listeners)
    }

    fn watch(&self, watch: schema::Watch) -> Result<Watch, ConfigError> {
        let window = self.within("window_ms", watch.window_ms, 500, 10..=600_000)?;
        let limit = watch.limit_ms.as_ref().map(Spanned::span);
        let limit_ms = self.within(
            "limit_ms",
            watch.limit_ms,
            5_000.max(2 * window),
            10..=600_000,
        )?;
        if let Some(span) = limit.filter(|_| limit_ms < window) {
            let why = Cause::new(format!(
                "limit_ms is {limit_ms}, less than window_ms, {window}: nothing could be proven"
            ))
            .hint("raise limit_ms, or lower window_ms");
            return Err(self.error(span, why));
        }
        Ok(Watch {
            moments: self.within("moments", watch.moments, 8, 3..=1000)?,
            bytes: self.within("bytes", watch.bytes, 16 << 10, 100..=1 << 40)?,
            window: Duration::from_millis(window),
            limit: Duration::from_millis(limit_ms),
        })
    }

    /// The default socket is beside the API socket, which is different for each `dyscod` of a
    /// host.
    fn metrics(&self, metrics: schema::Metrics, api: &Api) -> Result<Metrics, ConfigError> {
        let socket = match metrics.socket {
            Some(socket) => self.absolute(Some(socket), "")?,
            None => api.socket.with_file_name(METRICS_SOCKET),
        };
        let tls = metrics.tls.as_ref().is_some_and(|tls| *tls.get_ref());
        match (&metrics.listen, metrics.tls) {
            (Some(listen), _) if !tls && !listen.get_ref().ip().to_canonical().is_loopback() => {
                let why = Cause::new(format!(
                    "{} is no loopback address, and without TLS any host that reaches it can read \
                     the metrics",
                    listen.get_ref()
                ))
                .hint("use 127.0.0.1 or [::1], or set tls = true");
                return Err(self.error(listen.span(), why));
            }
            (None, Some(at)) if tls => {
                let why = Cause::new("tls is of the TCP port, and there is none")
                    .hint("set listen, as in listen = \"10.0.2.1:9469\"");
                return Err(self.error(at.span(), why));
            }
            _ => {}
        }
        Ok(Metrics {
            socket,
            listen: metrics.listen.map(Spanned::into_inner),
            tls,
        })
    }

    fn log(&self, log: schema::Log) -> Result<Log, ConfigError> {
        let filter = match log.filter {
            Some(filter) => {
                EnvFilter::try_new(filter.get_ref()).map_err(|error| {
                    let why = Cause::new(error).hint("write it like \"info\" or \"dysco=debug\"");
                    self.error(filter.span(), why)
                })?;
                filter.into_inner()
            }
            None => "info".into(),
        };
        Ok(Log {
            format: log.format.unwrap_or_default(),
            filter,
        })
    }

    fn within<T: PartialOrd + std::fmt::Display>(
        &self,
        key: &str,
        value: Option<Spanned<T>>,
        default: T,
        range: RangeInclusive<T>,
    ) -> Result<T, ConfigError> {
        match value {
            None => Ok(default),
            Some(value) if range.contains(value.get_ref()) => Ok(value.into_inner()),
            Some(value) => {
                let (first, last) = (range.start(), range.end());
                let why = Cause::new(format!("{key} is {}", value.get_ref()))
                    .hint(format!("give {first} to {last}"));
                Err(self.error(value.span(), why))
            }
        }
    }

    fn absolute(
        &self,
        path: Option<Spanned<PathBuf>>,
        default: &str,
    ) -> Result<PathBuf, ConfigError> {
        match path {
            None => Ok(default.into()),
            Some(path) if path.get_ref().is_absolute() => Ok(path.into_inner()),
            Some(path) => {
                let why = Cause::new(format!("{} is no absolute path", path.get_ref().display()))
                    .hint("begin it with a /");
                Err(self.error(path.span(), why))
            }
        }
    }
}
