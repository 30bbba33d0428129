//! The start of an instance: a process of this program that enters another network namespace before
//! it does anything else.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::linux::fs::MetadataExt;
use std::os::unix::process::parent_id;
use std::thread;
use std::time::Duration;

use dysco_config::{Config, ConfigError, Instance, Source};
use dysco_explain::{Cause, Explain, Explanation, display_explained};
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, Signal, signal};

use super::folder;

/// Interval at which a namespace without an address is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// An error while an instance enters its namespace.
#[derive(Debug, thiserror::Error)]
pub(crate) struct EnterError {
    /// Name of the namespace.
    name: String,
    /// Operation that failed.
    what: &'static str,
    /// Error of the operating system.
    source: io::Error,
}

display_explained!(EnterError);

impl Explain for EnterError {
    fn explain(&self) -> Explanation {
        let EnterError { name, what, source } = self;
        let why = Cause::new(format!("cannot {what}: {source}"));
        let why = match source.kind() {
            ErrorKind::PermissionDenied => {
                why.hint("give dyscod CAP_SYS_ADMIN in the user namespace that owns it")
            }
            _ => why,
        };
        why.of(format!("serve the network namespace {name}"))
    }
}

/// Enters the network namespace whose file is the standard input. The process ends with the one that
/// started it, whose pid is `parent`.
///
/// # Errors
/// If the kernel refuses it, or if the parent has ended.
pub(crate) fn enter(name: &str, parent: u32) -> Result<Instance, EnterError> {
    let failed = |what| {
        move |source: io::Error| EnterError {
            name: name.to_owned(),
            what,
            source,
        }
    };
    let error = |what| move |errno: nix::Error| failed(what)(errno.into());
    // A reload signals all instances. This one takes it once its engine runs, and reads the
    // configuration only then.
    // SAFETY: the signal is ignored, and no function handles it.
    unsafe { signal(Signal::SIGHUP, SigHandler::SigIgn) }.map_err(error("ignore SIGHUP"))?;
    // The program was started by the name of a link.
    prctl::set_name(c"dyscod").map_err(error("name the process"))?;
    prctl::set_pdeathsig(Signal::SIGTERM).map_err(error("follow the dyscod that started it"))?;
    if parent_id() != parent {
        let gone = io::Error::other("the dyscod that started it has ended");
        return Err(failed("follow")(gone));
    }
    setns(io::stdin(), CloneFlags::CLONE_NEWNET).map_err(error("enter it"))?;
    let inode = fs::metadata("/proc/self/ns/net").map_err(failed("read its number"))?;
    Ok(Instance {
        inode: inode.st_ino(),
        name: name.to_owned(),
    })
}

/// Reads the configuration of an instance, as soon as an interface of its namespace has an address.
///
/// # Errors
/// As [`Config::load`].
pub(crate) fn load(source: &Source) -> Result<Config, ConfigError> {
    loop {
        match Config::load_from(source) {
            Err(ConfigError::NoAddress(_)) => thread::sleep(LOOK),
            loaded => return loaded,
        }
    }
}

/// Prepares the directories of an instance.
///
/// # Errors
/// If the system refuses it.
pub(crate) fn take_places(config: &Config, instance: &Instance) -> Result<(), EnterError> {
    let places = config.own_places();
    folder::take(&places).map_err(|source| EnterError {
        name: instance.name.clone(),
        what: "make its directories",
        source,
    })
}
