//! Commands of the machine to its host.

use dysco_common::chain::Token;
use dysco_common::delta::Reach;
use dysco_common::two_paths::Cutoff;
use dysco_common::{Delta, Translation};
use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::event::HostEvent;
use super::message::{ChangeId, HostId, Probe, Scope, Subsession};

/// Side of an anchor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Side {
    /// The left anchor: its local end opened the session. It translates.
    Left,
    /// The right anchor: its local end accepted the session. It only rewrites addresses.
    Right,
}

/// An action of the host, to carry out now and in the order given. All commands are idempotent:
/// after a restart the machine gives them again. If the session is gone, the answer is
/// [`HostEvent::SessionGone`].
#[derive(Clone, PartialEq, Eq, Debug, strum::IntoStaticStr)]
pub enum Command {
    /// Measures the middlebox on this session. The answer is [`HostEvent::Measured`].
    Measure {
        /// The change.
        change: ChangeId,
        /// Session A, or session B if the right neighbour asked.
        subsession: Subsession,
    },
    /// Locks this session against other changes. The answer is [`HostEvent::Locked`].
    Lock {
        /// The change.
        change: ChangeId,
        /// The session.
        subsession: Subsession,
    },
    /// Locks both sessions of the middlebox against other changes. The answer is
    /// [`HostEvent::PairLocked`].
    LockPair {
        /// The change.
        change: ChangeId,
        /// Session A.
        subsession_a: Subsession,
        /// Session B.
        subsession_b: Subsession,
    },
    /// Unlocks this session, or the pair of which it is the first.
    Unlock {
        /// The change.
        change: ChangeId,
        /// The session.
        subsession: Subsession,
    },
    /// Reserves a five-tuple for the new path. The answer is [`HostEvent::Reserved`].
    Reserve {
        /// The change.
        change: ChangeId,
        /// The left anchor's session.
        subsession_a: Subsession,
        /// The right anchor's session.
        subsession_b: Subsession,
    },
    /// Returns the reserved five-tuple, or forgets a path that was abandoned.
    Release {
        /// The change.
        change: ChangeId,
    },
    /// Enters two paths without a cutoff. The answer is [`HostEvent::TwoPaths`]. Has no effect if
    /// the session is in two paths or on the new path already.
    Prepare {
        /// The change.
        change: ChangeId,
        /// Side of this host.
        side: Side,
        /// The session as the local socket has it.
        own: Subsession,
        /// The subsession of the new path.
        new: Subsession,
        /// Differences of the headers.
        translation: Translation,
    },
    /// Enters two paths on both sessions of the middlebox, without a cutoff. The second path is the
    /// one through this host's data plane. The answer is [`HostEvent::Prepared`]. Has no effect if
    /// this was done already.
    Join {
        /// The change.
        change: ChangeId,
        /// Session A.
        subsession_a: Subsession,
        /// Session B.
        subsession_b: Subsession,
        /// Differences of the headers, as the end on A's side needs them.
        translation: Translation,
    },
    /// Sends a SYN on the prepared path, which the right anchor's data plane answers. The answer is
    /// [`HostEvent::Tried`].
    Try {
        /// The change.
        change: ChangeId,
    },
    /// Leaves two paths and returns to the old path. Never given after [`Command::Cut`], and
    /// without effect after it.
    Unprepare {
        /// The change.
        change: ChangeId,
    },
    /// Sends new data on the new path. The answer is [`HostEvent::CutDone`], with the same cutoff
    /// if the session was cut already. After [`Command::Join`] both sessions are cut, each gets the
    /// other's cutoff, and [`HostEvent::Drained`] follows when both have drained.
    Cut {
        /// The change.
        change: ChangeId,
    },
    /// Sets the first byte that arrives on the new path. [`HostEvent::Drained`] follows, possibly
    /// at once, and follows again if the command is repeated.
    SetCutIn {
        /// The change.
        change: ChangeId,
        /// The cutoff, in the local end's own numbers.
        cutoff: Cutoff,
    },
    /// Ends the session with a reset for the local end, or for both ends of a pair, because the
    /// middlebox has died with bytes that it had acknowledged.
    Reset {
        /// The change.
        change: ChangeId,
    },
    /// Checks whether the right anchor's data plane answers on the new path. The answer is
    /// [`HostEvent::Looked`].
    Look {
        /// The change.
        change: ChangeId,
    },
    /// Stops receiving on the new path, unless the other end has acknowledged data that the local
    /// end sent on it: the old path cannot carry such an acknowledgement. The answer is
    /// [`HostEvent::Deafened`].
    Deafen {
        /// The change.
        change: ChangeId,
    },
    /// Resumes receiving on the new path.
    Hear {
        /// The change.
        change: ChangeId,
    },
    /// Returns everything to the old path, if `new` is still the session's new path. Given after
    /// [`Command::Deafen`] at both anchors. The answer is [`HostEvent::TakenBack`], once the new
    /// path is forgotten.
    TakeBack {
        /// The change.
        change: ChangeId,
        /// Subsession of the new path.
        new: Subsession,
    },
    /// Sends all packets on the new path.
    Complete {
        /// The change.
        change: ChangeId,
    },
    /// Puts tombstones, then closes the middlebox's two sockets without a packet. The answer is
    /// [`HostEvent::Closed`].
    Close {
        /// The change.
        change: ChangeId,
        /// Session A.
        subsession_a: Subsession,
        /// Session B.
        subsession_b: Subsession,
        /// True if the data plane relays between the two sessions; they get no tombstones.
        relayed: bool,
    },
    /// Watches for the answer of this session's client to a segment that the client has received
    /// before. The answer is [`HostEvent::Watching`]. [`HostEvent::Proved`] follows when the client
    /// has answered.
    Watch {
        /// The change.
        change: ChangeId,
        /// Session A or session B.
        subsession: Subsession,
    },
    /// Sends the client that segment under the relaying host's address. The answer is
    /// [`HostEvent::Prepared`].
    Prove {
        /// The change.
        change: ChangeId,
        /// Session of this host.
        subsession: Subsession,
        /// The session as the client knows it.
        path: Subsession,
        /// The segment.
        probe: Probe,
        /// Differences of the headers, if the relaying host relays already.
        translation: Option<Translation>,
    },
    /// Sends replies directly to the client. The answer is [`HostEvent::Prepared`].
    Return {
        /// The change.
        change: ChangeId,
        /// Session of this host.
        subsession: Subsession,
        /// The session as the client knows it.
        path: Subsession,
        /// Differences of the headers, as this end needs them.
        translation: Translation,
    },
    /// Records that the replies of this session, which this host relays, bypass this host.
    Returned {
        /// The change.
        change: ChangeId,
        /// Session A.
        subsession: Subsession,
    },
    /// Requests the facts about a session that is to get another chain. The answer is
    /// [`HostEvent::Locked`].
    Hold {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
    },
    /// Prepares to forward a session. The answer is [`HostEvent::Enlisted`].
    Enlist {
        /// The change.
        change: ChangeId,
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
        /// The change.
        change: ChangeId,
        /// Host that asked.
        from: HostId,
        /// The session.
        session: Subsession,
    },
    /// Awaits another path of a session. The answer is [`HostEvent::Prepared`]. Has no effect if
    /// the path is awaited or present already.
    Extend {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
        /// Token that the path's SYN will contain.
        token: Token,
    },
    /// Copies the state of a session from one host's firewall to another's. The answer is
    /// [`HostEvent::StateMoved`].
    MoveState {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
        /// Host whose firewall has the state.
        from: HostId,
        /// Host whose firewall gets the state.
        to: HostId,
    },
    /// Opens the path through a chain. The answer is [`HostEvent::Prepared`], once firewalls on the
    /// path will accept the packets that follow, or if the delta is impossible.
    Open {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
        /// Hosts of the new path.
        chain: Vec<HostId>,
        /// True if the last host of the chain is the right anchor, at which the segment ends.
        inner: bool,
        /// Token that the SYN has to contain.
        token: Token,
        /// Bytes that the leaving middleboxes have added. The path uses the numbers behind these
        /// middleboxes.
        delta: Delta,
        /// Numbers that the other end has sent and received, as of a moment ago.
        right: Reach,
    },
    /// Records the new hosts of a session's path between two hosts of its chain, or its ends. May
    /// be given twice.
    Splice {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
        /// Host at which this part begins; `None` for the end that opened the session.
        left: Option<HostId>,
        /// Host at which this part ends; `None` for the other end.
        right: Option<HostId>,
        /// Hosts between the two.
        hosts: Vec<HostId>,
        /// Number of the path through these hosts.
        number: u32,
    },
    /// Returns to the earlier path, if another was taken. The host still receives on the other path
    /// until [`Command::Release`] forgets it.
    Abandon {
        /// The change.
        change: ChangeId,
    },
    /// Forgets the entries of a session that this host forwards and the firewall's state of the
    /// session, or only the entries of one of its paths. The answer is [`HostEvent::Forgotten`].
    Forget {
        /// The change.
        change: ChangeId,
        /// Host that asked.
        from: HostId,
        /// The session.
        session: Subsession,
        /// Part to forget.
        scope: Scope,
        /// Numbers of the paths that are given up.
        paths: Vec<u32>,
    },
    /// Writes this record before any later command is carried out and before any message is sent.
    /// If this fails, the host reports [`HostEvent::PersistFailed`] at once.
    Persist {
        /// The change.
        change: ChangeId,
        /// The record, which `Machine::restore` gets after a restart.
        record: Vec<u8>,
    },
    /// Removes the record.
    Erase {
        /// The change.
        change: ChangeId,
    },
}

