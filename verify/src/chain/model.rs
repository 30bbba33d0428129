//! The model to explore.

use dysco_proto::{ChangeId, HostId, Machine, Message, Phase, Role, Time, Timer};
use stateright::{Model, Property};

use super::calm::Fate;
use super::config::{Configuration, LEFT, Seen};
use super::host::{Host, LEFTWARDS, Later, RIGHTWARDS, Route};
use super::stream::Delivery;
use super::world::{Broken, World};
use crate::pump::{NOW, OUTPUTS, Twist};
use crate::report::Explorable;
use crate::run::{Fates, explain};
use crate::socket::Say;

/// Bound on the time that a message is in flight or is repeated in vain. A deadline of this length
/// passes only when there is no such message.
const LIFE: Time = Time::from_secs(30);

/// A configuration, and the known outcomes of its states.
pub struct Exploration {
    /// The configuration.
    pub config: Configuration,
    fates: Fates<World>,
}

/// One step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// An operator asks for one of the chains.
    Request(usize, Twist),
    /// An operator cancels the change.
    Cancel(ChangeId),
    /// A message arrives; it may arrive again.
    Deliver {
        /// Index of the message.
        index: usize,
        /// True if the message also stays in flight.
        keep: bool,
        /// Fault that occurs.
        twist: Twist,
    },
    /// A message is lost.
    Lose(usize),
    /// A host has completed an action that took time.
    Happen {
        /// Index of the host.
        place: usize,
        /// Index of the event among the host's events.
        index: usize,
        /// Fault that occurs.
        twist: Twist,
    },
    /// The engine of an anchor finds that the new path has carried what it had to.
    Look(usize, ChangeId, Twist),
    /// The engine of an anchor forgets the path before.
    Late(usize, ChangeId),
    /// The deciding host stops waiting for state to move to this host.
    GiveUpState(ChangeId, HostId),
    /// The right anchor's data plane takes the path that the left anchor's takes.
    Follow(ChangeId),
    /// A host asks which of the two paths by which a session passes it is in use.
    AskInUse(usize),
    /// A message is repeated.
    Repeat(usize, Timer),
    /// A deadline passes.
    Expire {
        /// Index of the host.
        place: usize,
        /// Timer that expires.
        timer: Timer,
        /// Fault that occurs.
        twist: Twist,
    },
    /// A daemon dies.
    Crash(usize),
    /// A daemon starts again.
    Start(usize),
    /// A new path no longer carries anything.
    Break(ChangeId),
    /// The session ends.
    Reset,
    /// An end sends something to the other side.
    Say(usize, Say, Delivery),
    /// A late segment arrives.
    ComesLate,
    /// A host shows the firewalls of a path how far its end has sent.
    Prime(usize, usize, Route),
    /// A reset answers the packet that opens a new path.
    Reject(usize, usize, Route, u32),
    /// Both ends have closed: the session's entries are collected.
    Collect,
}

impl Exploration {
    /// Creates the exploration of one configuration.
    pub fn new(config: Configuration) -> Exploration {
        Exploration {
            config,
            fates: Fates::default(),
        }
    }

    fn twists(&self, world: &World, place: usize) -> impl Iterator<Item = Twist> + use<> {
        let crashes = world.left.crashes * u8::from(self.is_mortal(place));
        Twist::all(OUTPUTS, [crashes, world.left.refusals, 0])
    }

    /// True if the daemon of this host may die.
    fn is_mortal(&self, place: usize) -> bool {
        self.config.mortal.is_empty() || self.config.mortal.contains(&place)
    }

    fn operators(&self, world: &World, actions: &mut Vec<Action>) {
        let Some(machine) = &world.host(LEFT).machine else {
            return;
        };
        if world.left.cancels > 0 {
            actions.extend(machine.changes().map(|c| Action::Cancel(c.change)));
        }
        if !world.gone() {
            let mut left = 0..self.config.asks.len();
            if self.config.in_turn {
                let next = world.asked.trailing_ones() as usize;
                let idle = machine.changes().next().is_none();
                left = next..(next + usize::from(idle)).min(left.end);
            }
            let left = left.filter(|i| world.asked & (1 << i) == 0);
            for i in left {
                actions.extend(
                    self.twists(world, LEFT)
                        .map(|twist| Action::Request(i, twist)),
                );
            }
        }
    }

