//! Authorisation of messages. A peer is the set of all addresses that its certificate names.

use super::context::Core;
use super::dsr::Dsr;
use super::head::Head;
use super::lead::Lead;
use super::left::Left;
use super::local::Local;
use super::message::Message;
use super::middle::Middle;
use super::names::{HostId, Subsession};
use super::part::{AsRight, Part};
use super::proof::Proof;
use super::report::Violation;
use super::right::Right;
use super::tail::Tail;

/// Checks whether a known change expects this message from this peer.
pub(super) fn known(part: &Part, from: &[HostId], message: &Message) -> Result<AsRight, Violation> {
    match part {
        Part::Left(left) => of_left(left, from, message),
        Part::Middle(middle) => of_middle(middle, from, message),
        Part::Right(right) => of_right(right, from, message),
        Part::Local(local) => of_local(local, from, message),
        Part::Proof(proof) => of_proof(proof, from, message),
        Part::Dsr(dsr) => of_dsr(dsr, from, message),
        Part::Head(head) => of_head(head, from, message),
        Part::Tail(tail) => of_tail(tail, from, message),
        Part::Lead(lead) => of_lead(lead, from, message),
    }
}

fn expect(allowed: bool, as_right: bool) -> Result<AsRight, Violation> {
    if allowed {
        Ok(AsRight(as_right))
    } else {
        Err(Violation::NotItsPart)
    }
}

fn of_left(left: &Left, from: &[HostId], message: &Message) -> Result<AsRight, Violation> {
    let middle = from.contains(&left.middle());
    let right = from.contains(&left.right());
    match message {
        Message::Leave {
            subsession, beyond, ..
        } => {
            let same = (*subsession, *beyond) == (left.subsession(), left.beyond());
            expect(middle && same, false)
        }
        Message::AckLock { .. } | Message::NackLock { .. } | Message::Cancel { .. } => {
            expect(middle, false)
        }
        Message::SetUpAck { .. }
        | Message::SetUpNack { .. }
        | Message::Switched { .. }
        | Message::Broken { .. }
        | Message::Drained { .. } => expect(right, true),
        Message::Muted { .. } | Message::Keep { .. } => expect(middle || right, right),
        Message::DoneAck { .. } | Message::CancelAck { .. } | Message::Query { .. } => {
            expect(middle || right, right)
        }
        // This host may have asked too, without waiting for the answer.
        Message::Asked { .. } | Message::Status { .. } => expect(middle, false),
        _ => Err(Violation::NotItsPart),
    }
}

fn of_middle(middle: &Middle, from: &[HostId], message: &Message) -> Result<AsRight, Violation> {
    let left = from.contains(&middle.left());
    let right = middle.right().is_some_and(|r| from.contains(&r));
    match message {
        Message::Ask { .. } => {
            let asker = middle.asker().is_some_and(|a| from.contains(&a));
            expect(asker, false)
        }
        Message::RequestLock { subsession, .. } => {
            expect(left && *subsession == middle.subsession(), false)
        }
        Message::Introduced { .. } | Message::Muted { .. } => expect(right, true),
        Message::Suspect { .. } | Message::Back { .. } => expect(left, false),
        Message::Keep { .. } => expect(left || right, right),
        // The left anchor also answers a repeated `Cancel`.
        Message::NackLock { .. } | Message::CancelAck { .. } => expect(left || right, right),
        Message::Switched { .. }
        | Message::Done { .. }
        | Message::Cancel { .. }
        | Message::Lost { .. }
        | Message::Status { .. } => expect(left, false),
        _ => Err(Violation::NotItsPart),
    }
}

fn of_local(local: &Local, from: &[HostId], message: &Message) -> Result<AsRight, Violation> {
    let asks = matches!(message, Message::Ask { .. });
    let asker = local.asker().is_some_and(|a| from.contains(&a));
    expect(asks && asker, false)
}

fn of_proof(proof: &Proof, from: &[HostId], message: &Message) -> Result<AsRight, Violation> {
    let right = proof.right().is_some_and(|r| from.contains(&r));
    let answers = matches!(
        message,
        Message::ProveAck { .. } | Message::ReturnAck { .. }
    );
    expect(answers && right, true)
}

fn of_dsr(dsr: &Dsr, from: &[HostId], message: &Message) -> Result<AsRight, Violation> {
    match message {
        Message::Prove {
            subsession, path, ..
        }
        | Message::Return {
            subsession, path, ..
        } => {
            let its = from.contains(&dsr.middle()) && *subsession == dsr.subsession();
            expect(its, false)?;
            lent(from, subsession, path)
        }
        _ => Err(Violation::NotItsPart),
    }
}

fn of_head(head: &Head, from: &[HostId], message: &Message) -> Result<AsRight, Violation> {
    let right = from.contains(&head.right());
    let left = head.is_left(from);
    match message {
        Message::Extended { .. }
        | Message::Switched { .. }
        | Message::Settled { .. }
        | Message::DoneAck { .. }
        | Message::CancelAck { .. }
        | Message::Query { .. } => expect(right || left, right),
        Message::Opened { .. } | Message::Abandoned { .. } | Message::Released { .. } => {
            expect(left, false)
        }
        Message::Enlisted { .. } | Message::TellDelta { .. } | Message::Dismissed { .. } => {
            expect(head.members().any(|m| from.contains(&m)), false)
        }
        _ => Err(Violation::NotItsPart),
    }
}

