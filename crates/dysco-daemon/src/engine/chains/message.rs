//! Messages between daemons about chains, and about sessions that live elsewhere.

use std::net::IpAddr;

use dysco_proto::Subsession;
use serde::{Deserialize, Serialize};

/// First byte of these messages; those of the protocol begin with its version.
pub(super) const TAG: u8 = 0xc1;
/// Maximum number of hosts in one introduction, and in all.
pub(super) const FEW: usize = 16;
pub(in crate::engine) const MANY: usize = 1024;

/// Messages between daemons about chains, and about sessions that live elsewhere.
#[derive(Debug, Serialize, Deserialize, strum::IntoStaticStr)]
pub(in crate::engine) enum Message {
    /// The sender accepts the key of this name.
    Believed(u64),
    /// The receiver will be asked to pass sessions on to these hosts, and has to know them.
    Meet(Vec<IpAddr>),
    /// Asks whether the receiver accepts the key of this name. Its `Believed` was lost, if it was
    /// sent.
    IsBelieved(u64),
    /// Asks whether the receiver still holds this session.
    Has(Held),
    /// The sender no longer has the session of this subsession.
    HasNot(Subsession),
    /// Asks which of these sessions to the receiver live; the sender holds their ports.
    Lives(Vec<Subsession>),
    /// Sessions, each with true if it lives.
    Lived(Vec<(Subsession, bool)>),
    /// Asks by which of its paths this session passes the sender.
    WhichPath(Passes),
    /// Paths by which the session passes; none if it does not.
    InUse(InUse),
}

/// Session by its subsession, as two neighbours know it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::engine) struct Held {
    /// Subsession between the neighbours, from the one that opened it.
    pub path: Subsession,
    /// Names of the session, from the end that opened it.
    pub names: Vec<Subsession>,
    /// Initial sequence number of its SYN.
    pub isn: u32,
}

/// Session that passes a host, and the numbers of the paths by which it does.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::engine) struct Passes {
    /// Session as the host that opened it knows it.
    pub session: Subsession,
    /// Numbers of the paths, sorted and without duplicates.
    pub paths: Vec<u32>,
}

/// Answer of the host that opened the session: no change of the session is in progress.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::engine) struct InUse {
    /// Question.
    pub asked: Passes,
    /// Numbers of the paths in use; none if the asking host is not in the session's chain.
    pub now: Option<Vec<u32>>,
}

/// Returns true if it is one of these messages.
pub(in crate::engine) fn is_ours(message: &[u8]) -> bool {
    message.first() == Some(&TAG)
}
