//! Reasons for which the socket of a session is not tuned.

use std::fmt;
use std::io;

use dysco_api::SocketOption;
use dysco_explain::Cause;

use super::value::Value;
use crate::network::Elsewhere;

/// Reason for which a socket is not tuned.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// No socket of this host has the session.
    NoSocket,
    /// The socket is in another network namespace.
    Elsewhere(Elsewhere),
    /// The session is over, and the kernel remembers it for a while.
    Over,
    /// No process has the socket open.
    NoProcess,
    /// The socket is one of MPTCP.
    Multipath {
        /// Pid of the process.
        pid: i32,
    },
    /// The process belongs to another user.
    NotAllowed {
        /// Pid of the process.
        pid: i32,
    },
    /// The process has closed the socket, or has ended, in between.
    Gone {
        /// Pid of the process.
        pid: i32,
    },
    /// Another socket has the addresses of the one that was tuned.
    Replaced,
    /// The kernel has no such congestion control.
    NotAvailable {
        /// Name of the congestion control.
        wanted: String,
        /// Names that the kernel has.
        available: Vec<String>,
    },
    /// The process's descriptors cannot be duplicated.
    Take {
        /// Pid of the process.
        pid: i32,
        /// Error of the operating system.
        source: io::Error,
    },
    /// An option cannot be read.
    Read {
        /// The option.
        option: SocketOption,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The kernel refuses a value.
    Set {
        /// The option.
        option: SocketOption,
        /// The value.
        value: Value,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The kernel's list of sockets or `/proc` cannot be read.
    System {
        /// Object that was read.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl TuneError {
    /// Returns true if the socket of the session no longer exists, so that nothing can be put
    /// back.
    pub fn is_over(&self) -> bool {
        // A socket may be missing in the kernel's list, which changes while it is read.
        matches!(self, TuneError::Over | TuneError::Replaced)
    }

    /// Returns the cause and the hint.
    pub fn cause(&self) -> Cause {
        match self {
            TuneError::NoSocket => Cause::new("no socket of this host has it, by these addresses")
                .hint("ask on the host of one of its ends"),
            TuneError::Elsewhere(process) => process.cause(),
            TuneError::Over => Cause::new(
                "it is over: no process has its socket any more, and the kernel only waits for late packets",
            ),
            TuneError::NoProcess => Cause::new(
                "no process that dyscod can see has its socket open: it is one of the kernel's own (such as NFS), or its process has just closed it",
            )
            .hint("run dyscod in the host's process namespace, as root"),
            TuneError::Multipath { pid } => {
                Cause::new(format!("process {pid} has it open as an MPTCP socket"))
                    .hint("let the program use plain TCP (for programs in Go: GODEBUG=multipathtcp=0)")
            }
            TuneError::NotAllowed { pid } => {
                Cause::new(format!("process {pid} is not the caller's own")).hint("run as root")
            }
            TuneError::Gone { pid } => {
                Cause::new(format!("process {pid} has just closed the socket, or has ended"))
            }
            TuneError::Replaced => {
                Cause::new("another socket has its addresses now, which was not tuned")
            }
            TuneError::NotAvailable { wanted, available } => Cause::new(format!(
                "the kernel has no congestion control '{wanted}'; it has {}",
                available.join(", ")
            ))
            .hint(format!(
                "use one of these, or load it: 'modprobe tcp_{wanted}'"
            )),
            TuneError::Take { pid, source } => {
                Cause::new(format!("cannot duplicate the socket of process {pid}: {source}"))
                    .hint("give dyscod CAP_SYS_PTRACE")
            }
            TuneError::Read { option, source } => {
                Cause::new(format!("cannot read {option}: {source}"))
            }
            TuneError::Set {
                option,
                value,
                source,
            } => {
                let value = value.text(*option);
                let why = format!("the kernel does not set {option} to {value}: {source}");
                let cause = Cause::new(why);
                match source.kind() {
                    io::ErrorKind::PermissionDenied => cause.hint("give dyscod CAP_NET_ADMIN"),
                    // The module of the congestion control was removed meanwhile.
                    io::ErrorKind::NotFound => {
                        cause.hint(format!("load it: 'modprobe tcp_{value}'"))
                    }
                    _ => cause,
                }
            }
            TuneError::System { what, source } => {
                Cause::new(format!("cannot read {what}: {source}"))
                    .hint("give dyscod /proc, and CAP_SYS_PTRACE")
            }
        }
    }
}

impl fmt::Display for TuneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause().fmt(f)
    }
}