impl Command {
    /// Returns the name of the command, for the log and for tests.
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// Returns the change of the command.
    pub fn change(&self) -> ChangeId {
        match self {
            Command::Measure { change, .. }
            | Command::Lock { change, .. }
            | Command::LockPair { change, .. }
            | Command::Unlock { change, .. }
            | Command::Reserve { change, .. }
            | Command::Release { change }
            | Command::Prepare { change, .. }
            | Command::Join { change, .. }
            | Command::Try { change }
            | Command::Unprepare { change }
            | Command::Cut { change }
            | Command::SetCutIn { change, .. }
            | Command::Reset { change }
            | Command::Look { change }
            | Command::Deafen { change }
            | Command::Hear { change }
            | Command::TakeBack { change, .. }
            | Command::Complete { change }
            | Command::Close { change, .. }
            | Command::Watch { change, .. }
            | Command::Prove { change, .. }
            | Command::Return { change, .. }
            | Command::Returned { change, .. }
            | Command::Hold { change, .. }
            | Command::Enlist { change, .. }
            | Command::AskDelta { change, .. }
            | Command::Extend { change, .. }
            | Command::MoveState { change, .. }
            | Command::Open { change, .. }
            | Command::Splice { change, .. }
            | Command::Abandon { change }
            | Command::Forget { change, .. }
            | Command::Persist { change, .. }
            | Command::Erase { change } => *change,
        }
    }
}
