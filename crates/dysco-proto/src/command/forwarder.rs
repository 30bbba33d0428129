//! Commands to the hosts of a chain.

#[cfg(doc)]
use super::super::event::HostEvent;
use super::super::message::Scope;
use super::super::names::{HostId, Subsession};

/// A command to a host that forwards a session, or will. The host has no part of the change, and
/// carries out each request, also a repeated one.
#[derive(Clone, PartialEq, Eq, Debug, strum::IntoStaticStr, strum::VariantNames)]
pub enum Forwarder {
    /// Prepares to forward a session. The answer is [`HostEvent::Enlisted`].
    Enlist {
        /// Host that asked.
        from: HostId,
        /// The session.
        session: Subsession,
        /// Host to forward the session to.
        next: HostId,
        /// True if the session passes this host already.
        stays: bool,
        /// Numbers of the paths by which the session passes the segment now.
        paths: Vec<u32>,
        /// Number of the new path.
        number: u32,
    },
    /// Requests the number of bytes by which a middlebox of this host has changed a session that
    /// this host forwards. The answer is [`HostEvent::DeltaKnown`].
    AskDelta {
        /// Host that asked.
        from: HostId,
        /// The session.
        session: Subsession,
    },
    /// Forgets the entries of a session that this host forwards and the firewall's state of the
    /// session, or only the entries of one of its paths. The answer is [`HostEvent::Forgotten`].
    Forget {
        /// Host that asked.
        from: HostId,
        /// The session.
        session: Subsession,
        /// Part to forget.
        scope: Scope,
        /// Numbers of the paths that are given up.
        paths: Vec<u32>,
    },
}
