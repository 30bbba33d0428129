//! Part of a host in a change. Each input goes to the part.

use super::context::{Context, Flow};
use super::dsr::Dsr;
use super::event::HostEvent;
use super::head::Head;
use super::lead::Lead;
use super::left::Left;
use super::local::Local;
use super::message::Message;
use super::middle::Middle;
use super::names::{HostId, Subsession};
use super::proof::Proof;
use super::reason::{Phase, Reason};
use super::report::Role;
use super::right::Right;
use super::tail::Tail;

/// True if the peer spoke as the right one of its two roles in the change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AsRight(pub bool);

/// Part of a host in a change.
#[derive(Clone, Hash, Debug)]
pub(super) enum Part {
    Left(Left),
    Middle(Middle),
    Right(Right),
    Local(Local),
    Proof(Proof),
    Dsr(Dsr),
    Head(Head),
    Tail(Tail),
    Lead(Lead),
}

impl Part {
    pub(super) fn role(&self) -> Role {
        match self {
            Part::Left(_) => Role::Left,
            Part::Middle(_) => Role::Middle,
            Part::Right(_) => Role::Right,
            Part::Local(_) => Role::Local,
            Part::Proof(_) => Role::Proof,
            Part::Dsr(_) => Role::Dsr,
            Part::Head(_) => Role::Head,
            Part::Tail(_) => Role::Tail,
            Part::Lead(_) => Role::Lead,
        }
    }

    pub(super) fn place(&self) -> (Subsession, Phase) {
        match self {
            Part::Left(p) => (p.subsession(), p.phase()),
            Part::Middle(p) => (p.subsession(), p.phase()),
            Part::Right(p) => (p.subsession(), p.phase()),
            Part::Local(p) => (p.subsession(), p.phase()),
            Part::Proof(p) => (p.subsession(), p.phase()),
            Part::Dsr(p) => (p.subsession(), p.phase()),
            Part::Head(p) => (p.session(), p.phase()),
            Part::Tail(p) => (p.own(), p.phase()),
            Part::Lead(p) => (p.session(), p.phase()),
        }
    }

    /// Returns true if another host asked for the change and the middlebox has not measured itself
    /// yet. No other host can refer to this change. Messages of other hosts concern the part of a
    /// former process, which the same host had asked.
    pub(super) fn is_unspoken(&self) -> bool {
        match self {
            Part::Middle(p) => p.right().is_none() && p.asker().is_some(),
            Part::Local(p) => p.asker().is_some(),
            Part::Left(_)
            | Part::Right(_)
            | Part::Proof(_)
            | Part::Dsr(_)
            | Part::Head(_)
            | Part::Tail(_)
            | Part::Lead(_) => false,
        }
    }

    pub(super) fn peers(&self) -> Vec<HostId> {
        let (first, others) = match self {
            Part::Middle(p) if self.is_unspoken() => return p.asker().into_iter().collect(),
            Part::Left(p) => (p.middle(), [Some(p.right()), None]),
            Part::Middle(p) => (p.left(), [p.right(), p.asker()]),
            Part::Right(p) => (p.middle(), [Some(p.left()), None]),
            Part::Local(p) => return p.asker().into_iter().collect(),
            Part::Proof(p) => return p.right().into_iter().collect(),
            Part::Dsr(p) => (p.middle(), [None; 2]),
            Part::Head(p) => return p.members().chain([p.right()]).collect(),
            Part::Tail(p) => (p.left(), [None; 2]),
            Part::Lead(p) => (p.head(), [None; 2]),
        };
        let others = others.into_iter().flatten();
        std::iter::once(first).chain(others).collect()
    }

    pub(super) fn on_message(
        &mut self,
        ctx: &mut Context,
        from: &[HostId],
        AsRight(from_left): AsRight,
        message: Message,
    ) -> Flow {
        match self {
            Part::Left(p) => p.on_message(ctx, from_left, message),
            Part::Middle(p) => p.on_message(ctx, from_left, message),
            // Of the two peers of the right anchor, the left anchor is the distant one.
            Part::Right(p) => p.on_message(ctx, from_left, message),
            Part::Local(p) => p.on_message(ctx, &message),
            Part::Proof(p) => p.on_message(ctx, message),
            // The request is being carried out.
            Part::Dsr(_) => ctx.stale(),
            Part::Head(p) => p.on_message(ctx, from, message),
            Part::Tail(p) => p.on_message(ctx, message),
            Part::Lead(p) => p.on_message(ctx, message),
        }
    }

    pub(super) fn on_event(&mut self, ctx: &mut Context, event: HostEvent) -> Flow {
        match self {
            Part::Left(p) => p.on_event(ctx, event),
            Part::Middle(p) => p.on_event(ctx, event),
            Part::Right(p) => p.on_event(ctx, event),
            Part::Local(p) => p.on_event(ctx, event),
            Part::Proof(p) => p.on_event(ctx, event),
            Part::Dsr(p) => p.on_event(ctx, event),
            Part::Head(p) => p.on_event(ctx, event),
            Part::Tail(p) => p.on_event(ctx, event),
            Part::Lead(p) => p.on_event(ctx, event),
        }
    }

    pub(super) fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        match self {
            Part::Left(p) => p.on_deadline(ctx),
            Part::Middle(p) => p.on_deadline(ctx),
            Part::Right(p) => p.on_deadline(ctx),
            Part::Local(p) => p.on_deadline(ctx),
            Part::Proof(p) => p.on_deadline(ctx),
            Part::Dsr(p) => p.on_deadline(ctx),
            Part::Head(p) => p.on_deadline(ctx),
            Part::Tail(p) => p.on_deadline(ctx),
            Part::Lead(p) => p.on_deadline(ctx),
        }
    }

    pub(super) fn cancel(&mut self, ctx: &mut Context) -> Flow {
        match self {
            Part::Left(p) => p.cancel(ctx, Reason::Cancelled),
            Part::Middle(p) => p.cancel(ctx, Reason::Cancelled),
            Part::Right(_) | Part::Dsr(_) | Part::Tail(_) | Part::Lead(_) => ctx.stale(),
            Part::Head(p) => p.cancel(ctx, Reason::Cancelled),
            Part::Local(p) => p.cancel(ctx, Reason::Cancelled),
            Part::Proof(p) => p.cancel(ctx, Reason::Cancelled),
        }
    }
}
