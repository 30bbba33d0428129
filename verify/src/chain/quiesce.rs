//! Outcome of a state if nothing goes wrong from now on.

use dysco_proto::{ChangeId, Machine, Margins, Message, Order, Role, Timer};

use super::ask::LAST;
use super::configuration::{Configuration, LEFT, RIGHT};
use super::fate::Fate;
use super::host::{Ending, Host, Plane, Route};
use super::place::{LEFTWARDS, RIGHTWARDS, address, session};
use super::world::{Accepted, World};
use crate::drive::{NOW, Twist};
use crate::nature::Nature;
use crate::run::{Fates, Quiesce};

impl Quiesce for World {
    type Configuration = Configuration;
    type Fate = Fate;

    const ENDLESS: Fate = Fate::Endless;
    const STEPS: usize = 2000;

    fn machines(&self) -> impl Iterator<Item = (usize, &Machine)> {
        self.hosts()
            .filter_map(|h| Some((h.place, h.machine.as_ref()?)))
    }

    fn step(&mut self, config: &Configuration) -> bool {
        let down = self.hosts().position(|h| h.machine.is_none());
        let busy = self.hosts().position(|h| !h.events.is_empty());
        let places = || 0..self.hosts().len();
        let carried = places().find_map(|p| Some((p, self.carried(p).next()?)));
        let late = places().find_map(|p| Some((p, self.waits_late(p).next()?)));
        let in_vain = self.waits_in_vain(LEFT).next();
        let uncertain = self.uncertain().next();
        if let Some(place) = down {
            self.start(config, place);
        } else if !self.net.is_empty() {
            self.deliver(config, 0, false, Twist::Plain);
        } else if let Some(place) = busy {
            self.happen(config, place, 0, Twist::Plain);
        } else if let Some((place, change)) = carried {
            self.look(config, place, change, Twist::Plain);
        } else if let Some((place, change)) = late {
            self.late(config, place, change);
        } else if let Some((change, to)) = in_vain {
            self.give_up_state(change, to);
        } else if let Some(place) = uncertain {
            self.ask_in_use(place);
        } else if self.stream(config) {
        } else if self.is_collectable(config) {
            self.reset();
        } else {
            return false;
        }
        true
    }

    fn says_again(&mut self, config: &Configuration, place: usize, timer: Timer) {
        self.repeat(config, place, timer);
    }

    fn times_out(&mut self, config: &Configuration, place: usize, timer: Timer) {
        self.expire(config, place, timer, Twist::Plain);
    }

    fn judge(&self, config: &Configuration) -> Fate {
        judge(self, config)
    }
}

/// Checks what must hold when nothing is left to happen.
fn judge(world: &World, config: &Configuration) -> Fate {
    let under_way = |m: &Machine| m.changes().next().is_some() || m.waits().next().is_some();
    if world
        .hosts()
        .any(|h| h.machine.as_ref().is_some_and(under_way))
    {
        return Fate::Stranded;
    }
    let sides = [RIGHTWARDS, LEFTWARDS].map(|side| world.trace(config, side).unwrap_or_default());
    if !world.gone() && !are_one_living_path(world, &sides) {
        return Fate::Disagreement;
    }
    let left_over = |h: &Host| {
        let left = |p: &Plane| p.other.is_some() || p.awaits;
        let paths = !world.gone() && h.planes.iter().any(left);
        !h.records.is_empty() || !h.held.is_empty() || paths
    };
    let unended = world.has_closed(config);
    if unended || world.hosts().any(left_over) || !world.hosts().all(is_free) {
        return Fate::Leftover;
    }
    let [trace, _] = sides;
    if !world.gone() && remember_other_paths(world, &trace) {
        return Fate::Remembered;
    }
    let has_state = |h: &Host| h.state && !trace.iter().any(|(at, _)| *at == h.place);
    if config.state && !world.gone() && !world.impatient && world.hosts().any(has_state) {
        return Fate::StateLeft;
    }
    if !world.gone() && !world.is_carried(config) {
        return Fate::Starved;
    }
    let left = world.host(LEFT);
    let ended = |a: &Accepted| {
        let mut endings = left.endings.iter();
        endings.any(|e| e.change == a.change && e.role == Role::Head)
    };
    if world
        .accepted
        .iter()
        .any(|a| a.life == left.life && !ended(a))
    {
        return Fate::Unreported;
    }
    // A path that alters packets is not taken.
    if world.pure && !world.gone() && config.nature.is_plain() && wins_are_missing(world, config) {
        return Fate::NobodyWon;
    }
    match world.gone() || world.impatient {
        true => Fate::Ends,
        false => once_more(world, config),
    }
}

