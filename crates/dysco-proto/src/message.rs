//! What daemons say to each other, and its form on the wire.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use dysco_common::chain::Token;
use dysco_common::delta::Reach;
use dysco_common::two_paths::{Cutoff, Fins};
use dysco_common::{Delta, Offer, Translation};
use serde::{Deserialize, Serialize};

use super::reason::{Phase, Reason};

mod order;
mod wire;

pub use order::{Margins, Order};
pub use wire::{DecodeError, EncodeError};

/// Version of the message layout: the first byte of each message.
pub const VERSION: u8 = 12;
/// Most bytes of one encoded message.
pub const MAX_MESSAGE: usize = 4096;

/// Names a change on all of its hosts. Of those of one host a later one is greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChangeId(pub [u8; 16]);

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A host, by one of its addresses. A host may have several; which of them
/// are one host's is what its certificate says.
pub type HostId = IpAddr;

/// The five-tuple between two neighbouring hosts (TCP is implied).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Subsession {
    /// The end that opened it.
    pub left: SocketAddr,
    /// The end that accepted it.
    pub right: SocketAddr,
}

impl fmt::Display for Subsession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {}", self.left, self.right)
    }
}

impl fmt::Debug for Subsession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a host's data plane knows of one of its sessions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Facts {
    /// What this host's end offered.
    pub local: Offer,
    /// What the other end offered, as it arrived here.
    pub remote: Offer,
    /// Last TSval that this host's end sent.
    pub tsval_out: u32,
    /// Last TSval that arrived here from the other end; 0 if none is known.
    pub tsval_in: u32,
    /// This host's end sent its FIN.
    pub fin_out: bool,
    /// The other end's FIN was seen.
    pub fin_in: bool,
    /// A reset was seen, either way.
    pub reset: bool,
    /// How far this host's end has sent and heard, as the wire has it; only of a
    /// session that gets another chain.
    pub reach: Reach,
}

/// What the middlebox's host measured of itself, at one still moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// Bytes written to B less bytes read from A.
    pub delta_forward: i64,
    /// Bytes written to A less bytes read from B.
    pub delta_reverse: i64,
    /// Session A, towards the left.
    pub a: Facts,
    /// Session B, towards the right.
    pub b: Facts,
    /// The timestamp clock of the middlebox's socket on A, now; 0 in what is
    /// only claimed, by which nothing is planned.
    pub clock_a: u32,
    /// The timestamp clock of the middlebox's socket on B, as `clock_a`.
    pub clock_b: u32,
    /// Session A's subsession.
    pub subsession_a: Subsession,
    /// Session B's, which the middlebox pairs with it.
    pub subsession_b: Subsession,
    /// The middlebox has left and this host's data plane relays: how headers
    /// differ, from the end of A's side.
    pub relay: Option<Translation>,
    /// The left neighbour has answered this host before: the right one may be asked
    /// beside it.
    pub left_answers: bool,
}

/// What a granted lock tells the left anchor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The right anchor's own subsession, whose numbers the new path speaks.
    pub subsession: Subsession,
    /// What the left anchor has to translate.
    pub translation: Translation,
}

/// A segment that a client has acknowledged before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Probe {
    /// The number after its last byte.
    pub end: u32,
    /// What it acknowledges.
    pub ack: u32,
    /// Its timestamps, where the session has any.
    pub clock: Option<(u32, u32)>,
    /// Bytes of data, of no meaning: they are discarded.
    pub len: u16,
}

