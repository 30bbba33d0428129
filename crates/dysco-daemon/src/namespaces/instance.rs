//! The process that serves one namespace: its start, its end, and the pause before another start.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::linux::fs::MetadataExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use dysco_api::NamespaceState;
use dysco_explain::Cause;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use super::find::Found;
use super::seen::Seen;

/// Pause before the second start. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// Time after which a process is regarded as a successful start.
const LASTING: Duration = Duration::from_secs(60);

/// A process of an instance.
pub(super) struct Process {
    child: Child,
    since: Instant,
}

impl Process {
    /// Starts the process for a namespace.
    ///
    /// # Errors
    /// If the namespace is gone, or the process cannot be started.
    pub(super) fn start(file: &Path, found: &Found, name: &str) -> io::Result<Process> {
        let namespace = File::open(&found.path)?;
        // Another process may have the number meanwhile.
        if namespace.metadata()?.st_ino() != found.inode {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the namespace is gone",
            ));
        }
        // The file of the program may have been replaced by another release.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("dyscod").arg("--config").arg(file);
        command.args([
            "--namespace",
            name,
            "--parent",
            &std::process::id().to_string(),
        ]);
        for variable in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
            command.env_remove(OsStr::new(variable));
        }
        let child = command.stdin(Stdio::from(namespace)).spawn()?;
        Ok(Process {
            child,
            since: Instant::now(),
        })
    }

    /// Returns the pid, until the end of the process has been noticed.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Returns the status of a process that has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends a signal. The pid stays that of this process until its end has been noticed.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            // An error means that it has ended.
            let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
        }
    }
}

/// State of the process for a namespace.
pub(super) enum State {
    /// It runs.
    Running(Process),
    /// It does not run, and is started at this time.
    Down {
        at: Instant,
        state: NamespaceState,
        why: Option<Cause>,
    },
}

/// A namespace that is served.
pub(super) struct Instance {
    /// The namespace, as it was last seen.
    pub seen: Seen,
    pub state: State,
    /// Pause before the next start.
    pause: Duration,
}

impl Instance {
    /// Creates the instance for a namespace, to be started at once.
    pub(super) fn new(seen: Seen) -> Instance {
        Instance {
            seen,
            state: State::Down {
                at: Instant::now(),
                state: NamespaceState::NoAddress,
                why: None,
            },
            pause: FIRST_PAUSE,
        }
    }

    /// Notices the end of the process.
    pub(crate) fn notice_end(&mut self, name: &str) {
        let State::Running(process) = &mut self.state else {
            return;
        };
        let Some(status) = process.ended() else {
            return;
        };
        if process.since.elapsed() >= LASTING {
            self.pause = FIRST_PAUSE;
        }
        let why = Cause::new(format!("its dyscod has ended: {status}"));
        tracing::warn!(namespace = name, pause = ?self.pause, "{why}; it is started again");
        self.down(why.hint("see the log for its error"));
    }

    /// Records that no process runs, and when the next one is started.
    pub(super) fn down(&mut self, why: Cause) {
        self.state = State::Down {
            at: Instant::now() + self.pause,
            state: NamespaceState::Failed,
            why: Some(why),
        };
        self.pause = (self.pause * 2).min(LAST_PAUSE);
    }

    /// True if the process runs, as far as is known.
    pub(super) fn runs(&self) -> bool {
        matches!(self.state, State::Running(_))
    }

    /// True if a process should be started now.
    pub(crate) fn is_due(&self) -> bool {
        matches!(self.state, State::Down { at, .. } if at <= Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_to_a_minute() {
        let mut instance = Instance::new(Seen::default());
        assert!(instance.is_due());
        let mut pauses = Vec::new();
        for _ in 0..8 {
            pauses.push(instance.pause.as_secs());
            instance.down(Cause::new("it ended"));
            assert!(!instance.is_due());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[tokio::test]
    async fn a_namespace_that_another_has_replaced_is_not_entered() {
        let mut found = Found {
            inode: 7,
            path: "/proc/self/ns/net".into(),
            ..Found::default()
        };
        let error = |found: &Found| Process::start(Path::new("/f"), found, "n").err();
        assert_eq!(error(&found).unwrap().kind(), io::ErrorKind::NotFound);
        found.path = "/none".into();
        assert_eq!(error(&found).unwrap().kind(), io::ErrorKind::NotFound);
    }
}