fn of_tail(tail: &Tail, from: &[HostId], message: &Message) -> Result<AsRight, Violation> {
    let left = from.contains(&tail.left());
    match message {
        Message::Extend { session, .. } | Message::AskDelta { session, .. } => {
            expect(left && *session == tail.session(), false)
        }
        Message::Switched { .. }
        | Message::Done { .. }
        | Message::Cancel { .. }
        | Message::Status { .. } => expect(left, false),
        _ => Err(Violation::NotItsPart),
    }
}

fn of_lead(lead: &Lead, from: &[HostId], message: &Message) -> Result<AsRight, Violation> {
    let head = from.contains(&lead.head());
    match message {
        Message::Lead { session, .. } | Message::AskDelta { session, .. } => {
            expect(head && *session == lead.session(), false)
        }
        Message::Open { .. }
        | Message::Cut { .. }
        | Message::Switched { .. }
        | Message::Done { .. }
        | Message::Cancel { .. }
        | Message::Release { .. }
        | Message::Status { .. } => expect(head, false),
        _ => Err(Violation::NotItsPart),
    }
}

/// Checks a lent address: a peer lends only its own address, of the session's family.
fn lent(from: &[HostId], own: &Subsession, path: &Subsession) -> Result<AsRight, Violation> {
    let family = own.right.is_ipv4();
    let same = [path.left, path.right]
        .iter()
        .all(|end| end.is_ipv4() == family);
    if same && from.contains(&path.right.ip()) {
        Ok(AsRight(false))
    } else {
        Err(Violation::ForeignPath)
    }
}

fn of_right(right: &Right, from: &[HostId], message: &Message) -> Result<AsRight, Violation> {
    let middle = from.contains(&right.middle());
    let left = from.contains(&right.left());
    let own = right.subsession();
    match message {
        Message::Introduce {
            subsession,
            left: l,
            ..
        } => expect(middle && *subsession == own && *l == right.left(), false),
        Message::SetUp {
            subsession, new, ..
        } => {
            expect(left && *subsession == own, true)?;
            new_path(right, new)
        }
        Message::Switched { .. } | Message::Done { .. } | Message::Lost { .. } => {
            expect(left, true)
        }
        Message::Suspect { .. } | Message::Keep { .. } => expect(left || middle, left),
        Message::Back { .. } => expect(middle, false),
        Message::Cancel { .. } => expect(left || middle, left),
        // This host may have asked too, without waiting for the answer.
        Message::Asked { .. } => expect(middle, false),
        Message::Status { .. } => expect(left || middle, left),
        _ => Err(Violation::NotItsPart),
    }
}

/// Checks that a new path joins the two anchors and keeps the server's port. Any other path would
/// send this host's packets to a stranger.
fn new_path(right: &Right, new: &Subsession) -> Result<AsRight, Violation> {
    let own = right.subsession();
    if new.right == own.right && new.left.ip() == right.left() && *new != own {
        Ok(AsRight(true))
    } else {
        Err(Violation::ForeignPath)
    }
}

/// Checks whether this peer may begin an unknown change, or speak of its session.
pub(super) fn stranger(core: &Core, from: &[HostId], message: &Message) -> Result<(), Violation> {
    match message {
        // The right end of the subsession asks to leave, and the left end is this host. The right
        // end opened the other subsession.
        Message::Leave {
            subsession, beyond, ..
        } => {
            ends(core, from, subsession.right.ip(), subsession.left.ip())?;
            match from.contains(&beyond.left.ip()) {
                true => Ok(()),
                false => Err(Violation::NotItsSubsession),
            }
        }
        // From the left neighbour, also if that is a middlebox that names the anchor.
        Message::Introduce { subsession, .. } | Message::RequestLock { subsession, .. } => {
            ends(core, from, subsession.left.ip(), subsession.right.ip())
        }
        Message::Ask { subsession, .. } => {
            let (l, r) = (subsession.left.ip(), subsession.right.ip());
            ends(core, from, l, r).or_else(|_| ends(core, from, r, l))
        }
        Message::SetUp {
            subsession, new, ..
        } => ends(core, from, new.left.ip(), subsession.right.ip()),
        Message::Prove {
            subsession, path, ..
        }
        | Message::Return {
            subsession, path, ..
        } => {
            ends(core, from, subsession.left.ip(), subsession.right.ip())?;
            lent(from, subsession, path).map(|_| ())
        }
        // A segment of the session's chain may end at this host.
        Message::Extend { session, .. } => {
            if !from.contains(&session.left.ip()) {
                Err(Violation::NotItsSubsession)
            } else if core.is_me(session.left.ip()) {
                Err(Violation::NotItsPart)
            } else {
                Ok(())
            }
        }
        // The host that opened the session may ask this host to forward it, report on it or forget
        // it.
        Message::Lead { session, .. }
        | Message::Enlist { session, .. }
        | Message::AskDelta { session, .. }
        | Message::Dismiss { session, .. } => {
            if !from.contains(&session.left.ip()) {
                Err(Violation::NotItsSubsession)
            } else if core.is_me(session.right.ip()) {
                Err(Violation::NotItsPart)
            } else {
                Ok(())
            }
        }
        _ => Ok(()),
    }
}

fn ends(core: &Core, from: &[HostId], theirs: HostId, ours: HostId) -> Result<(), Violation> {
    if !from.contains(&theirs) {
        Err(Violation::NotItsSubsession)
    } else if !core.is_me(ours) {
        Err(Violation::NotOurs)
    } else {
        Ok(())
    }
}
