//! The host that opened a session which gets another chain. It alone decides. Until both anchors
//! have shown that the new path carries the session, this host may take everything back. Afterwards
//! no host may. This host is the left anchor, unless the change concerns a segment that begins
//! elsewhere. In that case it instructs the left anchor (`lead`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dysco_common::chain::Token;
use dysco_common::delta::Reach;
use dysco_common::two_paths::Cutoff;
use dysco_common::{Delta, Element};

use super::command::Chain;
use super::context::{Context, Flow};
use super::event::HostEvent;
use super::left::TWO_MSL;
use super::message::{Facts, HostId, Message, Order, Scope, Subsession};
use super::plan;
use super::reason::{Phase, Reason};
use super::record::{HeadStage, RoleRecord};
use super::report::{Progress, Role};

mod anchor;
mod back;
mod delta;
mod on;

/// Includes the time in which hosts connect that do not know each other yet.
const ENLIST: Duration = Duration::from_secs(10);
/// Longer than the time that the host itself waits for the path.
const OPEN: Duration = Duration::from_secs(5);
const STATE: Duration = Duration::from_secs(15);
/// A path that has opened, and has carried nothing in this time, is dead.
const SETTLE: Duration = Duration::from_secs(3);
/// Time in which packets that are still under way on the old path arrive.
const LATE: Duration = Duration::from_millis(200);
/// Time for which hosts that leave are asked to forget the session. Longer than a busy host needs
/// to restart `dyscod`.
const DISMISS: Duration = Duration::from_secs(10);
/// Time for which a cancel is repeated. A host that misses it asks later.
const CANCEL: Duration = Duration::from_secs(10);

#[derive(Clone, Hash, Debug)]
pub(super) struct Head {
    order: Order,
    token: Token,
    asker: Option<HostId>,
    phase: Phase,
    facts: Option<Facts>,
    /// Numbers that the right anchor has sent and received.
    right_reach: Reach,
    /// Hosts whose answer is awaited.
    waiting: BTreeSet<HostId>,
    /// Hosts that leave, and have not reported their delta yet.
    unreported: BTreeSet<HostId>,
    /// Deltas of the hosts that have reported one.
    deltas: BTreeMap<HostId, Delta>,
    /// Hosts of both chains, by any of their addresses.
    staying: BTreeSet<HostId>,
    /// True if the left anchor is another host, and was asked: it must be notified of a cancel.
    led: bool,
    /// True if the left anchor takes the earlier path again.
    left_back: bool,
    /// True if the right anchor was asked: it must be notified of a cancel.
    introduced: bool,
    /// Hosts on which state is being installed.
    moving: BTreeSet<HostId>,
    /// True if the hosts of the new path may have entries for it.
    opened: bool,
    cutoff: Option<Cutoff>,
    settled: bool,
    right_settled: bool,
    /// True if the right anchor needs nothing any more of the path that is given up.
    right_done: bool,
    /// True if other hosts were asked before the change was cancelled.
    begun: bool,
    /// True if the new path was taken here. The right anchor may still take it.
    taken: bool,
    /// True if the end was reported.
    reported: bool,
    /// True if the record states that the change cannot be taken back.
    recorded: bool,
    why: Option<Reason>,
}

impl Head {
    pub fn start(ctx: &mut Context, order: Order, asker: Option<HostId>, token: Token) -> Self {
        let head = Head::new(order, asker, token);
        let session = head.session();
        ctx.report(Role::Head, session, Progress::Requested);
        // The command precedes the record: two paths that a later process finds together with the
        // record belong to this change, and were not left by the change before.
        if !head.led {
            ctx.command(Chain::Hold { session });
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
            .filter(|e| order.segment_after().contains(e));
        let staying = both.map(Element::host).collect();
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
            unreported: BTreeSet::new(),
            deltas: BTreeMap::new(),
            staying,
            introduced: false,
            moving: BTreeSet::new(),
            opened: false,
            cutoff: None,
            settled: false,
            right_settled: false,
            right_done: false,
            begun: false,
            taken: false,
            reported: false,
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
        let session = head.session();
        if !head.led {
            ctx.command(Chain::Hold { session });
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

    /// Returns the right anchor.
    pub fn right(&self) -> HostId {
        self.order.right()
    }

    /// Returns true if the peer is the left anchor, which is not this host.
    pub fn is_left(&self, from: &[HostId]) -> bool {
        self.order.left().is_some_and(|left| from.contains(&left))
    }

    /// Returns the hosts of both chains.
    pub fn members(&self) -> impl Iterator<Item = HostId> + '_ {
        let both = self.order.before.iter().chain(&self.order.after);
        both.map(Element::host)
    }

    /// Returns true if the session passes this host before and after the change.
    fn is_staying(&self, host: HostId) -> bool {
        self.staying.contains(&host)
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
                self.delta_reported(ctx, from, result)
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
            // Nothing takes the earlier path any more, whatever the right anchor reports.
            HostEvent::SessionGone { .. } if self.phase == Phase::Completing => {
                ctx.deadline(TWO_MSL);
                Flow::On
            }
            HostEvent::SessionGone { .. } => self.cancel(ctx, Reason::Closing),
            _ => ctx.stale(),
        }
    }

    pub fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        match self.phase {
            Phase::Preparing if self.waiting.is_empty() && self.moving.is_empty() => {
                self.not_reported(ctx)
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
            // As long as an anchor is silent, its end of the new path is needed. The anchor is
            // notified until it answers.
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
                // Nothing has changed. Only the left anchor may have to be notified.
                self.tell_end(ctx);
                flow
            }
            Phase::Switching | Phase::Draining => {
                let why = "it opened, and did not deliver the data in flight in time";
                self.cancel(ctx, Reason::ChainUnusable(why.into()))
            }
            _ => self.cancel(ctx, Reason::TimedOut(self.phase)),
        }
    }

    /// Sends the right anchor the message that it needs in this phase.
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

/// Returns the hosts of these elements, in the same order.
fn hosts_of(elements: &[Element]) -> Vec<HostId> {
    elements.iter().map(Element::host).collect()
}
