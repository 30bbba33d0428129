//! Errors of a transfer of state, with a remedy for the operator.

use std::io;

use dysco_proto::KindName;

use super::document::{FiveTuple, MAX_BYTES, MAX_DOCUMENTS, VERSION};

/// State could not be read, installed or removed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The kernel could not be asked, or reported an error.
    #[error("failed to {what}: {source}{mend}", mend = mend(source))]
    Kernel {
        /// The operation that failed.
        what: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The input is not a list of documents.
    #[error("failed to read the state of a session: {0}; export it again, or see docs/state.md")]
    Unreadable(String),
    /// The documents are too many, or too long.
    #[error(
        "failed to take the state of a session: {documents} documents of {bytes} bytes are more than {MAX_DOCUMENTS} of {MAX_BYTES}; install the kinds one by one"
    )]
    Oversized {
        /// Number of documents.
        documents: usize,
        /// Number of their bytes.
        bytes: usize,
    },
    /// The session has something here that cannot travel.
    #[error(
        "failed to export the {kind} state of {session}: {what} cannot be moved; leave the session where it is, or take that out of the firewall's rules"
    )]
    Unmovable {
        /// The kind of state.
        kind: KindName,
        /// The session.
        session: FiveTuple,
        /// The part that cannot travel.
        what: &'static str,
    },
    /// The session has no state of a kind that was asked for.
    #[error(
        "failed to export the {kind} state of {session}: there is none; leave that kind out if the new host lets the session pass without"
    )]
    Nothing {
        /// The kind of state.
        kind: KindName,
        /// The session.
        session: FiveTuple,
    },
    /// A document must not be installed.
    #[error("failed to install the {kind} state of {session}: {fault}")]
    Refused {
        /// The kind of state.
        kind: KindName,
        /// The session that the document names.
        session: FiveTuple,
        /// The reason.
        fault: Box<Fault>,
    },
}

/// Fault of a document, or of this host with respect to it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// The document is of another version.
    #[error("it is of version {0}, and this is {VERSION}; run the same release on both hosts")]
    Version(u32),
    /// The document is of another session.
    #[error("it is not of the session {0}, of which state is awaited; ask for that one's")]
    Foreign(FiveTuple),
    /// No session can have these five-tuples.
    #[error("no TCP session can have its five-tuples; export it again")]
    Impossible,
    /// The state has an invalid value.
    #[error("{0}; export it again, or see docs/state.md")]
    Malformed(String),
    /// An element of a set names hosts or ports that are not the session's.
    #[error("an element of set {0} is not made of the session's addresses and ports")]
    ForeignElement(String),
    /// This host has no such set, or one of another type.
    #[error("there is no set {0} of that type here; load the same ruleset on both firewalls")]
    NoSet(String),
    /// Another session has the translated five-tuple on this host.
    #[error(
        "another session has {0} here already; end that one, or give the firewalls different addresses or ports to translate to"
    )]
    Taken(FiveTuple),
    /// The kernel did not keep a part of the state.
    #[error("this kernel did not keep its {0}; {1}")]
    NotKept(&'static str, &'static str),
    /// The kernel reported an error.
    #[error("the kernel says: {0}; see its log (dmesg)")]
    Kernel(String),
}

fn mend(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => "; run as root, with CAP_NET_ADMIN",
        Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EINVAL) => {
            "; load nf_conntrack_netlink and nf_tables, or use a kernel that has them"
        }
        _ => "",
    }
}

impl StateError {
    /// True if the request is at fault, and not this host.
    pub fn is_bad_request(&self) -> bool {
        match self {
            StateError::Oversized { .. } | StateError::Unreadable(_) => true,
            StateError::Refused { fault, .. } => match **fault {
                Fault::Version(_)
                | Fault::Foreign(_)
                | Fault::Impossible
                | Fault::Malformed(_)
                | Fault::ForeignElement(_) => true,
                Fault::NoSet(_) | Fault::Taken(_) | Fault::NotKept(..) | Fault::Kernel(_) => false,
            },
            StateError::Kernel { .. }
            | StateError::Unmovable { .. }
            | StateError::Nothing { .. } => false,
        }
    }
}
