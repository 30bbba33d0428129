//! Messages between daemons, and their form on the wire.

use dysco_common::chain::Token;
use dysco_common::delta::Reach;
use dysco_common::two_paths::Cutoff;
use dysco_common::{Delta, Element, Translation};
use serde::{Deserialize, Serialize};

use super::names::{ChangeId, HostId, Subsession};
use super::reason::{Phase, Reason};

mod facts;
mod head;
mod order;
mod scope;
mod wire;

pub use facts::{Facts, Measurement, Plan, Probe};
pub use order::{Margins, Order};
pub use scope::Scope;
pub use wire::{DecodeError, EncodeError};

/// Version of the messages, their layout and meaning: the first byte of each message.
pub const VERSION: u8 = 16;
/// Maximum number of bytes of one encoded message.
pub const MAX_MESSAGE: usize = 4096;

/// A message between two daemons. The brackets contain sender and receiver: P is the middlebox's
/// host, L the left anchor, R the right anchor.
#[derive(
    Clone,
    PartialEq,
    Eq,
    Hash,
    Debug,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantNames,
)]
pub enum Message {
    /// [a neighbour to P] Asks the middlebox to leave this session.
    Ask {
        /// Identifier that the change is to have.
        change: ChangeId,
        /// The subsession between the two hosts: A or B of the middlebox.
        subsession: Subsession,
    },
    /// [P to the asker] Reports the result of `Ask`.
    Asked {
        /// The change.
        change: ChangeId,
        /// Success if the middlebox was removed, or the reason against it.
        result: Result<(), Reason>,
    },
    /// [P to L] Announces that P wants to leave, and asks L to be the left anchor.
    Leave {
        /// The change.
        change: ChangeId,
        /// The subsession between the two hosts.
        subsession: Subsession,
        /// The subsession on the other side of P, which the right anchor has.
        beyond: Subsession,
    },
    /// [P to R] Announces that P wants to leave, and asks R to lock this subsession for the left
    /// anchor.
    Introduce {
        /// The change.
        change: ChangeId,
        /// The subsession between the two hosts.
        subsession: Subsession,
        /// Host of the left anchor, which will set up the new path.
        left: HostId,
    },
    /// [R to P] Reports that R is locked for the left anchor.
    Introduced {
        /// The change.
        change: ChangeId,
        /// Facts of the right anchor about its session.
        facts: Facts,
    },
    /// [L to P] Reports that L has locked its session, and requests the plan.
    RequestLock {
        /// The change.
        change: ChangeId,
        /// The subsession between the two hosts.
        subsession: Subsession,
        /// Facts of the left anchor about its session.
        facts: Facts,
        /// Identifier of this request among those that the left anchor has made for the change, in
        /// this process or in an earlier one.
        attempt: [u8; 16],
    },
    /// [P to L] Confirms the lock at P and at the right anchor.
    AckLock {
        /// The change.
        change: ChangeId,
        /// Identifier of the request that this message answers.
        attempt: [u8; 16],
        /// Plan that follows from the facts of the three hosts.
        plan: Plan,
    },
    /// [R to P, P to L, L to P] Refuses the lock.
    NackLock {
        /// The change.
        change: ChangeId,
        /// Reason of the refusal.
        reason: Reason,
    },
    /// [L to R] Asks R to prepare to receive on the new path.
    SetUp {
        /// The change.
        change: ChangeId,
        /// The right anchor's subsession.
        subsession: Subsession,
        /// The subsession that is to replace it on the wire.
        new: Subsession,
        /// True if P has reported that R is locked. If false, P's message to R may still be under
        /// way.
        locked: bool,
    },
    /// [R to L] Reports that R receives on the new path.
    SetUpAck {
        /// The change.
        change: ChangeId,
        /// Subsession of that path.
        new: Subsession,
    },
    /// [R to L] Reports that R does not receive on the new path, and will not. R also sends this
    /// message as a hint that the path rejects its answers, or that its session has ended.
    SetUpNack {
        /// The change.
        change: ChangeId,
        /// Reason of the refusal.
        reason: Reason,
    },
    /// [L to R, then R to L; L to P for information] Reports that new data takes the new path.
    Switched {
        /// The change.
        change: ChangeId,
        /// First byte on the new path, in the numbers of the new path's wire.
        cutoff: Cutoff,
    },
    /// [L to R and P] Reports that the middlebox has died with bytes that it had acknowledged: the
    /// session is over for both ends. `CancelAck` answers.
    Lost {
        /// The change.
        change: ChangeId,
        /// Number of these bytes; 0 if none is known.
        bytes: u32,
    },
    /// [R to L] Reports that the middlebox has ended the session of R's local end between two
    /// paths. `Lost` answers.
    Broken {
        /// The change.
        change: ChangeId,
        /// Number of bytes that the middlebox had acknowledged and not delivered here; 0 if none is
        /// known.
        bytes: u32,
    },
    /// [R to L] Reports that R's local end has acknowledged all data of the old path.
    Drained {
        /// The change.
        change: ChangeId,
    },
    /// [L to R, then L to P] Reports that the old path is not needed any more.
    Done {
        /// The change.
        change: ChangeId,
    },
    /// [R to L, P to L] Confirms `Done`.
    DoneAck {
        /// The change.
        change: ChangeId,
    },
    /// [L to P and R, P to R; P to L as a request] Cancels the change: everything stays as it was.
    Cancel {
        /// The change.
        change: ChangeId,
        /// Reason of the cancellation.
        reason: Reason,
    },
    /// [the receiver to the sender of a cancellation] Confirms that the change was rolled back,
    /// after `Cancel`, `Back` or `Lost`.
    CancelAck {
        /// The change.
        change: ChangeId,
    },
    /// [P or R to L] Asks for the state of the change. The answer follows from that state:
    /// `Status`, `Switched`, `Done` or `Cancel`.
    Query {
        /// The change.
        change: ChangeId,
    },
    /// [L or P to the asker] Reports that the change is still under way.
    Status {
        /// The change.
        change: ChangeId,
        /// Current phase of the change.
        phase: Phase,
    },
    /// [L to R, also by P] Reports that nobody answers on the new path any more. R stops receiving
    /// on that path if everything can still be taken back.
    Suspect {
        /// The change.
        change: ChangeId,
        /// Number of this check within the change; a later check has a greater number.
        round: u32,
    },
    /// [R to L, also by P] Reports that R does not receive on the new path any more. `Keep`,
    /// `Back`, `Done` or `Cancel` answers.
    Muted {
        /// The change.
        change: ChangeId,
        /// Number of the check that this message answers.
        round: u32,
    },
    /// [R to L, L to R, also by P] Reports that the new path stays, because the data that it has
    /// carried cannot be taken back.
    Keep {
        /// The change.
        change: ChangeId,
        /// Number of the check that this message ends.
        round: u32,
    },
    /// [L to P, P to R] Reports that L does not receive on the new path any more either, and
    /// returns the session to the old path.
    Back {
        /// The change.
        change: ChangeId,
        /// Number of the check that this message ends.
        round: u32,
        /// Reason of the return.
        reason: Reason,
    },
    /// [P to R] Asks R to send P's client this segment under P's address.
    Prove {
        /// The change.
        change: ChangeId,
        /// The subsession between the two hosts.
        subsession: Subsession,
        /// The session as the client knows it.
        path: Subsession,
        /// The segment to send.
        probe: Probe,
        /// Differences of the headers, as R's end needs them, if P relays already.
        translation: Option<Translation>,
    },
    /// [R to P] Reports that the segment was sent, or cannot be sent.
    ProveAck {
        /// The change.
        change: ChangeId,
        /// Success if it was sent, or the reason against it.
        result: Result<(), Reason>,
    },
    /// [P to R] Asks R to send its replies to the client itself, as P would.
    Return {
        /// The change.
        change: ChangeId,
        /// The subsession between the two hosts.
        subsession: Subsession,
        /// The session as the client knows it.
        path: Subsession,
        /// Differences of the headers, as R's end needs them.
        translation: Translation,
    },
    /// [R to P] Reports whether R sends its replies to the client.
    ReturnAck {
        /// The change.
        change: ChangeId,
        /// Success if it does, or the reason against it.
        result: Result<(), Reason>,
    },
    /// [L to a host of the new chain] Announces that this host will be asked to forward the
    /// session.
    Enlist {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
        /// Host to which this host shall forward it.
        next: HostId,
        /// Elements that the session passes now.
        before: Vec<Element>,
        /// Numbers of the paths that are in use between the anchors.
        paths: Vec<u32>,
        /// Number of the new path. This message does not concern later paths that a host has.
        number: u32,
    },
    /// [that host to L] Reports whether the host can forward the session.
    Enlisted {
        /// The change.
        change: ChangeId,
        /// Success if it can, or the reason against it.
        result: Result<(), Reason>,
    },
    /// [L to a host of the old chain] Asks by how much this host has changed the size of the
    /// session's stream. A host that stays, and an anchor that is in the chain, must have changed
    /// nothing.
    AskDelta {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
    },
    /// [that host to L] Reports that delta, which is final, or that the host does not know it.
    TellDelta {
        /// The change.
        change: ChangeId,
        /// The delta, mostly 0.
        result: Result<Delta, Reason>,
    },
    /// [L to R] Asks R to await another path of this session.
    Extend {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
        /// Token that the path's SYN will contain.
        token: Token,
    },
    /// [R to L] Reports that R awaits the path, or does not await it any more.
    Extended {
        /// The change.
        change: ChangeId,
        /// Facts of R about the session.
        result: Result<Facts, Reason>,
    },
    /// [R to L] Reports that the new path has carried all data that L had sent, and that this data
    /// is acknowledged.
    Settled {
        /// The change.
        change: ChangeId,
    },
    /// [L to a host of either chain] Asks the host to forget this session, or one of its paths.
    Dismiss {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
        /// Part that the host shall forget.
        scope: Scope,
        /// Numbers of the paths that are given up. The host keeps its state of other paths.
        paths: Vec<u32>,
    },
    /// [that host to L] Confirms that the host has forgotten that part.
    Dismissed {
        /// The change.
        change: ChangeId,
    },
    /// [the deciding host to a host of the chain] Asks that host to be the left anchor. `Extended`
    /// answers.
    Lead {
        /// The change.
        change: ChangeId,
        /// The session.
        session: Subsession,
    },
    /// [the deciding host to L] Asks L to open the new path.
    Open {
        /// The change.
        change: ChangeId,
        /// Elements of the new path.
        chain: Vec<Element>,
        /// Token that its SYN has to contain.
        token: Token,
        /// Numbers that R has sent and received so far.
        right: Reach,
    },
    /// [L to the deciding host] Reports that the path is open, or cannot be opened.
    Opened {
        /// The change.
        change: ChangeId,
        /// Success if it is open, or the reason against it.
        result: Result<(), Reason>,
    },
    /// [the deciding host to L] Orders L to take the new path. `Switched` answers.
    Cut {
        /// The change.
        change: ChangeId,
    },
    /// [L to the deciding host] Reports that L takes the earlier path again, and still receives on
    /// the new one.
    Abandoned {
        /// The change.
        change: ChangeId,
    },
    /// [the deciding host to L] Reports that R does not take the new path either, and asks L to
    /// forget it.
    Release {
        /// The change.
        change: ChangeId,
    },
    /// [L to the deciding host] Confirms that L has forgotten the path.
    Released {
        /// The change.
        change: ChangeId,
    },
}
