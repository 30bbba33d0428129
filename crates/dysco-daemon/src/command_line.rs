//! The command line of `dyscod`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use dysco_agent::AgentError;
use dysco_api::{EXIT_HELP, Exit};
use dysco_config::policy::{Policy, PolicyError};
use dysco_config::{
    ConfigError, DEFAULT_CONFIG, Rights, Source, can_enter, can_listen, can_pin, init_logging,
    log_last_repeats, log_repeats, missing_socket,
};
use dysco_control::ControlError;
use dysco_explain::{Cause, Explain, Explanation, display_explained};

use crate::api::ApiError;
use crate::engine::{self, EngineError};
use crate::handlers;
use crate::metrics::MetricsError;
use crate::namespaces::{self, EnterError};

/// Time that threads may take to end once all else has ended.
const ENDING: Duration = Duration::from_secs(5);

/// The daemon of Dysco: steers TCP sessions of this host, and removes proxies from them.
#[derive(Debug, Parser)]
#[command(name = "dyscod", version, after_help = EXIT_HELP, max_term_width = 100)]
struct Cli {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,

    /// Check the configuration and the policy, and print all values that would be used, or the
    /// first fault; start nothing
    ///
    /// A comment names what is missing at the moment, such as HAProxy's socket.
    /// /usr/share/doc/dysco/configuration.md describes each key.
    #[arg(long)]
    check: bool,

    /// Serve the network namespace of the standard input, under this name. dyscod starts itself so
    /// for each of [host] namespaces
    #[arg(long, value_name = "NAME", hide = true, requires = "parent")]
    namespace: Option<String>,

    /// Run the services of sessions, for the dyscod of the standard input. dyscod starts itself so
    #[arg(long, value_name = "UID", hide = true, exclusive = true)]
    handler: Option<u32>,

    /// The process that starts an instance
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<u32>,
}

