//! Network namespaces of processes.

use std::fs;
use std::io;
use std::os::linux::fs::MetadataExt;
use std::path::PathBuf;

use dysco_explain::Cause;

/// A process in another network namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Elsewhere {
    /// Pid of the process in this process's pid namespace.
    pub pid: i32,
    /// Name of the process.
    pub name: String,
}

impl Elsewhere {
    /// Returns the inode of the network namespace, unless the process has ended.
    pub fn network(&self) -> Option<u64> {
        let namespace = fs::metadata(format!("/proc/{}/ns/net", self.pid)).ok()?;
        Some(namespace.st_ino())
    }

    /// Returns the cause and the hint.
    pub fn cause(&self) -> Cause {
        let Elsewhere { pid, name } = self;
        Cause::new(format!(
            "process {pid} ({name}) has its sockets in another network namespace, as in a \
             container or pod, and this dyscod sees those of its own alone"
        ))
        .hint(format!(
            "have namespaces under [host] name its network namespace, or run dyscod there, in the \
             container or pod or by 'nsenter -t {pid} -n', and ask that dyscod"
        ))
    }
}

/// Returns the network namespace of a process, or of the calling thread.
pub(crate) fn namespace(process: &str) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/net"))
}

/// Returns true if the process is in the network namespace of the calling thread, or if the
/// caller may not read its namespace. Returns false for a process that has ended or is about to
/// end.
pub(crate) fn is_ours(pid: i32) -> bool {
    match namespace(&pid.to_string()) {
        Ok(theirs) => namespace("thread-self").is_ok_and(|ours| ours == theirs),
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}
