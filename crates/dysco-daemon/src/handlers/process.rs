//! The handler process: this program, which runs services and nothing else.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::Failed;

/// User and group of handlers: nobody.
const NOBODY: u32 = 65_534;

/// A handler process.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Returns its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Notices that it has ended.
    pub fn reap(&mut self) {
        // An error means that somebody else has.
        let _ = self.child.try_wait();
    }
}

/// Starts the process, in the network namespace of this thread.
///
/// # Errors
/// If it cannot be started.
pub fn start(control: OwnedFd, listener: OwnedFd) -> io::Result<Process> {
    // The file of the program may have been replaced by another release.
    let child = Command::new("/proc/self/exe")
        .arg0("dyscod")
        .arg("--handler")
        .env_clear()
        .stdin(Stdio::from(control))
        .stdout(Stdio::from(listener))
        .spawn()?;
    Ok(Process { child })
}

/// Runs the process, whose standard input is the connection to `dyscod`, and whose standard output
/// is the socket for later ones. Returns when it has nothing to do any more.
///
/// # Errors
/// If the kernel refuses what it needs.
pub fn run() -> Result<(), Failed> {
    let control = io::stdin().as_fd().try_clone_to_owned();
    let control = control.map_err(Failed::of("take the connection to dyscod"))?;
    let listener = io::stdout().as_fd().try_clone_to_owned();
    let listener = listener.map_err(Failed::of("take the socket for later connections"))?;
    let confined = dysco_runner::confine(NOBODY, NOBODY, None);
    for missing in confined.map_err(Failed::of("confine the handler"))? {
        eprintln!("warning: a handler is less confined than it could be: {missing}");
    }
    dysco_runner::run(control, Some(listener)).map_err(Failed::of("run services"))
}
