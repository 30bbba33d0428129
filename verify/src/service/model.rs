//! The model to explore.

use stateright::{Model, Property};

use super::actions::{Action, twists};
use super::config::{Configuration, Seen};
use super::fate::Fate;
use super::network::{Mishap, Place};
use super::tcp::{Harm, Say};
use super::world::{Broken, World};
use crate::report::Explorable;
use crate::run::{Fates, account};

/// A configuration, and the known outcomes of its states.
pub struct Exploration {
    config: Configuration,
    fates: Fates<World>,
}

impl Exploration {
    /// Creates the exploration of one configuration.
    pub fn new(config: Configuration) -> Exploration {
        Exploration {
            config,
            fates: Fates::default(),
        }
    }

    /// Adds the segments that sockets may send, with and without a fault.
    fn packets(&self, world: &World, idle: bool, actions: &mut Vec<Action>) {
        let left = &world.left;
        for place in world.places(&self.config) {
            for what in [Say::New, Say::Ack, Say::Again, Say::AllAgain] {
                let repeats = matches!(what, Say::Again | Say::AllAgain);
                if repeats && left.again == 0 && !idle {
                    continue;
                }
                let say = |twist| Action::Say { place, what, twist };
                actions.push(say(None));
                let twists = twists(left.lost > 0, left.late > 0);
                actions.extend(twists.map(|twist| say(Some(twist))));
            }
        }
        for index in 0..world.late.len() {
            actions.push(Action::Land { index, keep: false });
            if left.late > 0 {
                actions.push(Action::Land { index, keep: true });
            }
        }
    }

    /// Adds the possible fates of the messages in flight.
    fn messages(&self, world: &World, idle: bool, actions: &mut Vec<Action>) {
        let left = &world.left;
        for index in 0..world.net.len() {
            actions.push(Action::Deliver { index, keep: false });
            if left.doubled > 0 {
                actions.push(Action::Deliver { index, keep: true });
            }
            if left.unheard > 0 {
                actions.push(Action::Lose(index));
            }
        }
        for host in 0..world.hosts.len() {
            if self.config.pair && (idle || left.doubled > 0) {
                actions.push(Action::Repeat(host));
            }
            if self.config.pair && (idle || left.hasty > 0) {
                actions.push(Action::GiveUp(host));
            }
        }
        world.tunnels_come(actions);
    }

    /// Adds the steps of hosts.
    fn hosts(&self, world: &World, actions: &mut Vec<Action>) {
        for host in 0..world.hosts.len() {
            if self.config.asked & 1 << host != 0 {
                actions.extend([Action::Put(host), Action::Take(host)]);
            }
            actions.extend([
                Action::Settle(host),
                Action::Still(host),
                Action::CutOff(host),
            ]);
            if world.left.deaths > 0 {
                actions.push(Action::HandlerDies(host));
            }
            if world.left.crashes > 0 {
                actions.push(Action::Crash(host));
            }
            if world.hosts[host].daemon.dead {
                actions.push(Action::Start(host));
            }
        }
    }

    /// Charges a step that is a fault.
    fn pay(&self, world: &mut World, action: &Action, idle: bool) {
        let left = &mut world.left;
        let budget = match action {
            Action::Say { twist, what, .. } => {
                if matches!(what, Say::Again | Say::AllAgain) && !idle {
                    left.again -= 1;
                }
                match twist.map(|twist| twist.what) {
                    Some(Mishap::Lost) => &mut left.lost,
                    Some(Mishap::Late | Mishap::Twice) => &mut left.late,
                    None => return,
                }
            }
            Action::Land { keep: true, .. } => &mut left.late,
            Action::Deliver { keep: true, .. } => &mut left.doubled,
            Action::Lose(_) => &mut left.unheard,
            Action::Repeat(_) if !idle => &mut left.doubled,
            Action::GiveUp(_) if !idle => &mut left.hasty,
            Action::HandlerDies(_) => &mut left.deaths,
            Action::Crash(_) => &mut left.crashes,
            _ => return,
        };
        *budget -= 1;
    }
}

