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
use super::message::{Facts, Message, Order, Scope};
use super::names::{HostId, Subsession};
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
    stage: Stage,
    left: LeftAnchor,
    /// Hosts whose answer is awaited.
    waiting: BTreeSet<HostId>,
    /// Hosts that were asked for their delta, and have not reported it yet.
    unreported: BTreeSet<HostId>,
    /// Deltas of the hosts that have reported one.
    deltas: BTreeMap<HostId, Delta>,
    /// Hosts of both chains, by any of their addresses.
    staying: BTreeSet<HostId>,
    /// Hosts on which state is being installed.
    moving: BTreeSet<HostId>,
}

/// Phase of the change, with the data that only this phase has.
#[derive(Clone, Hash, Debug)]
enum Stage {
    Locking,
    Preparing {
        /// Facts of the left anchor.
        facts: Facts,
        /// Numbers that the right anchor has sent and received.
        right_reach: Reach,
    },
    SettingUp,
    Cutting,
    Switching {
        /// Cutoff of the left anchor.
        cutoff: Cutoff,
        /// True if the right anchor's side of the new path has carried all that it had to.
        right_settled: bool,
    },
    Draining {
        /// Cutoff of the left anchor.
        cutoff: Cutoff,
        unsettled: Unsettled,
    },
    Completing {
        /// True if the record states that the change cannot be taken back.
        recorded: bool,
    },
    Closing,
    Cancelling {
        why: Reason,
        extent: Extent,
        returned: Returned,
        /// True if the end was reported.
        reported: bool,
    },
}

/// Left anchor of the segment, as far as it takes part in the change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum LeftAnchor {
    /// This host.
    Here,
    /// Another host, which was asked: it must be notified of a cancel.
    Led(HostId),
    /// Another host, which was not asked or has released its side.
    Released,
}

/// Anchors whose side of the new path has not yet carried all that it had to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Unsettled {
    Both,
    Left,
    Right,
}

/// Progress of a change when it was cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Extent {
    /// Only the left anchor was asked.
    Locked,
    /// The right anchor and the hosts of the new chain were asked.
    Introduced,
    /// The hosts of the new path may have entries for it.
    Opened,
    /// The new path was taken here. The right anchor may still take it.
    Taken,
}

impl Extent {
    fn of(phase: Phase) -> Extent {
        match phase {
            phase if phase <= Phase::Locking => Extent::Locked,
            phase if phase <= Phase::Preparing => Extent::Introduced,
            phase if phase <= Phase::SettingUp => Extent::Opened,
            _ => Extent::Taken,
        }
    }
}

/// Anchors that take the earlier path again, or need nothing any more of the new one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Returned {
    Neither,
    Left,
    Both,
}

impl Head {
    pub(crate) fn start(
        ctx: &mut Context,
        order: Order,
        asker: Option<HostId>,
        token: Token,
    ) -> Self {
        let head = Head::new(order, asker, token);
        let session = head.session();
        ctx.report(Role::Head, session, Progress::Requested);
        // The command precedes the record: two paths that a later process finds together with the
        // record belong to this change, and were not left by the change before.
        if head.left == LeftAnchor::Here {
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
        let left = order.left().map_or(LeftAnchor::Here, LeftAnchor::Led);
        Head {
            order,
            token,
            asker,
            stage: Stage::Locking,
            left,
            waiting: BTreeSet::new(),
            unreported: BTreeSet::new(),
            deltas: BTreeMap::new(),
            staying,
            moving: BTreeSet::new(),
        }
    }

    pub(crate) fn restore(
        ctx: &mut Context,
        order: Order,
        asker: Option<HostId>,
        token: Token,
        stage: HeadStage,
    ) -> Self {
        let mut head = Head::new(order, asker, token);
        let session = head.session();
        if head.left == LeftAnchor::Here {
            ctx.command(Chain::Hold { session });
        }
        match stage {
            HeadStage::Preparing => head.take_back(ctx, Reason::Restarted, Extent::Taken),
            HeadStage::Completing => head.complete(ctx, true),
        };
        head
    }

    pub(crate) fn session(&self) -> Subsession {
        self.order.session
    }

    /// Returns the right anchor.
    pub(crate) fn right(&self) -> HostId {
        self.order.right()
    }

    /// Returns true if the peer is the left anchor, which is not this host.
    pub(crate) fn is_left(&self, from: &[HostId]) -> bool {
        self.order.left().is_some_and(|left| from.contains(&left))
    }

    /// Returns the hosts of both chains.
    pub(crate) fn members(&self) -> impl Iterator<Item = HostId> + '_ {
        let both = self.order.before.iter().chain(&self.order.after);
        both.map(Element::host)
    }

    /// Returns true if the session passes this host before and after the change.
    fn is_staying(&self, host: HostId) -> bool {
        self.staying.contains(&host)
    }

    pub(crate) fn asker(&self) -> Option<HostId> {
        self.asker
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.stage {
            Stage::Locking => Phase::Locking,
            Stage::Preparing { .. } => Phase::Preparing,
            Stage::SettingUp => Phase::SettingUp,
            Stage::Cutting => Phase::Cutting,
            Stage::Switching { .. } => Phase::Switching,
            Stage::Draining { .. } => Phase::Draining,
            Stage::Completing { .. } => Phase::Completing,
            Stage::Closing => Phase::Closing,
            Stage::Cancelling { .. } => Phase::Cancelling,
        }
    }

