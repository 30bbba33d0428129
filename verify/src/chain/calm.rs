//! How a state ends if from now on nothing goes wrong.

use dysco_daemon::protocol::{ChangeId, Machine, Margins, Message, Order, Role, Timer};

use super::config::{Configuration, LEFT, RIGHT};
use super::host::{self, Host, LEFTWARDS, Plane, RIGHTWARDS, address};
use super::world::World;
use crate::pump::{NOW, Twist};
use crate::run::Calm;

/// How a state ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fate {
    /// All is over and in order.
    #[default]
    Ends,
    /// It goes on for ever.
    Endless,
    /// Nothing can happen any more, and a change is still under way.
    Stranded,
    /// The two anchors are on different paths, or on one that carries nothing.
    Disagreement,
    /// A record, a lock, or a second path is left over.
    Leftover,
    /// A host that is left out still knows the session.
    Remembered,
    /// Who asked has not been told the end.
    Untold,
    /// Nothing went wrong, and nothing came of what was asked for.
    NobodyWon,
}

impl Calm for World {
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

/// What must hold when nothing is left to happen.
fn judge(world: &World, config: &Configuration) -> Fate {
    let under_way = |m: &Machine| m.changes().next().is_some() || m.waits().next().is_some();
    if world
        .hosts()
        .any(|h| h.machine.as_ref().is_some_and(under_way))
    {
        return Fate::Stranded;
    }
    let sides = [RIGHTWARDS, LEFTWARDS].map(|side| world.trace(config, side).unwrap_or_default());
    let [mut there, mut back] = sides
        .clone()
        .map(|trace| trace.into_iter().map(|(_, r)| r).collect::<Vec<_>>());
    back.reverse();
    there.dedup();
    back.dedup();
    let dead = there.iter().any(|route| world.is_dead(*route));
    if !world.gone() && (there != back || there.is_empty() || dead) {
        return Fate::Disagreement;
    }
    let left_over = |h: &Host| {
        let left = |p: &Plane| p.other.is_some() || p.awaits;
        let paths = !world.gone() && h.planes.iter().any(left);
        !h.records.is_empty() || !h.held.is_empty() || paths
    };
    if world.hosts().any(left_over) || !world.hosts().all(is_free) {
        return Fate::Leftover;
    }
    let [trace, _] = sides;
    let remembers = |h: &Host| {
        let by = trace.iter().find(|(at, _)| *at == h.place).map(|(_, r)| *r);
        match by {
            // An anchor of before passes on by two paths.
            Some(_) if h.planes.iter().any(|p| p.active) => false,
            Some(route) => h.knows.iter().any(|known| *known != route),
            None => !h.knows.is_empty(),
        }
    };
    if !world.gone() && !world.impatient && world.hosts().any(remembers) {
        return Fate::Remembered;
    }
    let left = world.host(LEFT);
    let untold = world.accepted.iter().any(|a| {
        let told = |h: &Host| {
            h.endings
                .iter()
                .any(|e| e.change == a.change && e.role == Role::Head)
        };
        a.life == left.life && !told(left)
    });
    if untold {
        return Fate::Untold;
    }
    let won = left
        .endings
        .iter()
        .filter(|e| e.changed && e.role == Role::Head)
        .count();
    let wanted = match config.disjoint {
        true => world.accepted.len(),
        false => world.accepted.len().min(1),
    };
    if world.pure && won < wanted {
        return Fate::NobodyWon;
    }
    Fate::Ends
}

/// Would a host be an anchor of another change?
fn is_free(host: &Host) -> bool {
    let Some(mut machine) = host.machine.clone() else {
        return false;
    };
    let session = host::session();
    if host.place == LEFT {
        let order = Order {
            session,
            before: Vec::new(),
            after: Vec::new(),
            margins: Margins::default(),
            state: Vec::new(),
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
