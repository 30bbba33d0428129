//! How a state ends if from now on nothing goes wrong.

use dysco_daemon::protocol::{ChangeId, Machine, Message, Order, Role, Timer};

use super::config::{Configuration, LEFT, RIGHT};
use super::host::{self, Host, address};
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
        let carried = [LEFT, RIGHT]
            .into_iter()
            .find(|p| self.carried(*p).is_some());
        let late = [LEFT, RIGHT]
            .into_iter()
            .find(|p| self.waits_late(*p).is_some());
        if let Some(place) = down {
            self.start(config, place);
        } else if !self.net.is_empty() {
            self.deliver(config, 0, false, Twist::Plain);
        } else if let Some(place) = busy {
            self.happen(config, place, 0, Twist::Plain);
        } else if let Some(place) = carried {
            self.look(config, place, Twist::Plain);
        } else if let Some(place) = late {
            self.late(config, place);
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

    fn judge(&self, _: &Configuration) -> Fate {
        judge(self)
    }
}

/// What must hold when nothing is left to happen.
fn judge(world: &World) -> Fate {
    let under_way = |m: &Machine| m.changes().next().is_some() || m.waits().next().is_some();
    if world
        .hosts()
        .any(|h| h.machine.as_ref().is_some_and(under_way))
    {
        return Fate::Stranded;
    }
    let [left, right] = world.anchors();
    let route = left.plane.current;
    if !world.gone() && (route != right.plane.current || world.is_dead(route)) {
        return Fate::Disagreement;
    }
    let left_over = |h: &Host| {
        let paths = !world.gone() && (h.plane.other.is_some() || h.plane.awaits);
        !h.records.is_empty() || !h.held.is_empty() || paths
    };
    if world.hosts().any(left_over) || !is_free(left) || !is_free(right) {
        return Fate::Leftover;
    }
    let remembers = |h: &Host| h.knows.iter().any(|known| *known != route);
    if !world.gone() && !world.impatient && world.hosts().any(remembers) {
        return Fate::Remembered;
    }
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
    if world.pure && !world.accepted.is_empty() && route.is_none() {
        return Fate::NobodyWon;
    }
    Fate::Ends
}

/// Would an anchor take part in another change?
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
            state: Vec::new(),
        };
        return machine.request_chain(NOW, order).is_ok();
    }
    let message = Message::Extend {
        change: ChangeId([0xff; 16]),
        session,
        token: [0; 2],
    };
    machine.handle_message(NOW, &[address(LEFT)], message);
    machine.poll_command().is_some()
}