    fn messages(&self, world: &World, actions: &mut Vec<Action>) {
        for index in 0..world.net.len() {
            let keep = false;
            let twists = self.twists(world, world.net[index].to);
            actions.extend(twists.map(|twist| Action::Deliver { index, keep, twist }));
            if world.left.duplicates > 0 {
                actions.push(Action::Deliver {
                    index,
                    keep: true,
                    twist: Twist::Plain,
                });
            }
            if world.left.losses > 0 {
                actions.push(Action::Lose(index));
            }
        }
    }

    fn hosts(&self, world: &World, actions: &mut Vec<Action>) {
        let only_time = world.only_time_helps(&self.config);
        let insists = |m: &Machine| m.waits().any(|w| w.insists);
        let insisting = world
            .hosts()
            .any(|h| h.machine.as_ref().is_some_and(insists));
        for host in world.hosts() {
            let place = host.place;
            let Some(machine) = &host.machine else {
                actions.push(Action::Start(place));
                continue;
            };
            if world.left.crashes > 0 && self.is_mortal(place) {
                actions.push(Action::Crash(place));
            }
            for (index, event) in host.events.iter().enumerate() {
                if world.comes_later(place, event) {
                    continue;
                }
                // No machine takes part in this event: it fails, or it does not.
                let steps = match event {
                    Later::Install(..) => 1,
                    Later::InUse { .. } => 0,
                    _ => u8::MAX,
                };
                let twists = self.twists(world, place).filter(move |twist| match twist {
                    Twist::Plain | Twist::HeldUp(_) => true,
                    Twist::Fails(step) => *step < steps,
                    Twist::Dies(_) => steps > 1,
                });
                actions.extend(twists.map(|twist| Action::Happen {
                    place,
                    index,
                    twist,
                }));
            }
            for waits in machine.waits() {
                let timer = waits.timer;
                if waits.insists && (only_time || world.left.duplicates > 0) {
                    actions.push(Action::Repeat(place, timer));
                }
                let late = |at| match at < LIFE {
                    true => only_time || world.left.late > 0,
                    false => only_time && !insisting,
                };
                if waits.deadline.is_some_and(late) {
                    let twists = self.twists(world, place);
                    actions.extend(twists.map(|twist| Action::Expire {
                        place,
                        timer,
                        twist,
                    }));
                }
            }
        }
    }

    fn paths(&self, world: &World, actions: &mut Vec<Action>) {
        for place in 0..world.hosts().len() {
            for change in world.carried(place) {
                let twists = self.twists(world, place);
                actions.extend(twists.map(|twist| Action::Look(place, change, twist)));
            }
            actions.extend(world.waits_late(place).map(|c| Action::Late(place, c)));
        }
        let in_vain = world.waits_in_vain(LEFT);
        actions.extend(in_vain.map(|(change, to)| Action::GiveUpState(change, to)));
        if world.left.late > 0 {
            let in_vain: Vec<_> = world.waits_in_vain(LEFT).collect();
            let late = world.waits_for_state(LEFT).filter(|w| !in_vain.contains(w));
            actions.extend(late.map(|(change, to)| Action::GiveUpState(change, to)));
        }
        actions.extend(world.can_follow().map(Action::Follow));
        actions.extend(world.in_doubt().map(Action::AskInUse));
        if world.left.deaths > 0 {
            actions.extend(world.mortal().map(Action::Break));
        }
        if world.left.resets > 0 && !world.gone() {
            actions.push(Action::Reset);
        }
    }

