//! The model to explore.

mod actions;
mod properties;

use dysco_proto::{ChangeId, Machine, Time, Timer};
use stateright::{Model, Property};

use crate::config::{Configuration, Request};
use crate::drive::{NOW, Twist};
use crate::place::{self, Side};
use crate::report::Explorable;
use crate::run::{Fates, account};
use crate::socket::{Death, Say};
use crate::world::{Broken, Lost, World};
use properties::{overlapping, sometimes};

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
    /// An operator makes a request.
    Request(usize),
    /// An operator cancels a change.
    Cancel(usize, ChangeId, Twist),
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
    Start(usize, Twist),
    /// A daemon takes the next notice of its programs.
    Listen(usize, Twist),
    /// A daemon that was held up continues.
    GoOn(usize, Twist),
    /// A socket sends a segment.
    Packet {
        /// Index of the host.
        place: usize,
        /// Side of the session.
        side: Side,
        /// Kind of the segment.
        say: Say,
        /// Place at which the segment is lost, if it is lost.
        lost: Lost,
    },
    /// A session's entry is collected.
    Collect(usize, Side),
    /// The new path no longer carries anything to the right or to the left.
    PathDies([bool; 2]),
    /// The process of a proxy dies. The values state how its left and right socket end.
    ProxyDies(usize, [Death; 2]),
    /// The left anchor on this host shows on its new path how far its end has sent.
    Announce(usize),
    /// A reset with this number answers the packet that opens a new path at this host.
    Reject(usize, Side, u32),
    /// For a seeded bug: a deadline from before the cutover passes.
    Late(usize),
}

impl Action {
    /// Returns the fault of a daemon that comes with the step.
    fn twist(&self) -> Twist {
        match self {
            Action::Deliver { twist, .. }
            | Action::Happen { twist, .. }
            | Action::Expire { twist, .. }
            | Action::Cancel(_, _, twist)
            | Action::Listen(_, twist)
            | Action::Start(_, twist)
            | Action::GoOn(_, twist) => *twist,
            _ => Twist::Plain,
        }
    }
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
        let only_time = world.only_time_helps();
        let left = &mut world.left;
        let twisted = match action.twist() {
            Twist::Plain => None,
            Twist::HeldUp(_) => {
                left.delays -= 1;
                None
            }
            Twist::Dies(_) => Some(&mut left.crashes),
            Twist::Fails(_) => Some(&mut left.refusals),
        };
        let twisted = twisted.map(|budget| *budget -= 1).is_some();
        let budget = match action {
            Action::Cancel(..) => &mut left.cancels,
            Action::Deliver { keep: true, .. } => &mut left.duplicates,
            Action::Lose(_) => &mut left.losses,
            Action::Repeat(..) if !only_time => &mut left.duplicates,
            Action::Expire { .. } if !only_time => &mut left.late,
            Action::Late(_) => &mut left.late,
            Action::Crash(_) => &mut left.crashes,
            Action::PathDies(_) => &mut left.deaths,
            Action::ProxyDies(..) => &mut left.proxies,
            Action::Packet {
                lost: Lost::AtOnce | Lost::Beyond,
                ..
            } => &mut left.packets,
            Action::Expire { .. } => {
                world.pure = false;
                return;
            }
            Action::Packet {
                say: Say::Reset,
                place,
                side,
                ..
            } => {
                world.pure = false;
                if !world.must_reset(*place, *side) {
                    world.left.resets -= 1;
                }
                return;
            }
            Action::Packet {
                say: Say::Again | Say::AllAgain,
                ..
            } => {
                // Retransmissions beyond the budget for early ones occur when everything is idle.
                left.again = left.again.saturating_sub(1);
                return;
            }
            _ => {
                world.pure &= !twisted;
                return;
            }
        };
        *budget -= 1;
        world.pure = false;
    }

    fn act(&self, world: &mut World, action: &Action) -> bool {
        let config = &self.config;
        match *action {
            Action::Request(i) => self.ask(world, i),
            Action::Cancel(place, change, twist) => {
                world.input(config, place, twist, |m| m.cancel(NOW, change))
            }
            Action::Deliver { index, keep, twist } => world.deliver(config, index, keep, twist),
            Action::Lose(index) => {
                world.net.remove(index);
                true
            }
            Action::Happen {
                place,
                index,
                twist,
            } => world.happen(config, place, index, twist),
            Action::Repeat(place, timer) => {
                world.repeat(config, place, timer);
                true
            }
            Action::Expire {
                place,
                timer,
                twist,
            } => world.expire(config, place, timer, twist),
            Action::Crash(place) => {
                world.edit(place, |h| h.die());
                true
            }
            Action::Start(place, twist) => world.start(config, place, twist),
            Action::Listen(place, twist) => world.listen(config, place, twist),
            Action::GoOn(place, twist) => world.go_on(config, place, twist),
            Action::Packet {
                place,
                side,
                say,
                lost,
            } => world.packet(config, place, side, say, lost),
            Action::Collect(place, side) => world.collect(config, place, side, Twist::Plain),
            Action::PathDies(ways) => world.dies(ways),
            Action::ProxyDies(place, how) => world.proxy_dies(place, how),
            Action::Announce(place) => world.announce(place),
            Action::Reject(place, side, next) => world.answered_by_reset(config, place, side, next),
            Action::Late(place) => world
                .late_timer(place)
                .is_some_and(|timer| world.expire(config, place, timer, Twist::Plain)),
        }
    }

    fn ask(&self, world: &mut World, i: usize) -> bool {
        let config = &self.config;
        world.asked |= 1 << i;
        let leave = |m: &mut Machine, at| {
            let a = place::subsession(at, Side::Left);
            let _ = match config.alone {
                true => m.request_local(NOW, a),
                false => m.request_leave(NOW, a),
            };
        };
        match config.requests[i] {
            Request::Leave { at } => world.input(config, at, Twist::Plain, |m| {
                leave(m, at);
            }),
            Request::Again { at } => {
                world.repaired();
                world.pure = config.closes == [false; 2]
                    && !world.hosts().any(|h| h.sockets.iter().any(|s| s.reset));
                world.input(config, at, Twist::Plain, |m| {
                    leave(m, at);
                })
            }
            Request::Ask { at, of } => world.input(config, at, Twist::Plain, |m| {
                let side = if at < of { Side::Right } else { Side::Left };
                let named = place::addresses(of)[usize::from(at > of)];
                let _ = m.request_ask(NOW, named, place::subsession(at, side));
            }),
        }
    }
}

impl Model for Exploration {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut world = World::new(&self.config);
        world.pure = self.config.closes == [false; 2];
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_some() {
            return;
        }
        self.requests(world, actions);
        self.messages(world, actions);
        self.hosts(world, actions);
        self.packets(world, actions);
        self.deaths(world, actions);
        self.proxy_deaths(world, actions);
        self.shows(world, actions);
        self.rejections(world, actions);
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        self.pay(&mut world, &action);
        if !self.act(&mut world, &action) {
            return None;
        }
        world.cut |= world.is_cut();
        if overlapping(&world) {
            world.broken = Some(Broken::Overlap);
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
                let name = event.split(' ').next().unwrap_or_default();
                format!("{place}: {name}{}", twist.aside())
            }
            other => format!("{other:?}"),
        }
    }

    fn explain(&self, world: &World) -> Vec<String> {
        account(&self.config, world, &world.broken, &world.fate)
    }
}