/// True if the packets of both directions take one path, which lives.
fn are_one_living_path(world: &World, sides: &[Vec<(usize, Route)>; 2]) -> bool {
    let [mut there, mut back] = sides
        .each_ref()
        .map(|trace| trace.iter().map(|(_, route)| *route).collect::<Vec<_>>());
    back.reverse();
    there.dedup();
    back.dedup();
    let dead = there.iter().any(|route| world.is_dead(*route));
    there == back && !there.is_empty() && !dead
}

/// True if a host knows a path that its packets do not take.
fn remember_other_paths(world: &World, trace: &[(usize, Route)]) -> bool {
    let remembers = |h: &Host| {
        let by = trace.iter().find(|(at, _)| *at == h.place).map(|(_, r)| *r);
        match by {
            // A former anchor forwards by two paths.
            Some(_) if h.planes.iter().any(|p| p.active) => false,
            Some(route) => h.knows.iter().any(|known| *known != route),
            None => !h.knows.is_empty(),
        }
    };
    // A host that stays is notified sooner or later, or asks.
    let by_two = |h: &Host| {
        let passes = trace.iter().any(|(at, _)| *at == h.place);
        passes && h.knows.len() > 1 && !h.planes.iter().any(|p| p.active)
    };
    !world.impatient && world.hosts().any(remembers) || world.hosts().any(by_two)
}

/// True if fewer changes have succeeded than no fault can prevent.
fn wins_are_missing(world: &World, config: &Configuration) -> bool {
    let endings = &world.host(LEFT).endings;
    let won = endings
        .iter()
        .filter(|e| e.changed && e.role == Role::Head)
        .count();
    let possible = world.accepted.iter().filter(|a| !world.is_behind_delta(a));
    let wanted = match config.disjoint {
        true => possible.count(),
        false => possible.count().min(1),
    };
    won < wanted
}

/// Checks that the next request succeeds after any earlier requests and outcomes.
fn once_more(world: &World, config: &Configuration) -> Fate {
    if !world.once_more {
        // The devices on new paths no longer interfere.
        let plain = Configuration {
            nature: Nature::Plain,
            ..config.clone()
        };
        let mut again = world.clone();
        again.ask_once_more(&plain);
        return Fates::default().of(&plain, &again);
    }
    let last = world.accepted.last().map(|a| a.change);
    let endings = &world.host(LEFT).endings;
    let came = |e: &&Ending| e.changed && e.role == Role::Head && Some(e.change) == last;
    let refused = world.refused & (1 << LAST) != 0;
    match endings.iter().find(came) {
        Some(_) if !refused && world.broken.is_none() => Fate::Ends,
        _ => Fate::Stuck,
    }
}

/// True if a host would be an anchor of another change.
fn is_free(host: &Host) -> bool {
    let Some(mut machine) = host.machine.clone() else {
        return false;
    };
    let session = session();
    if host.place == LEFT {
        let order = Order {
            session,
            before: Vec::new(),
            after: Vec::new(),
            margins: Margins::default(),
            state: Vec::new(),
            paths: Vec::new(),
            number: 0,
        };
        return machine.request_chain(NOW, order).is_ok();
    }
    let change = ChangeId([0xff; 16]);
    let token = [0; 2];
    let extend = Message::Extend {
        change,
        session,
        token,
    };
    let lead = Message::Lead {
        change: ChangeId([0xfe; 16]),
        session,
    };
    let asked: &[Message] = match host.place {
        RIGHT => &[extend],
        _ => &[extend, lead],
    };
    asked.iter().all(|message| {
        machine.handle_message(NOW, &[address(LEFT)], message.clone());
        machine.poll_command().is_some()
    })
}
