//! Bugs put in on purpose, to show that the check would find them. They act around the shipped
//! decisions, on their inputs and outputs.

use dysco_common::detour::{FromEnd, Way, phase};

/// A known bug of protocols of this kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Seed {
    /// The cutoff is one byte before the highest number that was sent.
    EarlyCutoff,
    /// The sender hears the new route before the old one has delivered everything.
    ReleasedAtOnce,
    /// The delta of the services is applied to the wrong direction.
    WrongDirection,
    /// The handler's sockets are closed once both directions have a cutoff to leave.
    NotDrained,
    /// A packet that is divided at the cutoff keeps its FIN.
    KeepsFin,
    /// No cutoff is set for a direction in which no packet comes.
    NeverStill,
    /// A cutoff that was sent counts as confirmed.
    Unconfirmed,
    /// A cutoff is sent to the other host only once.
    CutOnce,
    /// New data of the local end goes directly while both handlers have the session.
    PlainPassed,
    /// A host lets its own direction leave before the other host accepts direct packets.
    LeavesFirst,
    /// A host forgets the session before no data passes the other handler any more.
    ForgetsFirst,
    /// The other host's handler is not awaited before the session enters.
    EntersFirst,
    /// The other host's cutoff is not awaited: it is assumed to be the current end of the data.
    GuessedCutoff,
    /// A host that has forgotten a pair answers the other one's last message by the same message.
    EchoedOut,
    /// A host connects to the other one for each answer to its invitation.
    ConnectsTwice,
    /// The session is led past services that leave before it has entered them both ways.
    LeavesEarly,
    /// A daemon that starts again forgets a session that has left its handler, even if the other
    /// host does not know that yet.
    ForgetsAtStart,
    /// A daemon that starts again treats services as present although one direction has left them.
    StaysIn,
    /// A daemon that starts again treats services as gone although the session still leaves them.
    TakenForOut,
    /// A message of an earlier pair is treated as one of the present pair.
    StaleNames,
}

/// Applies a bug to a cutoff that was just set.
pub(super) fn cuts(seed: Option<Seed>, way: &mut Way) {
    match seed {
        Some(Seed::EarlyCutoff) => way.cut_at(way.cut.wrapping_sub(1)),
        Some(Seed::ReleasedAtOnce) => way.released = 1,
        _ => {}
    }
}

/// Applies a bug to the route of a packet of the local end.
pub(super) fn routes(seed: Option<Seed>, way: &Way, out: &mut FromEnd) {
    let inside = matches!(way.phase, phase::ENTERING | phase::THROUGH);
    if seed == Some(Seed::PlainPassed) && inside && out.to_socket {
        out.to_socket = false;
        out.copied = false;
    }
}
