//! Bugs put in on purpose, to show that the check would find them. They act around the machine, on
//! its inputs and its results. The machine itself contains none of this.

use dysco_common::transit::Stays;
use dysco_proto::{Message, Scope};

/// A bug that a protocol of this kind may have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Seed {
    /// The right anchor forgets the path before when it has switched.
    RightForgets,
    /// The left anchor treats its cancel as answered at once.
    NoAck,
    /// A left anchor on another host is assumed to be back on the path before at once.
    LeftNotBack,
    /// A cancel is sent once, and no host asks what became of the change.
    CancelOnce,
    /// A record is not written a second time.
    NoRecord,
    /// A second change starts from the chain as it was before the first change's success.
    SecondAnchor,
    /// Hosts that leave are not asked for their delta.
    DeltaUnasked,
    /// A host that remains reports no delta, although its middlebox has changed the stream.
    DeltaHidden,
    /// State is treated as installed as soon as it is requested.
    StateEarly,
    /// Installed state remains when the session does not reach the host after all.
    StateStays,
    /// An anchor acknowledges on a new path what that path has not carried.
    AcksUnseen,
    /// A new path is accepted for good before it has carried everything.
    SettlesEarly,
    /// An anchor that goes back to a path does not show that path's firewalls how far it has sent.
    BackUnannounced,
    /// A host that stays treats the later path as the one in use.
    TakesLast,
    /// A host whose daemon starts again collects the earlier path.
    CollectsLiving,
    /// The left anchor does not adjust numbers by the delta of a host that leaves.
    DeltaUnmoved,
    /// Packets on a path are delivered before the path has opened.
    HearsUnopened,
    /// A path is taken even if it alters numbers.
    ComparesNothing,
    /// The FIN that arrives by the direct path of a session that takes another is not recorded.
    LateEndMissed,
    /// The FIN that was recorded on a path is not copied when the path is given up.
    EndKept,
}

/// True if an operator's request names the chain that the session had at first.
pub(crate) fn is_outdated(seed: Option<Seed>) -> bool {
    seed == Some(Seed::SecondAnchor)
}

/// True if state is reported as installed before it is.
pub(crate) fn hurries_state(seed: Option<Seed>) -> bool {
    seed == Some(Seed::StateEarly)
}

/// True if the host at a place hides the delta of its middlebox. This host remains in the chain in
/// the configurations with this seed.
pub(crate) fn hides_delta(seed: Option<Seed>, place: usize) -> bool {
    seed == Some(Seed::DeltaHidden) && place == 2
}

/// True if a firewall keeps its state of a session that its host forgets.
pub(crate) fn keeps_state(seed: Option<Seed>, scope: Scope) -> bool {
    seed == Some(Seed::StateStays) && scope == Scope::Newcomer
}

/// True if a path may carry an acknowledgement of what it has not carried.
pub(crate) fn acks_unseen(seed: Option<Seed>) -> bool {
    seed == Some(Seed::AcksUnseen)
}

/// True if a path counts as having carried everything as soon as it is taken.
pub(crate) fn settles_early(seed: Option<Seed>) -> bool {
    seed == Some(Seed::SettlesEarly)
}

/// True if firewalls on the way back are shown nothing.
pub(crate) fn shows_nothing(seed: Option<Seed>) -> bool {
    seed == Some(Seed::BackUnannounced)
}

/// Returns which of two paths of a session a host keeps after its daemon was down.
pub(crate) fn guesses(seed: Option<Seed>, known: Stays) -> Stays {
    match seed {
        Some(Seed::TakesLast) => Stays::Later,
        _ => known,
    }
}

/// True if a daemon that starts again keeps one path of a session alone, without asking.
pub(crate) fn collects_living(seed: Option<Seed>) -> bool {
    seed == Some(Seed::CollectsLiving)
}

/// True if numbers stay as they are when a host leaves that has shifted them.
pub(crate) fn moves_nothing(seed: Option<Seed>) -> bool {
    seed == Some(Seed::DeltaUnmoved)
}

/// True if packets on a path are delivered before it has opened.
pub(crate) fn hears_unopened(seed: Option<Seed>) -> bool {
    seed == Some(Seed::HearsUnopened)
}

/// True if a path is taken as soon as its SYN is answered.
pub(crate) fn compares_nothing(seed: Option<Seed>) -> bool {
    seed == Some(Seed::ComparesNothing)
}

/// True if the end of a session is not seen on the path that was left.
pub(crate) fn misses_late_ends(seed: Option<Seed>) -> bool {
    seed == Some(Seed::LateEndMissed)
}

/// True if the end that a path has carried is forgotten with that path.
pub(crate) fn keeps_ends(seed: Option<Seed>) -> bool {
    seed == Some(Seed::EndKept)
}

/// True if the left anchor writes only the first record of each change.
pub(crate) fn forgets_records(seed: Option<Seed>) -> bool {
    seed == Some(Seed::NoRecord)
}

/// True if the message that a timer repeats is held back.
pub(super) fn silences(seed: Option<Seed>, message: &Message) -> bool {
    seed == Some(Seed::CancelOnce) && matches!(message, Message::Cancel { .. })
}

/// True if the message is never sent.
pub(crate) fn mutes(seed: Option<Seed>, message: &Message) -> bool {
    match seed {
        Some(Seed::CancelOnce) => matches!(message, Message::Query { .. }),
        Some(Seed::DeltaUnasked) => matches!(message, Message::AskDelta { .. }),
        _ => false,
    }
}
