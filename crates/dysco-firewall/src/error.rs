//! Errors of a transfer of state, with a hint for the operator.

use std::{fmt, io};

use dysco_explain::{Cause, Explain, Explanation, display_explained};
use dysco_proto::KindName;

use super::five_tuple::FiveTuple;
use super::limits::{MAX_BYTES, MAX_DOCUMENTS, VERSION};

/// State could not be read, installed or removed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The kernel could not be asked, or reported an error.
    Kernel {
        /// The operation that failed.
        what: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The input is not a list of documents.
    Unreadable(String),
    /// The documents are too many, or too long.
    Oversized {
        /// Number of documents.
        documents: usize,
        /// Number of their bytes.
        bytes: usize,
    },
    /// The session has something here that cannot travel.
    Unmovable {
        /// The kind of state.
        kind: KindName,
        /// The session.
        session: FiveTuple,
        /// The part that cannot travel.
        what: &'static str,
    },
    /// The session has no state of a kind that was asked for.
    Nothing {
        /// The kind of state.
        kind: KindName,
        /// The session.
        session: FiveTuple,
    },
    /// A document must not be installed.
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
    Version(u32),
    /// The document is of another session.
    Foreign(FiveTuple),
    /// No session can have these five-tuples.
    Impossible,
    /// The state has an invalid value.
    Malformed(String),
    /// An element of a set names hosts or ports that are not the session's.
    ForeignElement(String),
    /// This host has no such set, or one of another type.
    NoSet(String),
    /// Another session has the translated five-tuple on this host.
    Taken(FiveTuple),
    /// The kernel did not keep a part of the state.
    NotKept(&'static str, &'static str),
    /// The kernel reported an error.
    Kernel(String),
}

display_explained!(StateError);

impl Explain for StateError {
    fn explain(&self) -> Explanation {
        let of = |does: &str, kind: &KindName, session: &FiveTuple| {
            format!("{does} the {kind} state of {session}")
        };
        match self {
            StateError::Kernel { what, source } => {
                let hint = hint(source).map(str::to_owned);
                let cause = Cause {
                    hint,
                    ..Cause::new(source)
                };
                cause.of(what)
            }
            StateError::Unreadable(why) => Explanation::new("read the state of a session", why)
                .hint("export it again, or see /usr/share/doc/dysco/state.md"),
            StateError::Oversized { documents, bytes } => Explanation::new(
                "take the state of a session",
                format!(
                    "{documents} documents of {bytes} bytes are more than {MAX_DOCUMENTS} of {MAX_BYTES}"
                ),
            )
            .hint("install the kinds one by one"),
            StateError::Unmovable {
                kind,
                session,
                what,
            } => Explanation::new(
                of("export", kind, session),
                format!("{what} cannot be moved"),
            )
            .hint("leave the session where it is, or take that out of the firewall's rules"),
            StateError::Nothing { kind, session } => {
                Explanation::new(of("export", kind, session), "there is none")
                    .hint("leave that kind out if the new host lets the session pass without")
            }
            StateError::Refused {
                kind,
                session,
                fault,
            } => fault.cause().of(of("install", kind, session)),
        }
    }
}

impl Fault {
    /// Returns the cause and the hint.
    pub fn cause(&self) -> Cause {
        match self {
            Fault::Version(version) => {
                Cause::new(format!("it is of version {version}, and this is {VERSION}"))
                    .hint("run the same release on both hosts")
            }
            Fault::Foreign(session) => Cause::new(format!(
                "it is not of the session {session}, of which state is awaited"
            ))
            .hint("ask for that one's"),
            Fault::Impossible => {
                Cause::new("no TCP session can have its five-tuples").hint("export it again")
            }
            Fault::Malformed(why) => {
                Cause::new(why).hint("export it again, or see /usr/share/doc/dysco/state.md")
            }
            Fault::ForeignElement(set) => Cause::new(format!(
                "an element of set {set} is not made of the session's addresses and ports"
            )),
            Fault::NoSet(set) => Cause::new(format!("there is no set {set} of that type here"))
                .hint("load the same ruleset on both firewalls"),
            Fault::Taken(session) => Cause::new(format!(
                "another session has {session} here already"
            ))
            .hint(
                "end that one, or give the firewalls different addresses or ports to translate to",
            ),
            Fault::NotKept(part, hint) => {
                Cause::new(format!("this kernel did not keep its {part}")).hint(hint)
            }
            Fault::Kernel(error) => {
                Cause::new(format!("the kernel says: {error}")).hint("see its log (dmesg)")
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause().fmt(f)
    }
}

fn hint(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EPERM => Some("run as root, with CAP_NET_ADMIN"),
        libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EINVAL => {
            Some("load nf_conntrack_netlink and nf_tables, or use a kernel that has them")
        }
        _ => None,
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