    fn streams(&self, world: &World, actions: &mut Vec<Action>) {
        let config = &self.config;
        if world.streams.is_none() {
            return;
        }
        let still = world.is_still(config);
        for side in [RIGHTWARDS, LEFTWARDS] {
            for say in [Say::New, Say::Ack, Say::Again, Say::AllAgain] {
                let again = matches!(say, Say::Again | Say::AllAgain);
                if again && !still && world.left.again == 0 || !world.can_say(config, side, say) {
                    continue;
                }
                actions.push(Action::Say(side, say, Delivery::Arrives));
                if world.left.packets > 0 {
                    actions.push(Action::Say(side, say, Delivery::Lost));
                }
                if world.left.slow > 0 && world.can_be_late() {
                    actions.push(Action::Say(side, say, Delivery::Late));
                }
            }
        }
        if !world.can_be_late() {
            actions.push(Action::ComesLate);
        }
        let primers = world.primers(config).into_iter();
        actions.extend(primers.map(|(place, side, route)| Action::Prime(place, side, route)));
        let rejections = world.rejections(config).into_iter();
        actions
            .extend(rejections.map(|(p, side, route, next)| Action::Reject(p, side, route, next)));
        if world.is_collectable(config) && world.only_time_helps(config) {
            actions.push(Action::Collect);
        }
    }

    /// Charges a step that is a fault against the remaining number of faults.
    fn pay(&self, world: &mut World, action: &Action) {
        let only_time = world.only_time_helps(&self.config);
        let in_vain = |change, to| world.waits_in_vain(LEFT).any(|w| w == (change, to));
        let is_early = matches!(action, Action::GiveUpState(change, to) if !in_vain(*change, *to));
        let left = &mut world.left;
        let twist = match action {
            Action::Request(_, twist)
            | Action::Deliver { twist, .. }
            | Action::Happen { twist, .. }
            | Action::Look(_, _, twist)
            | Action::Expire { twist, .. } => *twist,
            _ => Twist::Plain,
        };
        let twisted = match twist {
            Twist::Plain | Twist::HeldUp(_) => None,
            Twist::Dies(_) => Some(&mut left.crashes),
            Twist::Fails(_) => Some(&mut left.refusals),
        };
        let twisted = twisted.map(|budget| *budget -= 1).is_some();
        let budget = match action {
            Action::Cancel(..) => Some(&mut left.cancels),
            Action::Deliver { keep: true, .. } => Some(&mut left.duplicates),
            Action::Lose(_) => Some(&mut left.losses),
            Action::Repeat(..) if !only_time => Some(&mut left.duplicates),
            Action::Expire { .. } if !only_time => Some(&mut left.late),
            Action::GiveUpState(..) if is_early => Some(&mut left.late),
            Action::Crash(_) => Some(&mut left.crashes),
            Action::Break(_) => Some(&mut left.deaths),
            Action::Reset => Some(&mut left.resets),
            Action::Say(_, _, Delivery::Lost) => Some(&mut left.packets),
            Action::Say(_, _, Delivery::Late) => Some(&mut left.slow),
            Action::Say(_, Say::Again | Say::AllAgain, _) => {
                // Retransmissions beyond the budget for early ones occur when everything is idle.
                left.again = left.again.saturating_sub(1);
                return;
            }
            _ => None,
        };
        let paid = budget.map(|budget| *budget -= 1).is_some();
        world.pure &= !twisted && !paid;
    }

    fn act(&self, world: &mut World, action: &Action) -> bool {
        let config = &self.config;
        match *action {
            Action::Request(i, twist) => return world.ask(config, i, twist),
            Action::Cancel(change) => {
                return world.input(config, LEFT, Twist::Plain, |m| m.cancel(NOW, change));
            }
            Action::Deliver { index, keep, twist } => {
                return world.deliver(config, index, keep, twist);
            }
            Action::Happen {
                place,
                index,
                twist,
            } => return world.happen(config, place, index, twist),
            Action::Look(place, change, twist) => return world.look(config, place, change, twist),
            Action::Expire {
                place,
                timer,
                twist,
            } => return world.expire(config, place, timer, twist),
            Action::Lose(index) => drop(world.net.remove(index)),
            Action::Late(place, change) => world.late(config, place, change),
            Action::GiveUpState(change, to) => world.give_up_state(change, to),
            Action::Follow(change) => world.follow(config, change),
            Action::AskInUse(place) => world.ask_in_use(place),
            Action::Repeat(place, timer) => world.repeat(config, place, timer),
            Action::Crash(place) => world.edit(place, Host::die),
            Action::Start(place) => world.start(config, place),
            Action::Break(change) => world.dead.push(change),
            Action::Reset | Action::Collect => world.reset(),
            Action::Say(side, say, delivery) => return world.say(config, side, say, delivery),
            Action::ComesLate => world.comes_late(config),
            Action::Prime(place, side, route) => world.prime(config, place, side, route),
            Action::Reject(place, side, route, next) => {
                return world.reject((place, side, route, next));
            }
        }
        true
    }
}