/// A message between two daemons. In brackets who says it to whom.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, strum::IntoStaticStr)]
pub enum Message {
    /// [a neighbour to P] Please leave this session.
    Ask {
        /// The change it would be.
        change: ChangeId,
        /// The subsession between the two: A or B of the middlebox.
        subsession: Subsession,
    },
    /// [P to the asker] What became of it.
    Asked {
        /// The change.
        change: ChangeId,
        /// Removed, or why not.
        result: Result<(), Reason>,
    },
    /// [P to L] I want to leave: be the left anchor.
    Leave {
        /// The change.
        change: ChangeId,
        /// The subsession between the two.
        subsession: Subsession,
        /// The one on the other side of P, which the right anchor has.
        beyond: Subsession,
    },
    /// [P to R] I want to leave: lock this subsession for the left anchor.
    Introduce {
        /// The change.
        change: ChangeId,
        /// The subsession between the two.
        subsession: Subsession,
        /// The left anchor's host, which will set up the new path.
        left: HostId,
    },
    /// [R to P] Locked for it.
    Introduced {
        /// The change.
        change: ChangeId,
        /// What the right anchor knows of its session.
        facts: Facts,
    },
    /// [L to P] I have locked mine: what is the plan?
    RequestLock {
        /// The change.
        change: ChangeId,
        /// The subsession between the two.
        subsession: Subsession,
        /// What the left anchor knows of its session.
        facts: Facts,
        /// Names this request among those that the left anchor made for the
        /// change, in this process or a former one.
        attempt: [u8; 16],
    },
    /// [P to L] Locked, here and at the right anchor.
    AckLock {
        /// The change.
        change: ChangeId,
        /// The request's.
        attempt: [u8; 16],
        /// What follows of what the three know.
        plan: Plan,
    },
    /// [R to P, P to L, L to P] Not locked.
    NackLock {
        /// The change.
        change: ChangeId,
        /// Why not.
        reason: Reason,
    },
    /// [L to R] Prepare to hear the new path.
    SetUp {
        /// The change.
        change: ChangeId,
        /// The right anchor's subsession.
        subsession: Subsession,
        /// The one that is to replace it on the wire.
        new: Subsession,
        /// P has said that R is locked. If not, its word may still be on its way to R.
        locked: bool,
    },
    /// [R to L] The new path is heard.
    SetUpAck {
        /// The change.
        change: ChangeId,
        /// That path.
        new: Subsession,
        /// The FINs that R has seen on the old one.
        fins: Fins,
    },
    /// [R to L] It is not, and will not be.
    SetUpNack {
        /// The change.
        change: ChangeId,
        /// Why not.
        reason: Reason,
    },
    /// [L to R, then R to L; L to P for information] New data takes the new path.
    Switched {
        /// The change.
        change: ChangeId,
        /// First byte of it, as the wire of the new path numbers it.
        cutoff: Cutoff,
    },
    /// [L to R and P] The middlebox has died with bytes that it had taken: the session is
    /// over for both ends. Answered by `CancelAck`.
    Lost {
        /// The change.
        change: ChangeId,
        /// So many, where it was seen; 0 if none is known of.
        bytes: u32,
    },
    /// [R to L] The middlebox has ended my local end's session between two paths. Answered
    /// by `Lost`.
    Broken {
        /// The change.
        change: ChangeId,
        /// Bytes that it had taken and not delivered here; 0 if none is known of.
        bytes: u32,
    },
    /// [R to L] My local end has acknowledged all that came on the old path.
    Drained {
        /// The change.
        change: ChangeId,
    },
    /// [L to R, then L to P] Nothing of the old path is needed any more.
    Done {
        /// The change.
        change: ChangeId,
    },
    /// [R to L, P to L] I am done too.
    DoneAck {
        /// The change.
        change: ChangeId,
    },
    /// [L to P and R, P to R; P to L as a wish] All stays as it was.
    Cancel {
        /// The change.
        change: ChangeId,
        /// Why.
        reason: Reason,
    },
    /// [who was told] Rolled back.
    CancelAck {
        /// The change.
        change: ChangeId,
    },
    /// [P or R to L] What of this change? Answered by what the state implies:
    /// `Status`, `Switched`, `Done` or `Cancel`.
    Query {
        /// The change.
        change: ChangeId,
    },
    /// [L or P to who asked] Still at it.
    Status {
        /// The change.
        change: ChangeId,
        /// Where it is.
        phase: Phase,
    },
    /// [L to R, by P as well] Nobody answers on the new path any more: hear it no more, if
    /// all can be taken back still.
    Doubt {
        /// The change.
        change: ChangeId,
        /// Names this doubt among those of the change; a later one is greater.
        round: u32,
    },
    /// [R to L, by P as well] It is not heard here any more. Answered by `Keep`, `Back`,
    /// `Done` or `Cancel`.
    Deaf {
        /// The change.
        change: ChangeId,
        /// Which doubt this answers.
        round: u32,
    },
    /// [R to L, L to R, by P as well] The new path stays: what it has carried cannot be
    /// taken back.
    Keep {
        /// The change.
        change: ChangeId,
        /// Which doubt this ends.
        round: u32,
    },
    /// [L to P, P to R] L hears it no more either: take the old path again.
    Back {
        /// The change.
        change: ChangeId,
        /// Which doubt this ends.
        round: u32,
        /// Why.
        reason: Reason,
    },
    /// [P to R] Send my client this under my address.
    Prove {
        /// The change.
        change: ChangeId,
        /// The subsession between the two.
        subsession: Subsession,
        /// The session that the client knows.
        path: Subsession,
        /// What to send.
        probe: Probe,
        /// How headers differ, from R's end, where P relays already.
        translation: Option<Translation>,
    },
    /// [R to P] It is sent, or cannot be.
    ProveAck {
        /// The change.
        change: ChangeId,
        /// Sent or not.
        result: Result<(), Reason>,
    },
    /// [P to R] Send it your replies yourself, as I would.
    Return {
        /// The change.
        change: ChangeId,
        /// The subsession between the two.
        subsession: Subsession,
        /// The session that the client knows.
        path: Subsession,
        /// How headers differ, from R's end.
        translation: Translation,
    },
    /// [R to P] They are sent so, or are not.
    ReturnAck {
        /// The change.
        change: ChangeId,
        /// Done or not.
        result: Result<(), Reason>,
    },
    /// [L to a host of the new chain] You will be asked to pass this on.
    Enlist {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
        /// To this host.
        next: HostId,
        /// These hosts pass it on now.
        before: Vec<HostId>,
        /// Numbers of the paths that are in use between them.
        paths: Vec<u32>,
        /// That of the path to come. What a host has of later ones is none of this
        /// message's business.
        number: u32,
    },
    /// [that host to L] I can, or not.
    Enlisted {
        /// The change.
        change: ChangeId,
        /// Can it?
        result: Result<(), Reason>,
    },
    /// [L to a host of the old chain that is none of the new] By how much have you
    /// changed its stream?
    AskDelta {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
    },
    /// [that host to L] By so much, and by no more; or it does not know.
    TellDelta {
        /// The change.
        change: ChangeId,
        /// None, mostly.
        result: Result<Delta, Reason>,
    },
    /// [L to R] Await another path of this session.
    Extend {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
        /// What its SYN will show.
        token: Token,
    },
    /// [R to L] It is awaited, or is not any more.
    Extended {
        /// The change.
        change: ChangeId,
        /// What R knows of the session.
        result: Result<Facts, Reason>,
    },
    /// [R to L] The new path has carried all that L had sent, and it is
    /// acknowledged.
    Settled {
        /// The change.
        change: ChangeId,
    },
    /// [L to a host of either chain] Forget what you have of this session, or of
    /// one of its paths.
    Dismiss {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
        /// How much of it.
        scope: Scope,
        /// Numbers of the paths that are given up: what the host has of others stays.
        paths: Vec<u32>,
    },
    /// [that host to L] Forgotten.
    Dismissed {
        /// The change.
        change: ChangeId,
    },
    /// [who decides to a host of the chain] Be the left anchor. Answered by
    /// `Extended`.
    Lead {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
    },
    /// [who decides to L] Open the new path.
    Open {
        /// The change.
        change: ChangeId,
        /// The hosts that it leads through.
        chain: Vec<HostId>,
        /// What its SYN has to show.
        token: Token,
        /// How far R has sent and heard.
        right: Reach,
    },
    /// [L to who decides] It is open, or cannot be.
    Opened {
        /// The change.
        change: ChangeId,
        /// Open or not.
        result: Result<(), Reason>,
    },
    /// [who decides to L] Take the new path. Answered by `Switched`.
    Cut {
        /// The change.
        change: ChangeId,
    },
    /// [L to who decides] I take the path before, and hear the new one.
    Abandoned {
        /// The change.
        change: ChangeId,
    },
    /// [who decides to L] Nor does R take it: forget it.
    Release {
        /// The change.
        change: ChangeId,
    },
    /// [L to who decides] Forgotten.
    Released {
        /// The change.
        change: ChangeId,
    },
}

