//! The command line of `dyscod`.

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use dysco_api::DEFAULT_API_SOCKET;
use dysco_config::policy::Policy;
use dysco_config::{Config, Control, DEFAULT_CONFIG, Interface, Listener, init_logging};
use dysco_control::ControlError;
use dysco_scheduling as scheduling;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::context::{Context, print_line};
use super::exit::{self, CliError, Exit};
use super::output::Format;

/// What has a thread of its own may take this long once all else has ended.
const ENDING: Duration = Duration::from_secs(5);

/// Steers this host's TCP sessions, and lets proxies leave them.
#[derive(Debug, Parser)]
#[command(name = "dyscod", version, after_help = exit::HELP, max_term_width = 100)]
struct Cli {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,

    /// Only check it, and the policy: print what would be used, every default spelt out, or
    /// what is wrong
    ///
    /// What is only missing by now, such as HAProxy's socket, is a comment above it. Each key
    /// is described in docs/configuration.md.
    #[arg(long)]
    check: bool,
}

/// The whole of `dyscod`, around the engine.
pub fn dyscod<F>(engine: impl FnOnce(Config) -> F) -> ExitCode
where
    F: Future<Output = anyhow::Result<()>>,
{
    let context = Context {
        socket: DEFAULT_API_SOCKET.into(),
        named: false,
        format: Format::Table,
    };
    context.finish(run(Cli::parse(), engine)).into()
}

/// A measurement holds duplicates of a proxy's descriptors, of which that has many: as
/// many as the host allows at all. Without them removals are refused, one by one.
fn raise_limit_of_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(source) = raised {
        tracing::warn!("cannot raise the limit of open files: {source}");
    }
}

fn run<F>(cli: Cli, engine: impl FnOnce(Config) -> F) -> Result<Exit, CliError>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let config = Config::load(&cli.config)?;
    if cli.check {
        Policy::load(&config.chain.policy, &config.host.addresses)?;
        can_pin(&config.data_plane.pin_dir)?;
        can_listen(&config.control)?;
        let used = config.to_toml().map_err(|e| CliError::Engine(e.into()))?;
        let missing = config.listeners.iter().filter_map(missing_socket);
        let unusable = config
            .host
            .interfaces
            .iter()
            .filter_map(Interface::unusable);
        let missing = missing.chain(unusable.map(|[what, mend]| format!("{what}; {mend}")));
        let missing: String = missing.map(|line| format!("# warning: {line}\n")).collect();
        print_line(&format!("{missing}{used}"))?;
        return Ok(Exit::Done);
    }
    init_logging(&config.log)?;
    raise_limit_of_files();
    can_pin(&config.data_plane.pin_dir)?;
    // One thread: a removal is a dozen short steps, and waking another thread
    // for the next costs more than the step. What blocks has threads of its own.
    let realtime = config.scheduling.realtime;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().on_thread_start(move || {
        scheduling::take(realtime);
    });
    let runtime = runtime.build().map_err(CliError::Runtime)?;
    let ended = runtime.block_on(engine(config));
    leave(runtime, ENDING);
    ended.map_err(CliError::Engine)?;
    Ok(Exit::Done)
}

/// Elsewhere than on a BPF file system nothing can be pinned, which the kernel says late
/// and in words of its own.
pub fn can_pin(dir: &Path) -> Result<(), CliError> {
    let there = dir.ancestors().find(|path| path.exists());
    let kind = there.and_then(|path| statfs(path).ok());
    match kind.map(|kind| kind.filesystem_type()) {
        Some(kind) if kind != BPF_FS_MAGIC => Err(CliError::NoPins(dir.into())),
        _ => Ok(()),
    }
}

/// A HAProxy that is not there yet makes its socket when it starts: no error, but more
/// often a slip.
pub fn missing_socket(listener: &Listener) -> Option<String> {
    let socket = listener.haproxy_socket.as_ref()?;
    let what = match socket.metadata() {
        Ok(found) if found.file_type().is_socket() => return None,
        Ok(_) => "is no socket",
        Err(error) if error.kind() == io::ErrorKind::NotFound => "is not there",
        Err(_) => "cannot be looked at",
    };
    let (address, socket) = (listener.address, socket.display());
    Some(format!(
        "haproxy_socket of the listener {address}: {socket} {what}; see 'stats socket' of haproxy.cfg, unless HAProxy is to be started yet"
    ))
}

/// An address to listen on may be another host's, or one that this host has at times.
pub fn can_listen(control: &Control) -> Result<(), CliError> {
    for ip in &control.listen {
        // By any port, since a dyscod that runs has its own.
        let Err(source) = UdpSocket::bind((*ip, 0)) else {
            continue;
        };
        // Without the protocol dyscod does without the address, or says so at its start.
        if source.kind() == io::ErrorKind::AddrNotAvailable {
            let address = (*ip, control.port).into();
            return Err(CliError::Engine(
                ControlError::Bind { address, source }.into(),
            ));
        }
    }
    Ok(())
}

/// Lets what has threads of its own come to its end. A measurement may wait for a
/// proxy, which nobody else has to wait for.
fn leave(runtime: tokio::runtime::Runtime, patience: Duration) {
    runtime.shutdown_timeout(patience);
}

#[cfg(test)]
mod tests {
    use dysco_config::PkiPaths;

    use super::*;

    #[test]
    fn a_directory_for_pins_is_on_a_bpf_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let error = can_pin(&dir.path().join("not/there")).unwrap_err();
        assert_eq!(error.exit(), Exit::Usage);
        assert!(error.to_string().contains("pin_dir"), "{error}");
    }

    #[test]
    fn a_socket_of_haproxys_may_still_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        let told = |name: &str| {
            missing_socket(&Listener {
                address: ":8080".parse().unwrap(),
                transparent: None,
                haproxy_socket: Some(dir.path().join(name)),
            })
        };
        std::fs::write(dir.path().join("file"), "").unwrap();
        let _there = std::os::unix::net::UnixListener::bind(dir.path().join("there")).unwrap();
        assert!(told("none").unwrap().contains("none is not there; see"));
        assert!(told("file").unwrap().contains("is no socket"));
        assert_eq!(told("there"), None);
    }

    #[test]
    fn an_address_to_listen_on_is_this_hosts() {
        let listening = |address: [u8; 4]| Control {
            listen: vec![address.into()],
            port: 7474,
            peers: Vec::new(),
            pki: PkiPaths::in_dir(Path::new("/none")),
        };
        assert!(can_listen(&listening([127, 0, 0, 1])).is_ok());
        // For documentation (RFC 5737).
        let error = can_listen(&listening([192, 0, 2, 1])).unwrap_err();
        assert_eq!(error.exit(), Exit::Usage);
        assert!(error.to_string().contains("192.0.2.1:7474"), "{error}");
    }

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
}