impl Model for Exploration {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.config)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_some() {
            return;
        }
        self.operators(world, actions);
        self.messages(world, actions);
        self.hosts(world, actions);
        self.paths(world, actions);
        self.streams(world, actions);
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        self.pay(&mut world, &action);
        if !self.act(&mut world, &action) {
            return None;
        }
        if world.broken.is_none() {
            world.fate = self.fates.of(&self.config, &world);
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = always();
        properties.extend(self.config.seen.iter().map(sometimes));
        properties
    }
}

impl Explorable for Exploration {
    fn name(&self) -> [&'static str; 2] {
        [self.config.name, self.config.about]
    }

    fn tell(&self, world: &World, action: &Action) -> String {
        let plainly = |twist: Twist| match twist {
            Twist::Plain => String::new(),
            other => format!(" ({other:?})"),
        };
        match action {
            Action::Deliver { index, keep, twist } => {
                let again = if *keep { ", to come again" } else { "" };
                format!("{} arrives{again}{}", world.net[*index], plainly(*twist))
            }
            Action::Lose(index) => format!("{} is lost", world.net[*index]),
            Action::Happen {
                place,
                index,
                twist,
            } => {
                let event = format!("{:?}", world.host(*place).events[*index]);
                let name = event.split('(').next().unwrap_or_default();
                format!("{place}: {name}{}", plainly(*twist))
            }
            other => format!("{other:?}"),
        }
    }

    fn explain(&self, world: &World) -> Vec<String> {
        let mut lines = vec![format!(
            "broken: {:?}, fate: {:?}",
            world.broken, world.fate
        )];
        let after = explain(&self.config, world).into_iter();
        lines.extend(after.map(|line| format!("   {line}")));
        lines
    }
}

/// Properties that must hold in every state.
pub fn always() -> Vec<Property<Exploration>> {
    vec![
        Property::always("one change at a time holds a segment", |_, w: &World| {
            w.broken != Some(Broken::Overlap)
        }),
        Property::always(
            "who asks for another segment is not refused",
            |_, w: &World| w.broken != Some(Broken::Refused),
        ),
        Property::always(
            "what an anchor sends is heard, and known on its way",
            |_, w: &World| w.broken != Some(Broken::Void),
        ),
        Property::always(
            "a path leads through no firewall that has not been given the state",
            |_, w: &World| w.broken != Some(Broken::Stateless),
        ),
        Property::always(
            "a path makes up for what those that leave have changed, once",
            |_, w: &World| w.broken != Some(Broken::Delta),
        ),
        Property::always(
            "no firewall drops anything while nothing goes wrong",
            |_, w: &World| w.broken != Some(Broken::Invalid),
        ),
        Property::always(
            "TCP hears of nothing that was never sent",
            |_, w: &World| !matches!(w.broken, Some(Broken::Tcp(_))),
        ),
        Property::always(
            "every byte and FIN arrives, and is acknowledged",
            |_, w: &World| w.fate != Fate::Starved,
        ),
        Property::always("no host breaks a rule of the two paths", |_, w: &World| {
            !matches!(w.broken, Some(Broken::Host(_)))
        }),
        Property::always(
            "every change of a chain ends once faults stop",
            |_, w: &World| !matches!(w.fate, Fate::Stranded | Fate::Endless),
        ),
        Property::always("both anchors end on one path that lives", |_, w: &World| {
            w.fate != Fate::Disagreement
        }),
        Property::always("no lock, record or path is left", |_, w: &World| {
            w.fate != Fate::Leftover
        }),
        Property::always("hosts that are left out forget", |_, w: &World| {
            w.fate != Fate::Remembered
        }),
        Property::always(
            "no state is left in firewalls that are left out",
            |_, w: &World| w.fate != Fate::StateLeft,
        ),
        Property::always(
            "a session can always get another chain again",
            |_, w: &World| w.fate != Fate::Stuck,
        ),
        Property::always("who asked for a chain is told", |_, w: &World| {
            w.fate != Fate::Untold
        }),
        Property::always("without faults one who asked wins", |_, w: &World| {
            w.fate != Fate::NobodyWon
        }),
    ]
}