impl Model for Exploration {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.config)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_some() || world.fate != Fate::Good {
            return;
        }
        let idle = world.only_time_helps(&self.config);
        self.packets(world, idle, actions);
        self.messages(world, idle, actions);
        self.hosts(world, actions);
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        let charged = matches!(
            action,
            Action::Say {
                what: Say::Again | Say::AllAgain,
                ..
            } | Action::Repeat(_)
                | Action::GiveUp(_)
        );
        let idle = charged && before.only_time_helps(&self.config);
        if !world.act(&self.config, &action) || world == *before {
            return None;
        }
        self.pay(&mut world, &action, idle);
        world.check(&self.config);
        world.excuse_no_more(&self.config);
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

/// Properties that must hold in every state.
pub fn always() -> Vec<Property<Exploration>> {
    vec![
        Property::always(
            "no socket hears of bytes that it has not sent",
            |_, w: &World| w.broken != Some(Broken::Tcp(Harm::AckOfUnsent)),
        ),
        Property::always("no two bytes have one number", |_, w: &World| {
            w.broken != Some(Broken::Tcp(Harm::TwoBytes))
        }),
        Property::always(
            "each byte arrives once, in order, and handled between its cutoffs alone",
            |_, w: &World| w.broken != Some(Broken::Stream),
        ),
        Property::always(
            "what a pair has to encrypt leaves no host as it is",
            |_, w: &World| w.broken != Some(Broken::Plain),
        ),
        Property::always(
            "both hosts of a pair cut at the same byte",
            |_, w: &World| w.broken != Some(Broken::Cutoffs),
        ),
        Property::always("no session is reset without need", |_, w: &World| {
            w.broken != Some(Broken::Reset)
        }),
        Property::always(
            "every byte arrives in the end, and is acknowledged",
            |_, w: &World| w.fate != Fate::Missing,
        ),
        Property::always(
            "every change of services ends, and leaves nothing",
            |_, w: &World| !matches!(w.fate, Fate::Unfinished | Fate::Endless),
        ),
        Property::always("no end waits for one that was reset", |_, w: &World| {
            w.fate != Fate::HalfReset
        }),
    ]
}

fn sometimes(seen: &Seen) -> Property<Exploration> {
    fn has(w: &World, what: Seen) -> bool {
        w.history & 1 << what as u16 != 0
    }
    match seen {
        Seen::Put => Property::sometimes("services come in", |_, w| has(w, Seen::Put)),
        Seen::Taken => Property::sometimes("services leave", |_, w| has(w, Seen::Taken)),
        Seen::PutAgain => {
            Property::sometimes("services come in again", |_, w| has(w, Seen::PutAgain))
        }
        Seen::Divided => Property::sometimes("a packet is divided", |_, w| has(w, Seen::Divided)),
        Seen::Inferred => Property::sometimes("a program finds a cutoff by itself", |_, w| {
            has(w, Seen::Inferred)
        }),
        Seen::Refused => Property::sometimes("a host refuses", |_, w| has(w, Seen::Refused)),
        Seen::BothLeave => {
            Property::sometimes("both hosts ask to leave", |_, w| has(w, Seen::BothLeave))
        }
        Seen::Reset => {
            Property::sometimes("a lost session is reset at both ends", |_, w: &World| {
                w.ends.iter().all(|end| end.dead)
            })
        }
    }
}

impl Explorable for Exploration {
    fn name(&self) -> [&'static str; 2] {
        [self.config.name, self.config.about]
    }

    fn tell(&self, world: &World, action: &Action) -> String {
        match action {
            Action::Deliver { index, keep } => {
                let again = if *keep { ", to come again" } else { "" };
                format!("{} arrives{again}", world.net[*index])
            }
            Action::Lose(index) => format!("{} is lost", world.net[*index]),
            Action::Say { place, what, twist } => {
                let place = match place {
                    Place::End(i) => format!("end {i}"),
                    Place::Socket(host, which) => format!("{} of {host}", ["near", "far"][*which]),
                };
                let twist = twist.map_or(String::new(), |twist| {
                    format!(" (packet {} {:?})", twist.at, twist.what)
                });
                format!("{place}: {what:?}{twist}")
            }
            Action::Land { index, .. } => {
                let late = &world.late[*index];
                format!("late, to {:?}: {:?}", late.to, late.packet)
            }
            other => format!("{other:?}"),
        }
    }

    fn explain(&self, world: &World) -> Vec<String> {
        account(&self.config, world, &world.broken, &world.fate)
    }
}
