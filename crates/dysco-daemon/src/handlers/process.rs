//! The handler process: this program, which runs services and nothing else.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::Owner;
use super::error::Failed;

/// User of the system's handler (`nobody`), and group of all handlers.
pub(super) const NOBODY: u32 = 65_534;

/// Time for a service to return, at least; at most, it is twice as long.
const PATIENCE: Duration = Duration::from_secs(5);

/// A handler process: a child, or that of an earlier `dyscod`.
#[derive(Debug)]
pub(crate) enum Process {
    /// This process started it.
    Child(Child),
    /// An earlier process started it: its pid, and a handle that stays that process's.
    Other(u32, OwnedFd),
}

impl Process {
    /// Finds a process that an earlier `dyscod` started. It has just accepted a connection: the pid
    /// is still its own.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn other(pid: u32) -> io::Result<Process> {
        let named = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::InvalidData)?;
        let handle = pidfd_open(named, PidfdFlags::empty())?;
        Ok(Process::Other(pid, handle))
    }

    /// Returns its pid.
    pub(crate) fn pid(&self) -> u32 {
        match self {
            Process::Child(child) => child.id(),
            Process::Other(pid, _) => *pid,
        }
    }

    /// Kills it. It has closed its connection, or cannot be heard any more: it uses no socket after
    /// this, unless this process may not kill it (`CAP_KILL`).
    pub(crate) fn kill(&mut self) {
        let killed = match self {
            Process::Child(child) => child.kill().is_ok(),
            Process::Other(_, handle) => pidfd_send_signal(&*handle, Signal::KILL).is_ok(),
        };
        if killed {
            self.wait();
        }
    }

    /// Waits until it has ended.
    pub(crate) fn wait(&mut self) {
        match self {
            // An error means that somebody else has waited.
            Process::Child(child) => drop(child.wait()),
            Process::Other(_, handle) => {
                // The handle is readable from then on.
                let mut ended = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
                while poll(&mut ended, PollTimeout::NONE) == Err(Errno::EINTR) {}
            }
        }
    }
}

/// Starts the process of an owner, in the network namespace of this thread.
///
/// # Errors
/// If it cannot be started.
pub(super) fn start(owner: Owner, control: OwnedFd, listener: OwnedFd) -> io::Result<Process> {
    // The file of the program may have been replaced by another release.
    let child = Command::new("/proc/self/exe")
        .arg0("dyscod")
        .arg("--handler")
        .arg(owner.uid().to_string())
        .env_clear()
        // Signals of dyscod's terminal must not reach the handler.
        .process_group(0)
        .stdin(Stdio::from(control))
        .stdout(Stdio::from(listener))
        .spawn()?;
    Ok(Process::Child(child))
}

/// Runs the process as this user. Its standard input is the connection to `dyscod`, and its
/// standard output is the socket for later ones. Returns when it has nothing to do any more.
///
/// # Errors
/// If the kernel refuses what it needs.
pub(crate) fn run(uid: u32) -> Result<(), Failed> {
    let control = io::stdin().as_fd().try_clone_to_owned();
    let control = control.map_err(Failed::of("take the connection to dyscod"))?;
    let listener = io::stdout().as_fd().try_clone_to_owned();
    let listener = listener.map_err(Failed::of("take the socket for later connections"))?;
    dysco_runner::watch(PATIENCE).map_err(Failed::of("watch the services"))?;
    let confined = dysco_runner::confine(uid, NOBODY, None);
    for missing in confined.map_err(Failed::of("confine the handler"))? {
        eprintln!("warning: a handler is less confined than it could be: {missing}");
    }
    dysco_runner::run(control, Some(listener)).map_err(Failed::of("run services"))
}