/// True if no daemon is down or at work.
fn quiet(world: &World) -> bool {
    let waits = |m: &Machine| m.waits().next().is_some();
    let busy = |h: &Host| h.machine.as_ref().is_none_or(waits);
    let events = |h: &Host| !h.events.is_empty();
    world.net.is_empty() && !world.hosts().any(|h| busy(h) || events(h))
}

fn ended(world: &World, changed: bool) -> usize {
    let endings = world.hosts().flat_map(|h| &h.endings);
    let wanted = endings.filter(|e| e.changed == changed && e.role == Role::Head);
    wanted.count()
}

fn sometimes(seen: &Seen) -> Property<Exploration> {
    match seen {
        Seen::Changed => Property::sometimes("a session has another chain", |_, w: &World| {
            ended(w, true) > 0 && quiet(w)
        }),
        Seen::RollBack => Property::sometimes("a chain is rolled back", |_, w: &World| {
            ended(w, false) > 0 && quiet(w)
        }),
        Seen::BackFromNew => {
            Property::sometimes("both go back from a path that both took", |_, w: &World| {
                let cancels = w
                    .net
                    .iter()
                    .any(|l| matches!(l.message, Message::Cancel { .. }));
                let between = w.accepted.iter().any(|a| {
                    let [left, right] = a.anchors().map(|at| w.host(at));
                    let (here, there) = (left.planes[RIGHTWARDS], right.planes[LEFTWARDS]);
                    let taken = there.current.is_some() && right.hears(LEFTWARDS, here.current);
                    taken && here.current != there.current
                });
                cancels && between
            })
        }
        Seen::Twice => Property::sometimes("one chain after another", |_, w: &World| {
            ended(w, true) > 1 && quiet(w)
        }),
        Seen::AfterBack => Property::sometimes(
            "a chain comes after one that came to nothing",
            |_, w: &World| ended(w, true) > 0 && ended(w, false) > 0 && quiet(w),
        ),
        Seen::Locked => Property::sometimes("of two requests one is refused", |_, w: &World| {
            w.refused != 0 && ended(w, true) > 0
        }),
        Seen::Followed => Property::sometimes("the right anchor follows", |_, w: &World| {
            w.followed && ended(w, true) > 0
        }),
        Seen::StateMoved => {
            Property::sometimes("state moves, and all is taken back", |_, w: &World| {
                let begun = w.accepted.iter().any(|a| !a.state.is_empty());
                let new = |h: &Host| h.state && h.knows.is_empty();
                let back = |m: &Machine| m.changes().any(|c| c.phase == Phase::Cancelling);
                begun && w.hosts().any(new) && w.host(LEFT).machine.as_ref().is_some_and(back)
            })
        }
        Seen::Split => Property::sometimes("a segment is split", |_, w: &World| {
            w.streams.as_ref().is_some_and(|s| s.split)
        }),
        Seen::Repeated => Property::sometimes(
            "what was sent before is said again by a new path",
            |_, w: &World| w.streams.as_ref().is_some_and(|s| s.repeated),
        ),
        Seen::ClosedBetween => {
            Property::sometimes("both ends close between two paths", |_, w: &World| {
                w.has_closed_between()
            })
        }
        Seen::AtOnce => Property::sometimes("two segments change at once", |_, w: &World| {
            let both = |h: &Host| h.planes.iter().all(|p| p.other.is_some_and(|o| o.before));
            w.hosts().any(both)
        }),
        Seen::GoneOn => {
            Property::sometimes("a chain's change outlives a daemon", |_, w: &World| {
                ended(w, true) > 0 && w.hosts().any(|h| h.life > 0) && quiet(w)
            })
        }
    }
}
