//! Bugs put in on purpose, to show that the check would find them. They act around the machine, on
//! its inputs and outputs. The machine itself contains none of this.

use std::hash::{Hash, Hasher};

use dysco_common::tcp::FIN;
use dysco_common::two_paths::Fins;
use dysco_proto::{ChangeId, Machine, Message, Subsession};

use crate::plane::Packet;

pub(crate) mod local;

/// A known bug of protocols of this kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Seed {
    /// The last control message is sent once, so that its loss leaves the receiver waiting.
    LastAckOnce,
    /// A cancel is sent once, and no host asks what became of the change.
    CancelOnce,
    /// A time-out that was due before the cutover is acted on after it.
    LateTimeout,
    /// A set-up that arrives twice is carried out twice.
    DoubledSetUp,
    /// After a cancel, the next change is taken for the old one.
    StaleNames,
    /// The right anchor switches when it is set up, before the left anchor has switched.
    RightFirst,
    /// A host becomes an anchor again after the session has left its path.
    SecondAnchor,
    /// A host that is both anchors writes the record of the cutover after the cutover.
    RecordAfterCut,
    /// A host that is both anchors starts again without the record, and takes back what it has cut.
    ForgottenCut,
    /// A host that is both anchors relays when the first of its two sessions has drained.
    HalfDrained,
    /// The right anchor reports that it no longer receives on the new path, and still does.
    HearsOn,
    /// An end receives nothing of an old path that is behind what the end has received.
    StaysBehind,
    /// A new path is accepted for good before it has shown what was sent elsewhere.
    Unannounced,
    /// A host that is both anchors passes the proxy's acknowledgements to the ends, whether or not
    /// the data has arrived.
    ProxyBelieved,
    /// An end receives the FIN of a proxy that has died with bytes for it.
    ProxysEnd,
    /// A new path is taken though an end has received the FIN of a proxy that has died.
    ProxysEndUnnoticed,
    /// Packets on a new path are delivered before the path has opened.
    HearsUnopened,
    /// A new path is taken even if it alters numbers.
    ComparesNothing,
}

/// True if a host continues to receive on its new path although it reports the opposite.
pub(crate) fn hears_on(seed: Option<Seed>, place: usize) -> bool {
    seed == Some(Seed::HearsOn) && place == 2
}

/// Leaves the proxy's packet as it is for an end that is ahead. `said` is that packet.
pub(crate) fn stays_behind(seed: Option<Seed>, said: &Packet, delivered: &mut Packet) {
    if seed == Some(Seed::StaysBehind) {
        delivered.seg.seq = said.seg.seq;
    }
}

/// Returns the packet of the proxy that an end receives: `delivered`, or `said` with its FIN.
pub(crate) fn tells_proxys_end(
    seed: Option<Seed>,
    said: &Packet,
    delivered: Option<Packet>,
) -> Option<Packet> {
    match seed {
        Some(Seed::ProxysEnd) if said.seg.has(FIN) => Some(*said),
        _ => delivered,
    }
}

/// Returns the FINs of both anchors that are compared before a new path is taken.
pub(crate) fn compares(seed: Option<Seed>, seen: [Fins; 2]) -> [Fins; 2] {
    match seed {
        Some(Seed::ProxysEndUnnoticed) => Default::default(),
        _ => seen,
    }
}

/// True if draining does not require what the new path has to show.
pub(crate) fn is_drained_unannounced(seed: Option<Seed>) -> bool {
    seed == Some(Seed::Unannounced)
}

/// True if packets on a new path are delivered before it has opened.
pub(crate) fn hears_unopened(seed: Option<Seed>) -> bool {
    seed == Some(Seed::HearsUnopened)
}

/// True if a new path is taken as soon as anything answers there.
pub(crate) fn compares_nothing(seed: Option<Seed>) -> bool {
    seed == Some(Seed::ComparesNothing)
}

/// True if a session may be locked that now takes another path.
pub(crate) fn locks_changed(seed: Option<Seed>) -> bool {
    seed == Some(Seed::SecondAnchor)
}

/// Memory of a seeded bug on a host.
#[derive(Clone, Default)]
pub struct Memory {
    /// Path that was prepared last.
    pub prepared: Option<(ChangeId, Subsession, dysco_common::Translation)>,
    /// The left anchor as it was before its cutover.
    pub before: Option<Box<Machine>>,
    /// Record that is still to be written.
    pub record: Option<Vec<u8>>,
}

impl Hash for Memory {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The prepared path follows from the rest of the host.
        (&self.before, &self.record).hash(state);
    }
}

/// Returns the source of identifiers.
pub(crate) fn ids(seed: Option<Seed>) -> fn(usize, u8) -> [u8; 8] {
    match seed {
        Some(Seed::StaleNames) => |_, _| [0xff; 8],
        _ => |place, life| [place as u8, life, 0, 0, 0, 0, 0, 0],
    }
}

/// True if the message that a timer repeats is held back.
pub(crate) fn silences(seed: Option<Seed>, message: &Message) -> bool {
    match seed {
        Some(Seed::LastAckOnce) => matches!(message, Message::Done { .. }),
        Some(Seed::CancelOnce) => matches!(message, Message::Cancel { .. }),
        _ => false,
    }
}

/// True if the message is never sent.
pub(crate) fn mutes(seed: Option<Seed>, message: &Message) -> bool {
    seed == Some(Seed::CancelOnce) && matches!(message, Message::Query { .. })
}
