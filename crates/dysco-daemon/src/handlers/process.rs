//! The handler process: this program, which runs services and nothing else.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::error::Failed;

/// User and group of handlers: nobody.
const NOBODY: u32 = 65_534;

/// A handler process: a child, or that of an earlier `dyscod`.
#[derive(Debug)]
pub enum Process {
    /// This process started it.
    Child(Child),
    /// An earlier process started it: its pid.
    Other(u32),
}

impl Process {
    /// Returns its pid.
    pub fn pid(&self) -> u32 {
        match self {
            Process::Child(child) => child.id(),
            Process::Other(pid) => *pid,
        }
    }

    /// Notices that it has ended. It has closed its connection, or cannot be heard any more: it uses no
    /// socket after this.
    pub fn reap(&mut self) {
        if let Process::Child(child) = self {
            // An error means that it has ended.
            let _ = child.kill();
            // An error means that somebody else has.
            let _ = child.wait();
        }
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
        // What a terminal sends to dyscod is not for the handler.
        .process_group(0)
        .stdin(Stdio::from(control))
        .stdout(Stdio::from(listener))
        .spawn()?;
    Ok(Process::Child(child))
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
