//! What the machine wants of its host.

use dysco_common::chain::Token;
use dysco_common::delta::Reach;
use dysco_common::two_paths::Cutoff;
use dysco_common::{Delta, Translation};
use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::event::HostEvent;
use super::message::{ChangeId, HostId, Probe, Scope, Subsession};

/// Which anchor a host is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Side {
    /// Its local end opened the session; it translates.
    Left,
    /// Its local end accepted the session; it only rewrites addresses.
    Right,
}

/// What the host has to do now, in the order given. All are idempotent: after
/// a restart the machine gives them again. Where the session is gone, answer
/// with [`HostEvent::SessionGone`].
#[derive(Clone, PartialEq, Eq, Debug, strum::IntoStaticStr)]
pub enum Command {
    /// Measure the middlebox on this session; answer [`HostEvent::Measured`].
    Measure {
        /// The change.
        change: ChangeId,
        /// Session A, or B where the right neighbour asked.
        subsession: Subsession,
    },
    /// Hold this session against other changes; answer [`HostEvent::Locked`].
    Lock {
        /// The change.
        change: ChangeId,
        /// The session.
        subsession: Subsession,
    },
    /// Hold both of the middlebox's sessions against other changes; answer
    /// [`HostEvent::PairLocked`].
    LockPair {
        /// The change.
        change: ChangeId,
        /// Session A.
        subsession_a: Subsession,
        /// Session B.
        subsession_b: Subsession,
    },
    /// Let go of it, or of the pair that it is the first of.
    Unlock {
        /// The change.
        change: ChangeId,
        /// The session.
        subsession: Subsession,
    },
    /// Reserve a five-tuple for the new path; answer [`HostEvent::Reserved`].
    Reserve {
        /// The change.
        change: ChangeId,
        /// The left anchor's session.
        subsession_a: Subsession,
        /// The right anchor's session.
        subsession_b: Subsession,
    },
    /// Give the reserved five-tuple back, or forget a path that was abandoned.
    Release {
        /// The change.
        change: ChangeId,
    },
    /// Enter two paths without a cutoff; answer [`HostEvent::TwoPaths`]. Does
    /// nothing where the session is in two paths or on the new path already.
    Prepare {
        /// The change.
        change: ChangeId,
        /// Which anchor this host is.
        side: Side,
        /// The session as the local socket knows it.
        own: Subsession,
        /// The subsession of the new path.
        new: Subsession,
        /// How headers differ.
        translation: Translation,
    },
    /// Enter two paths on both sessions of the middlebox, the second being the
    /// way through this host's data plane, without a cutoff; answer
    /// [`HostEvent::Prepared`]. Does nothing where that is done already.
    Join {
        /// The change.
        change: ChangeId,
        /// Session A.
        subsession_a: Subsession,
        /// Session B.
        subsession_b: Subsession,
        /// How headers differ, from the end of A's side.
        translation: Translation,
    },
    /// Send a SYN on the prepared path, which the right anchor's data plane answers;
    /// answer [`HostEvent::Tried`].
    Try {
        /// The change.
        change: ChangeId,
    },
    /// Leave two paths again, back to the old path. Never given after
    /// [`Command::Cut`], nor to be obeyed after it.
    Unprepare {
        /// The change.
        change: ChangeId,
    },
    /// Send new data on the new path; answer [`HostEvent::CutDone`], the same
    /// cutoff when it is cut already. After [`Command::Join`] both sessions are
    /// cut, each is told the other's cutoff, and [`HostEvent::Drained`] follows
    /// when both have drained.
    Cut {
        /// The change.
        change: ChangeId,
    },
    /// The first byte that arrives on the new path. [`HostEvent::Drained`]
    /// follows, perhaps at once; again when the command is given again.
    SetCutIn {
        /// The change.
        change: ChangeId,
        /// In the local end's own space.
        cutoff: Cutoff,
    },
    /// End the session with a reset for the local end, or for both ends of a pair: the
    /// middlebox has died with bytes that it had taken.
    Reset {
        /// The change.
        change: ChangeId,
    },
    /// See whether the right anchor's data plane answers on the new path; answer
    /// [`HostEvent::Looked`].
    Look {
        /// The change.
        change: ChangeId,
    },
    /// Hear the new path no more, unless the other end has acknowledged what the local
    /// one sent there, which no old path can carry; answer [`HostEvent::Deafened`].
    Deafen {
        /// The change.
        change: ChangeId,
    },
    /// Hear it again.
    Hear {
        /// The change.
        change: ChangeId,
    },
    /// After [`Command::Deafen`] at both anchors: everything takes the old path again,
    /// as far as this one is still the session's new path. Answer
    /// [`HostEvent::TakenBack`] once that is forgotten.
    TakeBack {
        /// The change.
        change: ChangeId,
        /// The new path.
        new: Subsession,
    },
    /// All packets take the new path from now on.
    Complete {
        /// The change.
        change: ChangeId,
    },
    /// Tombstones, then a silent close of the middlebox's two sockets; answer
    /// [`HostEvent::Closed`].
    Close {
        /// The change.
        change: ChangeId,
        /// Session A.
        subsession_a: Subsession,
        /// Session B.
        subsession_b: Subsession,
        /// No tombstones: the data plane relays between the two.
        relayed: bool,
    },
    /// Look out for what the client of this session answers to a segment that it
    /// has got before; answer [`HostEvent::Watching`]. [`HostEvent::Proved`]
    /// follows when it has.
    Watch {
        /// The change.
        change: ChangeId,
        /// Session A, or B.
        subsession: Subsession,
    },
    /// Send the client that segment, under the relaying host's address; answer
    /// [`HostEvent::Prepared`].
    Prove {
        /// The change.
        change: ChangeId,
        /// This host's session.
        subsession: Subsession,
        /// The session that the client knows.
        path: Subsession,
        /// The segment.
        probe: Probe,
        /// How headers differ, where the relaying host relays already.
        translation: Option<Translation>,
    },
    /// Send replies straight to the client; answer [`HostEvent::Prepared`].
    Return {
        /// The change.
        change: ChangeId,
        /// This host's session.
        subsession: Subsession,
        /// The session that the client knows.
        path: Subsession,
        /// How headers differ, from this end.
        translation: Translation,
    },
    /// Replies of this session, which this host relays, pass it by now.
    Returned {
        /// The change.
        change: ChangeId,
        /// Session A.
        subsession: Subsession,
    },
    /// What is known of a session that shall get another chain; answer
    /// [`HostEvent::Locked`].
    Hold {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
    },
    /// Make ready to pass a session on; answer [`HostEvent::Enlisted`].
    Enlist {
        /// The change.
        change: ChangeId,
        /// Who asked.
        from: HostId,
        /// The session.
        session: Subsession,
        /// The host to pass it on to.
        next: HostId,
        /// It passes this host already.
        stays: bool,
        /// Numbers of the paths by which it passes the segment now.
        paths: Vec<u32>,
        /// That of the path to come.
        number: u32,
    },
    /// Say by how much a middlebox of this host has changed a session that it
    /// passes on; answer [`HostEvent::DeltaKnown`].
    AskDelta {
        /// The change.
        change: ChangeId,
        /// Who asked.
        from: HostId,
        /// The session.
        session: Subsession,
    },
    /// Await another path of a session; answer [`HostEvent::Prepared`]. Does
    /// nothing where it is awaited, or there, already.
    Extend {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
        /// What its SYN will show.
        token: Token,
    },
    /// Have one host's firewall know what another's does of a session; answer
    /// [`HostEvent::StateMoved`].
    MoveState {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
        /// Who knows it.
        from: HostId,
        /// Who shall know it.
        to: HostId,
    },
    /// Open the path through a chain; answer [`HostEvent::Prepared`] when a
    /// firewall on it will take what follows, or if the delta cannot be.
    Open {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
        /// The hosts that it leads through.
        chain: Vec<HostId>,
        /// The last of them is the right anchor: the segment ends there.
        inner: bool,
        /// What the SYN has to show.
        token: Token,
        /// What the middleboxes that leave have added: the path speaks the numbers
        /// that are behind them.
        delta: Delta,
        /// How far the other end has sent and heard, a moment ago.
        right: Reach,
    },
    /// The hosts that a session passes from one host of its chain to another, or to
    /// its ends, are others now: take that down. May come twice.
    Splice {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
        /// From this host; none for the end that opened the session.
        left: Option<HostId>,
        /// To this; none for the other end.
        right: Option<HostId>,
        /// The hosts between them.
        hosts: Vec<HostId>,
        /// Number of the path that leads along them.
        number: u32,
    },
    /// Back to the path before, if another was taken, which is still heard.
    /// [`Command::Release`] forgets that.
    Abandon {
        /// The change.
        change: ChangeId,
    },
    /// Forget the entries of a session that this host passes on, and what its
    /// firewall knows of it, or the entries of one of its paths alone; answer
    /// [`HostEvent::Forgotten`].
    Forget {
        /// The change.
        change: ChangeId,
        /// Who asked.
        from: HostId,
        /// The session.
        session: Subsession,
        /// How much of it.
        scope: Scope,
        /// Numbers of the paths that are given up.
        paths: Vec<u32>,
    },
    /// Write this record before any later command is carried out and before
    /// any message is sent. On failure call [`HostEvent::PersistFailed`] at once.
    Persist {
        /// The change.
        change: ChangeId,
        /// Given back to `Machine::restore` after a restart.
        record: Vec<u8>,
    },
    /// Remove the record.
    Erase {
        /// The change.
        change: ChangeId,
    },
}

impl Command {
    /// Its name, in the log and for tests.
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// The change that it belongs to.
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