/// What a host of a chain is to forget.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Scope {
    /// The session, which has left it by this change.
    Session,
    /// The session, which was to come there by this change.
    Newcomer,
    /// The path before: the session passes there by its new one.
    PathBefore,
    /// The new path: the session passes there by the one before.
    NewPath,
    /// Nothing, since the new path was not opened: only what comes late of this change is
    /// to have no effect.
    Unopened,
}

impl Message {
    /// The change that it speaks of.
    pub fn change(&self) -> ChangeId {
        match self {
            Message::Ask { change, .. }
            | Message::Asked { change, .. }
            | Message::Leave { change, .. }
            | Message::Introduce { change, .. }
            | Message::Introduced { change, .. }
            | Message::RequestLock { change, .. }
            | Message::AckLock { change, .. }
            | Message::NackLock { change, .. }
            | Message::SetUp { change, .. }
            | Message::SetUpAck { change, .. }
            | Message::SetUpNack { change, .. }
            | Message::Switched { change, .. }
            | Message::Broken { change, .. }
            | Message::Lost { change, .. }
            | Message::Drained { change }
            | Message::Done { change }
            | Message::DoneAck { change }
            | Message::Cancel { change, .. }
            | Message::CancelAck { change }
            | Message::Query { change }
            | Message::Status { change, .. }
            | Message::Doubt { change, .. }
            | Message::Deaf { change, .. }
            | Message::Keep { change, .. }
            | Message::Back { change, .. }
            | Message::Prove { change, .. }
            | Message::ProveAck { change, .. }
            | Message::Return { change, .. }
            | Message::ReturnAck { change, .. }
            | Message::Enlist { change, .. }
            | Message::Enlisted { change, .. }
            | Message::AskDelta { change, .. }
            | Message::TellDelta { change, .. }
            | Message::Extend { change, .. }
            | Message::Extended { change, .. }
            | Message::Settled { change }
            | Message::Dismiss { change, .. }
            | Message::Dismissed { change }
            | Message::Lead { change, .. }
            | Message::Open { change, .. }
            | Message::Opened { change, .. }
            | Message::Cut { change }
            | Message::Abandoned { change }
            | Message::Release { change }
            | Message::Released { change } => *change,
        }
    }

    /// Its name, for logs and reports.
    pub fn name(&self) -> &'static str {
        self.into()
    }
}
