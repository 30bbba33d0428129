//! The host that opened a session which gets another chain. It alone decides: until
//! both anchors have shown that the new path carries the session, it may take
//! everything back, and afterwards nobody may. It is the left anchor, unless the change
//! is about a segment that begins elsewhere: then it tells the one that is (`lead`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dysco_common::Delta;
use dysco_common::chain::Token;
use dysco_common::delta::Reach;
use dysco_common::two_paths::Cutoff;

use super::command::Command;
use super::context::{Context, Flow};
use super::event::HostEvent;
use super::left::GONE;
use super::message::{Facts, HostId, Message, Order, Scope, Subsession};
use super::plan;
use super::reason::{Phase, Reason};
use super::record::{HeadStage, RoleRecord};
use super::report::{Progress, Role};

mod anchor;
mod back;
mod delta;
mod on;

/// Hosts that do not know each other have to connect first.
const ENLIST: Duration = Duration::from_secs(10);
/// Longer than the host's own patience with the path.
const OPEN: Duration = Duration::from_secs(5);
const STATE: Duration = Duration::from_secs(15);
/// A path that opened, and over which nothing has come by then, is dead.
const SETTLE: Duration = Duration::from_secs(3);
/// What is still under way on the old path is let through.
const LATE: Duration = Duration::from_millis(200);
/// How long who is left out is asked to forget. Longer than a busy host needs to start
/// `dyscod` anew.
const DISMISS: Duration = Duration::from_secs(10);
/// How long a cancel is repeated; who misses it will ask.
const CANCEL: Duration = Duration::from_secs(10);

#[derive(Clone, Hash, Debug)]
pub(super) struct Head {
    order: Order,
    token: Token,
    asker: Option<HostId>,
    phase: Phase,
    facts: Option<Facts>,
    /// What the right anchor has sent and heard.
    right_reach: Reach,
    /// Whose answer is waited for.
    waiting: BTreeSet<HostId>,
    /// Hosts that leave, which have not said yet by how much they changed the stream.
    untold: BTreeSet<HostId>,
    /// By how much those did that have changed it.
    deltas: BTreeMap<HostId, Delta>,
    /// Hosts of both chains, by whatever address.
    kept: BTreeSet<HostId>,
    /// The left anchor is another host, and was asked: it must hear of a cancel.
    led: bool,
    /// It takes the path before again.
    left_back: bool,
    /// The right anchor was asked: it must hear of a cancel.
    introduced: bool,
    /// Hosts on which state is being installed.
    moving: BTreeSet<HostId>,
    /// Its hosts may have entries for the new path.
    opened: bool,
    cutoff: Option<Cutoff>,
    settled: bool,
    right_settled: bool,
    /// The right anchor needs nothing of the path that is given up any more.
    right_done: bool,
    /// Others were asked before it was cancelled.
    begun: bool,
    /// The new path was taken here: the right anchor may take it still.
    taken: bool,
    /// The end was reported.
    told: bool,
    /// The record says that there is no way back.
    recorded: bool,
    why: Option<Reason>,
}

impl Head {
    pub fn start(ctx: &mut Context, order: Order, asker: Option<HostId>, token: Token) -> Self {
        let head = Head::new(order, asker, token);
        let session = head.session();
        ctx.report(Role::Head, session, Progress::Requested);
        let change = ctx.change;
        // Before the record: two paths that a successor finds with it are this
        // change's, and not what the one before has left.
        if !head.led {
            ctx.command(Command::Hold { change, session });
        }
        head.persist(ctx, HeadStage::Preparing);
        head.ask_left(ctx);
        ctx.deadline(OPEN);
        head
    }

    fn new(order: Order, asker: Option<HostId>, token: Token) -> Self {
        let both = order
            .segment_before()
            .iter()
            .filter(|h| order.segment_after().contains(h));
        let kept = both.copied().collect();
        let led = order.left().is_some();
        Head {
            led,
            left_back: false,
            order,
            token,
            asker,
            phase: Phase::Locking,
            facts: None,
            right_reach: Reach::default(),
            waiting: BTreeSet::new(),
            untold: BTreeSet::new(),
            deltas: BTreeMap::new(),
            kept,
            introduced: false,
            moving: BTreeSet::new(),
            opened: false,
            cutoff: None,
            settled: false,
            right_settled: false,
            right_done: false,
            begun: false,
            taken: false,
            told: false,
            recorded: false,
            why: None,
        }
    }

    pub fn restore(
        ctx: &mut Context,
        order: Order,
        asker: Option<HostId>,
        token: Token,
        stage: HeadStage,
    ) -> Self {
        let mut head = Head::new(order, asker, token);
        head.introduced = true;
        (head.opened, head.taken) = (true, true);
        let (change, session) = (ctx.change, head.session());
        if !head.led {
            ctx.command(Command::Hold { change, session });
        }
        match stage {
            HeadStage::Preparing => {
                head.phase = Phase::Preparing;
                head.cancel(ctx, Reason::Restarted);
            }
            HeadStage::Completing => {
                head.recorded = true;
                head.complete(ctx);
            }
        }
        head
    }

    pub fn session(&self) -> Subsession {
        self.order.session
    }

    /// The right anchor.
    pub fn right(&self) -> HostId {
        self.order.right()
    }

    /// Is this the left anchor, which is not this host?
    pub fn is_left(&self, from: &[HostId]) -> bool {
        self.order.left().is_some_and(|left| from.contains(&left))
    }