/// Error of a daemon that did not start, or that ended by a fault.
#[derive(Debug, thiserror::Error)]
enum DaemonError {
    /// Error of the configuration.
    Config(#[from] ConfigError),
    /// Error of a policy.
    Policy(#[from] PolicyError),
    /// A rule of the policy cannot have its services.
    Services(Cause),
    /// The configuration in use cannot be written as TOML.
    Show(#[from] toml::ser::Error),
    /// Standard output cannot be written.
    Print(io::Error),
    /// Error of the engine.
    Engine(#[from] EngineError),
    /// The runtime did not start.
    Runtime(io::Error),
    /// An instance cannot enter its namespace.
    Enter(#[from] EnterError),
    /// A handler cannot run services.
    Handler(#[from] handlers::Failed),
}

display_explained!(DaemonError);

impl Explain for DaemonError {
    fn explain(&self) -> Explanation {
        match self {
            DaemonError::Config(error) => error.explain(),
            DaemonError::Policy(error) => error.explain(),
            DaemonError::Services(cause) => cause.clone().of("use the policy"),
            DaemonError::Show(source) => Explanation::new("print the configuration", source),
            DaemonError::Print(source) => Explanation::new("print", source),
            DaemonError::Engine(error) => error.explain(),
            DaemonError::Runtime(source) => Explanation::new("start the runtime", source),
            DaemonError::Enter(error) => error.explain(),
            DaemonError::Handler(error) => error.explain(),
        }
    }
}

impl DaemonError {
    /// Returns the exit code.
    fn exit(&self) -> Exit {
        match self {
            DaemonError::Config(error) if error.is_of_permission() => Exit::NotAllowed,
            DaemonError::Config(_) | DaemonError::Policy(_) | DaemonError::Services(_) => {
                Exit::Usage
            }
            // The reader has closed its end.
            DaemonError::Print(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
            DaemonError::Engine(error) => engine_exit(error),
            DaemonError::Show(_)
            | DaemonError::Print(_)
            | DaemonError::Runtime(_)
            | DaemonError::Enter(_)
            | DaemonError::Handler(_) => Exit::Internal,
        }
    }
}

/// Returns [`Exit::Usage`] if the engine did not start because of the configuration or the host, so that
/// it would not start the next time either.
fn engine_exit(error: &EngineError) -> Exit {
    let configured = match error {
        EngineError::Config(_) | EngineError::Pki(_) | EngineError::Ports(_) => true,
        EngineError::Api(error) => matches!(error, ApiError::Socket { .. }),
        EngineError::Metrics(error) => {
            !matches!(error, MetricsError::Socket(ApiError::InUse { .. }))
        }
        EngineError::Agent(error) => matches!(
            error,
            AgentError::PinDirectory { .. }
                | AgentError::Layout { .. }
                | AgentError::Taken { .. }
                | AgentError::Xdp { .. }
        ),
        // An address in use is another dyscod's.
        EngineError::Control(ControlError::Bind { source, .. }) => {
            source.kind() == io::ErrorKind::AddrNotAvailable
        }
        EngineError::Control(error) => !matches!(error, ControlError::Quic(_)),
        EngineError::Proxy(_)
        | EngineError::System { .. }
        | EngineError::StateDir { .. }
        | EngineError::Journal { .. }
        | EngineError::Record { .. }
        | EngineError::ControlEnded => false,
    };
    match configured {
        true => Exit::Usage,
        false => Exit::Internal,
    }
}

/// Returns the command line of `dyscod`, as clap has it.
pub fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// Runs `dyscod`.
pub fn dyscod() -> ExitCode {
    let Err(error) = run(Cli::parse()) else {
        return Exit::Done.into();
    };
    let exit = error.exit();
    if exit != Exit::Done {
        eprintln!("error: {error}");
    }
    exit.into()
}

/// Raises the limit of open files to the maximum that the host allows: a measurement holds
/// duplicates of a proxy's descriptors, which are many. Without them, removals are refused one by
/// one.
fn raise_limit_of_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(source) = raised {
        tracing::warn!("cannot raise the limit of open files: {source}");
    }
}

fn run(cli: Cli) -> Result<(), DaemonError> {
    if let Some(uid) = cli.handler {
        return Ok(handlers::run(uid)?);
    }
    // First of all, while this is the only thread.
    let instance = match (&cli.namespace, cli.parent) {
        (Some(name), Some(parent)) => Some(namespaces::enter(name, parent)?),
        _ => None,
    };
    let source = Source {
        file: cli.config,
        instance,
    };
    let config = namespaces::load(&source)?;
    let unserved = match &config.host.namespaces {
        Some(namespaces) => can_enter(namespaces)?,
        None => Vec::new(),
    };
    if cli.check {
        let policy = Policy::load(&config.chain.policy, &config.host.addresses)?;
        let checked = policy.as_ref().map_or(Ok(()), engine::check_policy);
        checked.map_err(DaemonError::Services)?;
        can_pin(&config.data_plane.pin_dir)?;
        can_listen(&config.control)?;
        let used = config.to_toml()?;
        let missing = config.listeners.iter().filter_map(missing_socket);
        let unusable = config.host.interfaces.iter().filter_map(|i| i.obstacle());
        let missing = missing.chain(unusable).chain(unserved);
        let missing: String = missing.map(|line| format!("# warning: {line}\n")).collect();
        print_line(&format!("{missing}{used}")).map_err(DaemonError::Print)?;
        return Ok(());
    }
    init_logging(&config.log, source.instance.as_ref())?;
    for missing in unserved.into_iter().chain(Rights::own().costs()) {
        tracing::warn!("{missing}");
    }
    if let Some(instance) = &source.instance {
        namespaces::take_places(&config, instance)?;
    }
    raise_limit_of_files();
    can_pin(&config.data_plane.pin_dir)?;
    // One thread: a removal is a dozen short steps, and waking another thread for the next costs
    // more than the step. Blocking work has separate threads.
    let realtime = config.scheduling.realtime;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().on_thread_start(move || {
        dysco_scheduling::take(realtime);
    });
    let runtime = runtime.build().map_err(DaemonError::Runtime)?;
    runtime.spawn(async {
        loop {
            tokio::time::sleep(log_repeats()).await;
        }
    });
    let ended = runtime.block_on(engine::run(config, source));
    leave(runtime, ENDING);
    log_last_repeats();
    Ok(ended?)
}

/// Prints a line. Returns an error if nobody reads it.
fn print_line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", text.trim_end())?;
    out.flush()
}

/// Waits for separate threads to end. A measurement may wait for a proxy, and must not hold up the
/// end of the process.
fn leave(runtime: tokio::runtime::Runtime, patience: Duration) {
    runtime.shutdown_timeout(patience);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_come_back_does_not_keep_dyscod() {
        let (keep, kept) = std::sync::mpsc::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.spawn_blocking(move || kept.recv());
        leave(runtime, Duration::ZERO);
        drop(keep);
    }

    fn bind(kind: io::ErrorKind) -> DaemonError {
        let bind = ControlError::Bind {
            address: ([10, 9, 9, 9], 7474).into(),
            source: kind.into(),
        };
        DaemonError::Engine(bind.into())
    }

    #[test]
    fn an_address_of_another_host_is_a_fault_of_the_configuration() {
        assert_eq!(bind(io::ErrorKind::AddrNotAvailable).exit(), Exit::Usage);
        assert_eq!(bind(io::ErrorKind::AddrInUse).exit(), Exit::Internal);
        let pins = AgentError::PinDirectory {
            path: "/tmp/pins".into(),
            source: io::ErrorKind::PermissionDenied.into(),
        };
        assert_eq!(DaemonError::Engine(pins.into()).exit(), Exit::Usage);
        let layout = AgentError::Layout {
            path: "/sys/fs/bpf/dysco/v1".into(),
        };
        assert_eq!(DaemonError::Engine(layout.into()).exit(), Exit::Usage);
        let other = DaemonError::Engine(EngineError::ControlEnded);
        assert_eq!(other.exit(), Exit::Internal);
    }

    #[test]
    fn who_may_not_read_the_configuration_is_not_allowed() {
        let read = |kind: io::ErrorKind| {
            DaemonError::Config(ConfigError::Read {
                path: DEFAULT_CONFIG.into(),
                source: kind.into(),
            })
        };
        assert_eq!(
            read(io::ErrorKind::PermissionDenied).exit(),
            Exit::NotAllowed
        );
        assert_eq!(read(io::ErrorKind::NotFound).exit(), Exit::Usage);
    }

    #[test]
    fn a_cause_is_reported_once() {
        let cause = io::Error::from(io::ErrorKind::AddrNotAvailable).to_string();
        let text = bind(io::ErrorKind::AddrNotAvailable).to_string();
        assert_eq!(text.matches(&cause).count(), 1, "{text}");
    }
}
