//! A state of the model: hosts, what is on its way between them, and which
//! faults may still come.

use std::hash::{Hash, Hasher};

use dysco_daemon::protocol::{ChangeId, HostEvent, Machine, Order, Phase, Reason, Role, Timer};

use super::calm::Fate;
use super::config::{Configuration, Faults, LEFT, RIGHT};
use super::host::{self, Host, Later, Outcome, Route, Wrong, address};
use super::seed;
use crate::parts::{Net, Sealed, digest, post};
use crate::pump::{NOW, Twist};

/// Which rule a state breaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Broken {
    /// By a host.
    Host(Wrong),
    /// An anchor sends where the other does not hear it, or where a host does not
    /// know the session.
    Void,
    /// Two changes hold the session at once.
    Overlap,
}

/// A request that was accepted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Accepted {
    /// What it is called.
    pub change: ChangeId,
    /// Which of the configuration's chains it is for.
    pub chain: usize,
    /// The daemon that was asked.
    pub life: u8,
}

/// The state.
#[derive(Clone)]
pub struct World {
    hosts: Vec<Sealed<Host>>,
    /// What is on its way.
    pub net: Net,
    /// Faults that may still come.
    pub left: Faults,
    /// Requests made, as bits.
    pub asked: u8,
    /// Requests refused, since another held the session.
    pub refused: u8,
    /// Requests accepted.
    pub accepted: Vec<Accepted>,
    /// New paths that carry nothing any more.
    pub dead: Vec<ChangeId>,
    /// No fault has come.
    pub pure: bool,
    /// The left anchor waited in vain for a host that was to forget.
    pub impatient: bool,
    /// The right anchor took a path because the left one did.
    pub followed: bool,
    /// A rule was broken on the way here.
    pub broken: Option<Broken>,
    /// How it ends if nothing more goes wrong.
    pub fate: Fate,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.hosts, &self.net).hash(state);
        (self.left, self.asked, self.refused, &self.accepted).hash(state);
        (&self.dead, self.pure, self.impatient, self.followed).hash(state);
        self.broken.hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &World) -> bool {
        digest(self) == digest(other)
    }
}

/// In few words: the parts that hosts have, their paths, what is on its way.
impl std::fmt::Display for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = |route: Route| self.name(route);
        for host in self.hosts() {
            write!(f, "[{}", host.place)?;
            match &host.machine {
                Some(machine) => {
                    for c in machine.changes() {
                        write!(f, " {:?} {:?}", c.role, c.phase)?;
                    }
                }
                None => write!(f, " dead")?,
            }
            if host.is_anchor() {
                write!(f, " takes {}", named(host.plane.current))?;
                if let Some(other) = host.plane.other {
                    let what = if other.before { "hears" } else { "may take" };
                    write!(f, ", {what} {}", named(other.route))?;
                }
            }
            for route in &host.knows {
                write!(f, " knows {}", named(*route))?;
            }
            write!(f, "] ")?;
        }
        for letter in &self.net {
            write!(f, "{letter} ")?;
        }
        Ok(())
    }
}

impl World {
    /// The session is open, nothing is asked for.
    pub fn new(config: &Configuration) -> World {
        let forgets = seed::forgets_records(config.seed);
        let host = |place| {
            let passes = config.first.contains(&place);
            Sealed::new(Host::new(place, passes, forgets && place == LEFT))
        };
        World {
            hosts: (0..config.hosts).map(host).collect(),
            net: Vec::new(),
            left: config.faults,
            asked: 0,
            refused: 0,
            accepted: Vec::new(),
            dead: Vec::new(),
            pure: true,
            impatient: false,
            followed: false,
            broken: None,
            fate: Fate::default(),
        }
    }

    /// All hosts.
    pub fn hosts(&self) -> impl ExactSizeIterator<Item = &Host> + DoubleEndedIterator {
        self.hosts.iter().map(Sealed::get)
    }

    /// One of them.
    pub fn host(&self, place: usize) -> &Host {
        self.hosts[place].get()
    }

    /// The two ends of the session.
    pub fn anchors(&self) -> [&Host; 2] {
        [self.host(LEFT), self.host(RIGHT)]
    }

    /// The session has ended.
    pub fn gone(&self) -> bool {
        self.host(LEFT).plane.gone
    }

    /// Changes a host, and names it anew.
    pub fn edit<T>(&mut self, place: usize, f: impl FnOnce(&mut Host) -> T) -> T {
        self.hosts[place].edit(f)
    }