    /// The hosts of both chains.
    pub fn members(&self) -> impl Iterator<Item = HostId> + '_ {
        self.order.before.iter().chain(&self.order.after).copied()
    }

    /// Does the session pass this host before and after?
    fn is_kept(&self, host: HostId) -> bool {
        self.kept.contains(&host)
    }

    pub fn asker(&self) -> Option<HostId> {
        self.asker
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub fn on_message(&mut self, ctx: &mut Context, from: &[HostId], message: Message) -> Flow {
        if self.is_left(from) {
            return self.left_says(ctx, from, message);
        }
        match message {
            Message::Enlisted { result, .. } if self.phase == Phase::Preparing => match result {
                Ok(()) => self.answered(ctx, from),
                Err(reason) => self.cancel(ctx, reason),
            },
            Message::TellDelta { result, .. } if self.phase == Phase::Preparing => {
                self.delta_told(ctx, from, result)
            }
            Message::Extended { result, .. } => self.extended(ctx, from, result),
            Message::Switched { cutoff, .. } if self.phase == Phase::Switching => {
                self.right_switched(ctx, cutoff)
            }
            Message::Settled { .. } if matches!(self.phase, Phase::Switching | Phase::Draining) => {
                self.right_settled = true;
                self.maybe_complete(ctx)
            }
            Message::Settled { .. } | Message::Query { .. } => self.tell(ctx),
            Message::DoneAck { .. } if self.phase == Phase::Completing => self.done_with(ctx, from),
            Message::CancelAck { .. }
                if self.phase == Phase::Cancelling && self.left_back && !self.right_done =>
            {
                self.dismiss_new(ctx)
            }
            Message::Dismissed { .. } => self.dismissed(ctx, from),
            _ => ctx.stale(),
        }
    }

    pub fn on_event(&mut self, ctx: &mut Context, event: HostEvent) -> Flow {
        match event {
            HostEvent::Locked { result, .. } if self.phase == Phase::Locking => match result {
                Ok(facts) => self.enlist(ctx, facts),
                Err(reason) => self.cancel(ctx, reason),
            },
            HostEvent::StateMoved { to, result, .. } if self.moving.contains(&to) => {
                self.state_moved(ctx, to, result)
            }
            HostEvent::Prepared { result, .. } if self.phase == Phase::SettingUp => match result {
                Ok(()) => self.switch(ctx),
                Err(reason) => self.cancel(ctx, reason),
            },
            HostEvent::CutDone { cutoff, .. } if self.phase == Phase::Cutting => {
                self.switched(ctx, cutoff)
            }
            HostEvent::Drained { .. } if self.phase == Phase::Draining && !self.settled => {
                self.settles(ctx)
            }
            HostEvent::PersistFailed { error, .. } => self.no_record(ctx, error),
            HostEvent::SessionGone { .. }
                if self.phase == Phase::Cancelling && !self.right_done =>
            {
                self.dismiss_new(ctx)
            }
            // Nothing takes the path before any more, whatever the right anchor says.
            HostEvent::SessionGone { .. } if self.phase == Phase::Completing => {
                ctx.deadline(GONE);
                Flow::On
            }
            HostEvent::SessionGone { .. } => self.cancel(ctx, Reason::Closing),
            _ => ctx.stale(),
        }
    }

    pub fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        match self.phase {
            Phase::Preparing if self.waiting.is_empty() && self.moving.is_empty() => {
                self.not_told(ctx)
            }
            Phase::Preparing if !self.waiting.is_empty() => {
                let silent = self.waiting.first().copied();
                let silent = silent.map_or(Reason::TimedOut(self.phase), Reason::NoAnswer);
                self.cancel(ctx, silent)
            }
            Phase::Closing if self.waiting.is_empty() => self.say_dismiss(ctx),
            Phase::Closing => {
                ctx.trouble(Reason::TimedOut(self.phase));
                self.done(ctx)
            }
            // As long as an anchor is not heard its end of the new path is needed: it
            // is told until it answers.
            Phase::Cancelling if !self.right_done && self.taken => {
                self.tell_end(ctx);
                Flow::On
            }
            Phase::Cancelling if !self.right_done => self.dismiss_new(ctx),
            Phase::Cancelling if !self.moving.is_empty() => {
                self.moving.clear();
                self.dismiss_new(ctx)
            }
            Phase::Cancelling => self.rolled_back(ctx),
            Phase::Completing => self.dismiss_old(ctx),
            Phase::Locking => {
                let flow = self.cancel(ctx, Reason::TimedOut(self.phase));
                // Nothing has changed; only the left anchor may have to hear that.
                self.tell_end(ctx);
                flow
            }
            Phase::Switching | Phase::Draining => {
                let why = "it opened, and did not carry all that was under way in time";
                self.cancel(ctx, Reason::ChainUnusable(why.into()))
            }
            _ => self.cancel(ctx, Reason::TimedOut(self.phase)),
        }
    }

    /// What the right anchor needs to know, in this phase.
    fn tell(&mut self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        let answer = match (self.phase, self.cutoff) {
            // The left anchor must not take the new path alone.
            (Phase::Cancelling, _) if !self.left_back => Message::Status {
                change,
                phase: self.phase,
            },
            (Phase::Cancelling, _) => Message::Cancel {
                change,
                reason: self.why.clone().unwrap_or(Reason::Cancelled),
            },
            (Phase::Completing | Phase::Closing, _) => Message::Done { change },
            (Phase::Switching | Phase::Draining, Some(cutoff)) => {
                Message::Switched { change, cutoff }
            }
            (phase, _) => Message::Status { change, phase },
        };
        ctx.say(self.right(), answer);
        Flow::On
    }

    fn persist(&self, ctx: &mut Context, stage: HeadStage) {
        ctx.persist(RoleRecord::Head {
            order: self.order.clone(),
            token: self.token,
            asker: self.asker,
            stage,
        });
    }
}
