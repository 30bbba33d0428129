//! The model to explore.

mod actions;
mod properties;

use dysco_proto::{ChangeId, HostId, Time, Timer};
use stateright::{Model, Property};

use super::configuration::{Configuration, LEFT};
use super::host::{Host, Route};
use super::streams::Delivery;
use super::world::World;
use crate::drive::{NOW, Twist};
use crate::report::Explorable;
use crate::run::{Fates, account};
use crate::socket::Say;
use properties::sometimes;

pub use properties::always;

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
        match action {
            Action::Deliver { index, keep, twist } => {
                let again = if *keep { ", to come again" } else { "" };
                format!("{} arrives{again}{}", world.net[*index], twist.aside())
            }
            Action::Lose(index) => format!("{} is lost", world.net[*index]),
            Action::Happen {
                place,
                index,
                twist,
            } => {
                let event = format!("{:?}", world.host(*place).events[*index]);
                let name = event.split('(').next().unwrap_or_default();
                format!("{place}: {name}{}", twist.aside())
            }
            other => format!("{other:?}"),
        }
    }

    fn explain(&self, world: &World) -> Vec<String> {
        account(&self.config, world, &world.broken, &world.fate)
    }
}