    /// The hosts that a path leads through.
    pub fn chain(&self, config: &Configuration, route: Route) -> &'static [usize] {
        let of = |change| self.accepted.iter().find(|a| a.change == change);
        match route {
            None => config.first,
            Some(change) => of(change).map_or(&[], |a| config.chains[a.chain]),
        }
    }

    fn name(&self, route: Route) -> String {
        let of = |change| self.accepted.iter().position(|a| a.change == change);
        match route.and_then(of) {
            None => "first".into(),
            Some(at) => format!("path{}", at + 1),
        }
    }

    /// Does a path carry nothing?
    pub fn is_dead(&self, route: Route) -> bool {
        route.is_some_and(|change| self.dead.contains(&change))
    }

    /// Takes in what an input of a host brought; false if its twist found
    /// nothing to act on.
    fn settle(&mut self, config: &Configuration, place: usize, twist: Twist, out: Outcome) -> bool {
        for (to, message) in out.letters {
            if seed::mutes(config.seed, &message) {
                continue;
            }
            if let Some(to) = host::place_of(to).filter(|to| *to < self.hosts.len()) {
                post(&mut self.net, place, to, message);
            }
        }
        if let Some(wrong) = out.wrong {
            self.broken = Some(Broken::Host(wrong));
        }
        seed::after(config, self, place);
        self.check(config);
        twist == Twist::Plain || out.twisted
    }

    /// What must hold at any moment.
    fn check(&mut self, config: &Configuration) {
        let changes = |h: &Host| h.machine.as_ref().map_or(0, |m| m.changes().count());
        if self.anchors().into_iter().any(|h| changes(h) > 1) {
            self.broken = Some(Broken::Overlap);
        }
        if !self.gone() && self.broken.is_none() && self.has_void(config) {
            self.broken = Some(Broken::Void);
        }
    }

    fn has_void(&self, config: &Configuration) -> bool {
        let [left, right] = self.anchors();
        [(left, right), (right, left)]
            .into_iter()
            .any(|(one, other)| {
                let route = one.plane.current;
                let chain = self.chain(config, route);
                !other.hears(route) || !chain.iter().all(|at| self.host(*at).knows.contains(&route))
            })
    }

    /// An operator asks for a chain; false if that makes no sense now.
    pub fn ask(&mut self, config: &Configuration, i: usize, twist: Twist) -> bool {
        let before = self.chain(config, self.host(LEFT).plane.current);
        let after = config.chains[i];
        if before == after {
            return false;
        }
        self.asked |= 1 << i;
        let hosts = |chain: &[usize]| chain.iter().map(|at| address(*at)).collect::<Vec<_>>();
        let mut order = Order {
            session: host::session(),
            before: hosts(before),
            after: hosts(after),
            state: Vec::new(),
        };
        if config.state {
            // No configuration has a host that stays and state.
            let pairs = order.before.iter().zip(&order.after);
            order.state = pairs.map(|(from, to)| (*from, *to)).collect();
        }
        let mut asked = Err(Reason::Cancelled);
        let out = self.edit(LEFT, |h| {
            h.input(twist, |m| asked = m.request_chain(NOW, order))
        });
        match asked {
            Ok(change) => self.accepted.push(Accepted {
                change,
                chain: i,
                life: self.host(LEFT).life,
            }),
            Err(_) => self.refused |= 1 << i,
        }
        self.settle(config, LEFT, twist, out)
    }

    /// An input of a host's machine.
    pub fn input(
        &mut self,
        config: &Configuration,
        place: usize,
        twist: Twist,
        give: impl FnOnce(&mut Machine),
    ) -> bool {
        let out = self.edit(place, |h| h.input(twist, give));
        self.settle(config, place, twist, out)
    }

    fn does(
        &mut self,
        config: &Configuration,
        place: usize,
        twist: Twist,
        what: impl FnOnce(&mut Host),
    ) -> bool {
        let out = self.edit(place, |h| h.does(twist, what));
        self.settle(config, place, twist, out)
    }

    /// A message arrives. A dead daemon does not hear it.
    pub fn deliver(
        &mut self,
        config: &Configuration,
        index: usize,
        keep: bool,
        twist: Twist,
    ) -> bool {
        let letter = self.net[index].clone();
        if !keep {
            self.net.remove(index);
        }
        let from = [address(letter.from)];
        let message = letter.message.clone();
        self.input(config, letter.to, twist, |m| {
            m.handle_message(NOW, &from, message);
        })
    }

    /// Something that a host was at has come about.
    pub fn happen(
        &mut self,
        config: &Configuration,
        place: usize,
        index: usize,
        twist: Twist,
    ) -> bool {
        let event = match self.edit(place, |h| h.events.remove(index)) {
            Later::Open(change) => HostEvent::Prepared {
                change,
                result: self.open(config, change),
            },
            Later::State(change, to) => HostEvent::StateMoved {
                change,
                to,
                result: Ok(()),
            },
            Later::Forgotten(change, from) => HostEvent::Forgotten { change, from },
            Later::Gone => {
                self.edit(place, |h| h.held.retain(|_, held| !held.completed));
                let subsession = host::session();
                HostEvent::SessionGone { subsession }
            }
        };
        self.does(config, place, twist, |h| h.tell(event))
    }

    /// The SYN of a path passes its hosts, and is answered, or not.
    fn open(&mut self, config: &Configuration, change: ChangeId) -> Result<(), Reason> {
        let route = Some(change);
        for at in self.chain(config, route) {
            self.edit(*at, |h| h.knows.insert(route));
        }
        let dead = self.is_dead(route);
        let answers = self.edit(RIGHT, |h| {
            let awaits = h.plane.awaits;
            let next = h.plane.other.as_mut();
            let next = next.filter(|o| o.route == route && !o.before && !dead);
            next.is_some_and(|other| {
                other.joined |= awaits;
                other.joined && h.machine.is_some()
            })
        });
        match answers && !self.gone() {
            true => Ok(()),
            false => Err(Reason::Cancelled),
        }
    }

    /// May the right anchor's data plane follow the left one's?
    pub fn can_follow(&self) -> bool {
        let [left, right] = self.anchors();
        let route = left.plane.current;
        let next = right.plane.other.filter(|o| o.route == route && !o.before);
        next.is_some_and(|o| o.joined) && !self.is_dead(route) && !self.gone()
    }

    /// The first data comes by the new path.
    pub fn follow(&mut self, config: &Configuration) {
        let route = self.host(LEFT).plane.current;
        self.edit(RIGHT, |h| h.take(route, h.plane.current));
        self.followed = true;
        self.check(config);
    }

    /// The change whose path has carried at this anchor what it had to, unseen yet.
    pub fn carried(&self, place: usize) -> Option<ChangeId> {
        let host = self.host(place);
        host.machine.as_ref()?;
        let far = self.host(LEFT + RIGHT - place).plane.current;
        let here = host.plane.current;
        let (change, _) = host.held.iter().find(|(_, h)| {
            h.cut && h.far && !h.settled && h.second == here && h.second.is_some()
        })?;
        (far == here && !self.is_dead(here) && !self.gone()).then_some(*change)
    }

    /// The engine looks at the path.
    pub fn look(&mut self, config: &Configuration, place: usize, twist: Twist) -> bool {
        let Some(change) = self.carried(place) else {
            return false;
        };
        self.does(config, place, twist, |h| h.settled(change))
    }

    /// A change that only waits for late packets.
    pub fn waits_late(&self, place: usize) -> Option<ChangeId> {
        let host = self.host(place);
        host.machine.as_ref()?;
        let late = host.held.iter().find(|(_, h)| h.completed && h.erased);
        late.map(|(change, _)| *change)
    }

    /// They have come.
    pub fn late(&mut self, config: &Configuration, place: usize) {
        if let Some(change) = self.waits_late(place) {
            self.edit(place, |h| h.late(change));
            self.check(config);
        }
    }

    /// The path that an anchor may take next, or takes and may leave again, unless
    /// both have seen that it carries the session.
    pub fn mortal(&self) -> Option<ChangeId> {
        let change = self.accepted.last()?.change;
        let [left, right] = self.anchors();
        let settled = |h: &Host| h.held.get(&change).is_some_and(|held| held.settled);
        let under_way = left
            .machine
            .as_ref()?
            .changes()
            .find(|c| c.change == change)?;
        let before = under_way.phase < Phase::Completing;
        let both = settled(left) && settled(right);
        (before && !both && !self.dead.contains(&change)).then_some(change)
    }

    /// The session ends.
    pub fn reset(&mut self) {
        for place in [LEFT, RIGHT] {
            self.edit(place, |h| {
                h.plane.gone = true;
                if h.machine.is_some() {
                    h.events.push(Later::Gone);
                }
            });
        }
    }

    /// A timer says its message again.
    pub fn repeat(&mut self, config: &Configuration, place: usize, timer: Timer) {
        let mut out = self.edit(place, |h| h.input(Twist::Plain, |m| m.repeat(NOW, timer)));
        out.letters
            .retain(|(_, message)| !seed::silences(config.seed, message));
        self.settle(config, place, Twist::Plain, out);
    }

    /// A timer's deadline passes.
    pub fn expire(
        &mut self,
        config: &Configuration,
        place: usize,
        timer: Timer,
        twist: Twist,
    ) -> bool {
        let of = |world: &World| {
            let changes = world.host(place).machine.iter().flat_map(Machine::changes);
            let mut head = changes.filter(|c| c.role == Role::Head);
            head.next().map(|c| (c.change, c.phase))
        };
        let before = of(self);
        let done = self.input(config, place, twist, |m| m.expire(NOW, timer));
        let dismisses = matches!(before, Some((_, Phase::Closing | Phase::Cancelling)));
        self.impatient |= dismisses && of(self).is_none() && self.host(place).machine.is_some();
        done
    }

    /// A daemon starts anew.
    pub fn start(&mut self, config: &Configuration, place: usize) {
        let out = self.edit(place, Host::start);
        self.settle(config, place, Twist::Plain, out);
    }

    /// Nothing is on its way and no daemon is away or at work: only time can
    /// do anything about the changes.
    pub fn only_time_helps(&self) -> bool {
        let idle = |h: &Host| h.machine.is_some() && h.events.is_empty();
        let looks = |place| self.carried(place).is_some() || self.waits_late(place).is_some();
        self.net.is_empty() && self.hosts().all(idle) && ![LEFT, RIGHT].into_iter().any(looks)
    }
}