    /// Returns the anchors that have returned to the earlier path, if the change is cancelled.
    fn returned(&self) -> Option<Returned> {
        match self.stage {
            Stage::Cancelling { returned, .. } => Some(returned),
            _ => None,
        }
    }

    pub(crate) fn on_message(
        &mut self,
        ctx: &mut Context,
        from: &[HostId],
        message: Message,
    ) -> Flow {
        if self.is_left(from) {
            return self.left_says(ctx, from, message);
        }
        match message {
            Message::Enlisted { result, .. } if self.phase() == Phase::Preparing => match result {
                Ok(()) => self.answered(ctx, from),
                Err(reason) => self.cancel(ctx, reason),
            },
            Message::TellDelta { result, .. } if self.phase() == Phase::Preparing => {
                self.delta_reported(ctx, from, result)
            }
            Message::Extended { result, .. } => self.extended(ctx, from, result),
            Message::Switched { cutoff, .. } => self.right_switched(ctx, cutoff),
            Message::Settled { .. } => self.right_settles(ctx),
            Message::Query { .. } => self.tell(ctx),
            Message::DoneAck { .. } if self.phase() == Phase::Completing => {
                self.done_with(ctx, from)
            }
            Message::CancelAck { .. } if self.returned() == Some(Returned::Left) => {
                self.dismiss_new(ctx)
            }
            Message::Dismissed { .. } => self.dismissed(ctx, from),
            _ => ctx.stale(),
        }
    }

    pub(crate) fn on_event(&mut self, ctx: &mut Context, event: HostEvent) -> Flow {
        match event {
            HostEvent::Locked { result, .. } if self.phase() == Phase::Locking => match result {
                Ok(facts) => self.enlist(ctx, facts),
                Err(reason) => self.cancel(ctx, reason),
            },
            HostEvent::StateMoved { to, result, .. } if self.moving.contains(&to) => {
                self.state_moved(ctx, to, result)
            }
            HostEvent::Prepared { result, .. } if self.phase() == Phase::SettingUp => {
                match result {
                    Ok(()) => self.switch(ctx),
                    Err(reason) => self.cancel(ctx, reason),
                }
            }
            HostEvent::CutDone { cutoff, .. } if self.phase() == Phase::Cutting => {
                self.switched(ctx, cutoff)
            }
            HostEvent::Drained { .. } => self.left_settles(ctx),
            HostEvent::PersistFailed { error, .. } => self.no_record(ctx, error),
            HostEvent::SessionGone { .. } => match self.stage {
                Stage::Cancelling {
                    returned: Returned::Neither | Returned::Left,
                    ..
                } => self.dismiss_new(ctx),
                // Nothing takes the earlier path any more, regardless of the right anchor's report.
                Stage::Completing { .. } => {
                    ctx.deadline(TWO_MSL);
                    Flow::On
                }
                _ => self.cancel(ctx, Reason::Closing),
            },
            _ => ctx.stale(),
        }
    }

    pub(crate) fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        let phase = self.phase();
        match self.stage {
            Stage::Preparing { .. } => match self.waiting.first().copied() {
                Some(silent) => self.cancel(ctx, Reason::NoAnswer(silent)),
                None if self.moving.is_empty() => self.not_reported(ctx),
                None => self.cancel(ctx, Reason::TimedOut(phase)),
            },
            Stage::Closing if self.waiting.is_empty() => self.say_dismiss(ctx),
            Stage::Closing => {
                ctx.trouble(Reason::TimedOut(phase));
                self.done(ctx)
            }
            Stage::Cancelling {
                returned, extent, ..
            } => self.late_to_return(ctx, returned, extent),
            Stage::Completing { .. } => self.dismiss_old(ctx),
            Stage::Locking => {
                let flow = self.cancel(ctx, Reason::TimedOut(phase));
                // Nothing has changed. Only the left anchor may have to be notified.
                self.tell_end(ctx);
                flow
            }
            Stage::Switching { .. } | Stage::Draining { .. } => {
                let why = "it opened, and did not deliver the data in flight in time";
                self.cancel(ctx, Reason::ChainUnusable(why.into()))
            }
            Stage::SettingUp | Stage::Cutting => self.cancel(ctx, Reason::TimedOut(phase)),
        }
    }

    /// Sends the right anchor the message that it needs in this phase.
    fn tell(&mut self, ctx: &mut Context) -> Flow {
        let (change, phase) = (ctx.change, self.phase());
        let answer = match &self.stage {
            // The left anchor must not take the new path alone.
            Stage::Cancelling { why, returned, .. } if *returned != Returned::Neither => {
                let reason = why.clone();
                Message::Cancel { change, reason }
            }
            Stage::Completing { .. } | Stage::Closing => Message::Done { change },
            Stage::Switching { cutoff, .. } | Stage::Draining { cutoff, .. } => {
                let cutoff = *cutoff;
                Message::Switched { change, cutoff }
            }
            _ => Message::Status { change, phase },
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
