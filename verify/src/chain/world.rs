//! A state of the model: hosts, what is on its way between them, and which
//! faults may still come.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use dysco_common::Delta;
use dysco_daemon::protocol::{
    ChangeId, HostEvent, Machine, Margins, Message, Order, Phase, Reason, Role, Timer,
};

use super::calm::Fate;
use super::config::{Ask, Configuration, Faults, LEFT, RIGHT};
use super::host::{
    self, Host, LEFTWARDS, Later, Outcome, RIGHTWARDS, Route, Wrong, address, place_of,
};
use super::seed;
use crate::parts::{Net, Sealed, digest, post};
use crate::pump::{NOW, Twist};

/// The request that is asked for when all is over.
pub const LAST: usize = 7;

/// Which rule a state breaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Broken {
    /// By a host.
    Host(Wrong),
    /// An anchor sends where the other does not hear it, or where a host does not
    /// know the session.
    Void,
    /// Two changes hold the session, or the same of its chain, at once.
    Overlap,
    /// A request was refused that nothing was in the way of.
    Refused,
    /// A path does not make up for what those that leave have changed, or for more.
    Delta,
    /// A path leads through a firewall that was to have the session's state, and has not.
    Stateless,
}

/// A request that was accepted.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Accepted {
    /// What it is called.
    pub change: ChangeId,
    /// The hosts that its path leads through, with both anchors.
    pub path: Vec<usize>,
    /// The daemon that was asked.
    pub life: u8,
    /// Whose state moves to whom.
    pub state: Vec<(IpAddr, IpAddr)>,
    /// Hosts that leave.
    pub leave: Vec<usize>,
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
    /// One more change was asked for when all was over.
    pub once_more: bool,
    /// A seeded bug: changes whose left anchor was believed to be back.
    pub believed: BTreeSet<ChangeId>,
    /// A rule was broken on the way here.
    pub broken: Option<Broken>,
    /// How it ends if nothing more goes wrong.
    pub fate: Fate,
}

impl Accepted {
    /// Its two anchors.
    pub fn anchors(&self) -> [usize; 2] {
        let end = |at: Option<&usize>| at.copied().unwrap_or_default();
        [end(self.path.first()), end(self.path.last())]
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.hosts, &self.net).hash(state);
        (self.left, self.asked, self.refused, &self.accepted).hash(state);
        (&self.dead, self.pure, self.impatient, self.followed).hash(state);
        (self.broken, &self.believed, self.once_more).hash(state);
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
            for (side, plane) in host.planes.iter().enumerate() {
                let is_end = host.place == side;
                if !(is_end || plane.active) {
                    continue;
                }
                write!(f, " takes {}", named(plane.current))?;
                if let Some(other) = plane.other {
                    let what = if other.before { "hears" } else { "may take" };
                    write!(f, ", {what} {}", named(other.route))?;
                }
            }
            for route in &host.knows {
                write!(f, " knows {}", named(*route))?;
            }
            if host.state {
                write!(f, " has state")?;
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
        let host = |place| {
            let passes = config.first.contains(&place);
            let mut host = Host::new(place, passes, config.seed);
            if config.deltas && place > RIGHT {
                // No sum of some is that of others.
                let to_server = 1 << place;
                let to_client = 1u32.wrapping_sub(to_server);
                host.delta = Delta {
                    to_server,
                    to_client,
                };
            }
            if place == LEFT {
                host.chain = config.first.iter().map(|at| address(*at)).collect();
            }
            Sealed::new(host)
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
            once_more: false,
            believed: BTreeSet::new(),
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

    /// The session has ended.
    pub fn gone(&self) -> bool {
        self.host(LEFT).gone
    }

    /// Changes a host, and names it anew.
    pub fn edit<T>(&mut self, place: usize, f: impl FnOnce(&mut Host) -> T) -> T {
        self.hosts[place].edit(f)
    }

    fn of(&self, change: ChangeId) -> Option<&Accepted> {
        self.accepted.iter().find(|a| a.change == change)
    }

    /// The left anchor of a change.
    pub fn left_of(&self, change: ChangeId) -> Option<usize> {
        self.of(change).map(|a| a.anchors()[0])
    }

    /// The hosts that a path leads through, with both anchors.
    fn path(&self, config: &Configuration, route: Route) -> Vec<usize> {
        match route {
            None => [&[LEFT], config.first, &[RIGHT]].concat(),
            Some(change) => self.of(change).map(|a| a.path.clone()).unwrap_or_default(),
        }
    }

    /// The hosts by which what one end sends comes to the other, and the path that
    /// leads to each; none if it does not.
    pub fn trace(&self, config: &Configuration, side: usize) -> Option<Vec<(usize, Route)>> {
        let (mut at, end) = match side {
            RIGHTWARDS => (LEFT, RIGHT),
            _ => (RIGHT, LEFT),
        };
        let came = LEFTWARDS + RIGHTWARDS - side;
        let mut route = self.host(at).planes[side].current;
        let mut trace = Vec::new();
        for _ in 0..self.hosts.len() {
            let mut path = self.path(config, route);
            if side == LEFTWARDS {
                path.reverse();
            }
            let here = path.iter().position(|h| *h == at)?;
            at = *path.get(here + 1)?;
            trace.push((at, route));
            let host = self.host(at);
            if at == end {
                return host.hears(came, route).then_some(trace);
            }
            route = host.goes_on(route, side)?;
        }
        None
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
        self.ask_for_state(config, place);
        self.check_delta(place);
        seed::after(config, self, place);
        self.check_led(place);
        self.check(config);
        twist == Twist::Plain || out.twisted
    }

    /// An end that was told is the one that came, where the left anchor is elsewhere.
    fn check_led(&mut self, place: usize) {
        if place != LEFT || self.gone() {
            return;
        }
        let endings = self.host(LEFT).endings.iter();
        let led =
            endings.filter(|e| e.role == Role::Head && self.host(LEFT).led.contains(&e.change));
        let falsely = led.clone().any(|e| {
            let left = self.of(e.change).map(|a| self.host(a.anchors()[0]));
            let taken = left.is_some_and(|h| h.planes[RIGHTWARDS].current == Some(e.change));
            e.changed != taken
        });
        // Once: a later change takes other paths.
        let told: Vec<_> = led.map(|e| e.change).collect();
        self.edit(LEFT, |h| {
            told.iter().for_each(|change| _ = h.led.remove(change))
        });
        if falsely {
            self.broken = Some(Broken::Host(Wrong::FalseReport));
        }
    }

    /// What must hold at any moment.
    fn check(&mut self, config: &Configuration) {
        if self.broken.is_none() && self.overlaps() {
            self.broken = Some(Broken::Overlap);
        }
        if self.gone() || self.broken.is_some() {
            return;
        }
        if self.has_void(config) {
            self.broken = Some(Broken::Void);
        } else if config.state && self.is_stateless(config) {
            self.broken = Some(Broken::Stateless);
        }
    }

    /// A path makes up for what each of those that leave has said, once; and for all of
    /// them, unless something went wrong.
    fn check_delta(&mut self, place: usize) {
        if self.host(place).makes_up.is_none() {
            return;
        }
        let Some((change, delta)) = self.edit(place, |h| h.makes_up.take()) else {
            return;
        };
        let Some(accepted) = self.of(change) else {
            return;
        };
        let leave = &accepted.leave;
        let deltas: Vec<Delta> = leave.iter().map(|at| self.host(*at).delta).collect();
        let sum = |which: usize| {
            let some = (0..deltas.len()).filter(|i| which & (1 << i) != 0);
            some.fold(Delta::default(), |sum, i| sum.and(&deltas[i]))
        };
        let all = (1 << deltas.len()) - 1;
        let fits = match self.pure {
            true => sum(all) == delta,
            false => (0..=all).any(|which| sum(which) == delta),
        };
        if !fits {
            self.broken = Some(Broken::Delta);
        }
    }

    /// Does what an end sends pass a firewall that would not know it?
    fn is_stateless(&self, config: &Configuration) -> bool {
        let sides = [RIGHTWARDS, LEFTWARDS].into_iter();
        let mut passed = sides.filter_map(|side| self.trace(config, side)).flatten();
        passed.any(|(at, _)| at > RIGHT && !self.host(at).state)
    }

    /// Is anything of the session held by two?
    fn overlaps(&self) -> bool {
        let twice = |host: &Host| {
            let mut held: Vec<_> = host.machine.iter().flat_map(Machine::changes).collect();
            held.retain(|c| c.role != Role::Head);
            let names: Vec<_> = held.iter().map(|c| c.subsession).collect();
            (1..names.len()).any(|i| names[..i].contains(&names[i]))
        };
        let left = self.host(LEFT);
        let chain = left.chain.iter().filter_map(|host| place_of(*host));
        let chain: Vec<usize> = [LEFT].into_iter().chain(chain).chain([RIGHT]).collect();
        let place = |host: usize| chain.iter().position(|h| *h == host);
        let under_way = left.machine.iter().flat_map(Machine::changes);
        let anchors = under_way.filter_map(|c| self.of(c.change).map(Accepted::anchors));
        let mut segments: Vec<_> = anchors.map(|a| a.map(place)).collect();
        segments.sort();
        let apart = |pair: &[[Option<usize>; 2]]| pair[0][1] <= pair[1][0];
        !segments.windows(2).all(apart) || self.hosts().any(twice)
    }

    fn has_void(&self, config: &Configuration) -> bool {
        let sides = [RIGHTWARDS, LEFTWARDS];
        sides.iter().any(|side| self.trace(config, *side).is_none())
    }

    /// The chain that an operator asks for, and whether only about one host of it.
    fn asked_for(&self, ask: Ask) -> (Vec<usize>, bool) {
        let now = self.host(LEFT).chain.iter();
        let now: Vec<usize> = now.filter_map(|host| place_of(*host)).collect();
        match ask {
            Ask::Become(chain) => (chain.to_vec(), false),
            Ask::Without(old) => (now.into_iter().filter(|h| *h != old).collect(), true),
            Ask::Replace(old, new) => {
                let place = |host: usize| if host == old { new } else { host };
                (now.into_iter().map(place).collect(), true)
            }
        }
    }

    /// An operator asks for a chain; false if that makes no sense now.
    pub fn ask(&mut self, config: &Configuration, i: usize, twist: Twist) -> bool {
        let (after, about_one) = self.asked_for(config.asks[i]);
        self.ask_for(config, i, &after, about_one, twist)
    }

    /// When all is over: asks for one more chain.
    pub fn ask_once_more(&mut self, config: &Configuration) {
        self.once_more = true;
        let after: &[usize] = match self.host(LEFT).chain.is_empty() {
            true => &[2],
            false => &[],
        };
        self.ask_for(config, LAST, after, false, Twist::Plain);
    }

    fn ask_for(
        &mut self,
        config: &Configuration,
        i: usize,
        after: &[usize],
        about_one: bool,
        twist: Twist,
    ) -> bool {
        let before = self.host(LEFT).chain.clone();
        let after: Vec<_> = after.iter().map(|at| address(*at)).collect();
        if before == after {
            return false;
        }
        self.asked |= 1 << i;
        let before = match seed::is_outdated(config.seed) {
            true => config.first.iter().map(|at| address(*at)).collect(),
            false => before,
        };
        let margins = match about_one {
            true => Margins::between(&before, &after),
            false => Margins::default(),
        };
        let mut order = Order {
            session: host::session(),
            before,
            after,
            margins,
            state: Vec::new(),
        };
        if config.state {
            // No configuration has a host that stays and state.
            let pairs = order.before.iter().zip(&order.after);
            order.state = pairs.map(|(from, to)| (*from, *to)).collect();
        }
        let place = |host: Option<IpAddr>| host.and_then(place_of);
        let first = place(order.left()).unwrap_or(LEFT);
        let between = order
            .segment_after()
            .iter()
            .filter_map(|host| place_of(*host));
        let last = place(order.inner_right()).unwrap_or(RIGHT);
        let path = [first].into_iter().chain(between).chain([last]).collect();
        let state = order.state.clone();
        let leave = order.segment_before().iter();
        let leave = leave.filter(|host| !order.segment_after().contains(host));
        let leave = leave.filter_map(|host| place_of(*host)).collect();
        let mut asked = Err(Reason::Cancelled);
        let out = self.edit(LEFT, |h| {
            h.input(twist, |m| asked = m.request_chain(NOW, order))
        });
        match asked {
            Ok(change) => {
                self.lose_given_up();
                self.accepted.push(Accepted {
                    change,
                    path,
                    life: self.host(LEFT).life,
                    state,
                    leave,
                });
                if first != LEFT {
                    self.edit(LEFT, |h| h.led.insert(change));
                }
            }
            Err(_) => {
                self.refused |= 1 << i;
                if config.disjoint {
                    self.broken = Some(Broken::Refused);
                }
            }
        }
        self.settle(config, LEFT, twist, out)
    }

    /// Two daemons hear each other in order: what was asked of a host before a change
    /// ended comes before the next one, or not at all.
    fn lose_given_up(&mut self) {
        let machine = self.host(LEFT).machine.iter();
        let under_way: Vec<_> = machine.flat_map(Machine::changes).collect();
        let is_over = |of: &ChangeId| under_way.iter().all(|c| c.change != *of);
        let given_up = |message: &Message| matches!(message, Message::Dismiss { change, .. } if is_over(change));
        self.net.retain(|l| l.from != LEFT || !given_up(&l.message));
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
            Later::Install(change, from) => {
                self.install(place, change, from, twist == Twist::Plain);
                self.check(config);
                return true;
            }
            Later::State(change, to, moved) => HostEvent::StateMoved {
                change,
                to,
                result: moved.then_some(()).ok_or(Reason::Cancelled),
            },
            Later::Forgotten(change, from) => HostEvent::Forgotten { change, from },
            Later::Gone => {
                return self.does(config, place, twist, |h| {
                    h.held.retain(|_, held| !held.completed);
                    h.tell_all_gone();
                });
            }
        };
        self.does(config, place, twist, |h| h.tell(event))
    }

    /// The SYN of a path passes its hosts, and is answered, or not.
    fn open(&mut self, config: &Configuration, change: ChangeId) -> Result<(), Reason> {
        let route = Some(change);
        let Some(path) = self.of(change).map(|a| a.path.clone()) else {
            return Err(Reason::Cancelled);
        };
        let right = path.last().copied().unwrap_or(RIGHT);
        for at in path.iter().skip(1).take(path.len().saturating_sub(2)) {
            self.edit(*at, |h| h.knows.insert(route));
            // A strict firewall would drop it, or take it for a session of its own.
            if config.state && !self.host(*at).state {
                self.broken = Some(Broken::Stateless);
            }
        }
        let dead = self.is_dead(route);
        let answers = self.edit(right, |h| {
            let awaits = h.planes[LEFTWARDS].awaits;
            let next = h.planes[LEFTWARDS].other.as_mut();
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

    /// The changes whose right anchor's data plane may follow the left one's.
    pub fn can_follow(&self) -> impl Iterator<Item = ChangeId> + '_ {
        let may = |a: &&Accepted| {
            let [left, right] = a.anchors().map(|at| self.host(at));
            let route = Some(a.change);
            let takes = left.planes[RIGHTWARDS].current == route;
            let next = right.planes[LEFTWARDS].other;
            let next = next.filter(|o| o.route == route && !o.before && o.joined);
            takes && next.is_some() && !self.is_dead(route) && !self.gone()
        };
        self.accepted.iter().filter(may).map(|a| a.change)
    }

    /// The first data comes by the new path.
    pub fn follow(&mut self, config: &Configuration, change: ChangeId) {
        let right = self.of(change).map_or(RIGHT, |a| a.anchors()[1]);
        self.edit(right, |h| {
            h.take(LEFTWARDS, Some(change), h.planes[LEFTWARDS].current)
        });
        self.followed = true;
        self.check(config);
    }

    /// The changes whose path has carried at this anchor what it had to, unseen yet.
    pub fn carried(&self, place: usize) -> impl Iterator<Item = ChangeId> + '_ {
        let host = self.host(place);
        let has = move |(change, h): &(&ChangeId, &host::Held)| {
            let route = Some(**change);
            let far = self.of(**change).map(Accepted::anchors);
            let far = far.map(|[left, right]| if h.side == RIGHTWARDS { right } else { left });
            let there = far.map(|far| self.host(far).planes[LEFTWARDS + RIGHTWARDS - h.side]);
            h.cut
                && h.far
                && !h.settled
                && h.second == route
                && host.planes[h.side].current == route
                && there.is_some_and(|plane| plane.current == route)
                && !self.is_dead(route)
                && !self.gone()
        };
        let held = host.held.iter().filter(|_| host.machine.is_some());
        held.filter(has).map(|(change, _)| *change)
    }

    /// The engine looks at the path.
    pub fn look(
        &mut self,
        config: &Configuration,
        place: usize,
        change: ChangeId,
        twist: Twist,
    ) -> bool {
        if !self.carried(place).any(|c| c == change) {
            return false;
        }
        self.does(config, place, twist, |h| h.settled(change))
    }

    /// The changes that only wait for late packets.
    pub fn waits_late(&self, place: usize) -> impl Iterator<Item = ChangeId> + '_ {
        let host = self.host(place);
        let held = host.held.iter().filter(|_| host.machine.is_some());
        let late = held.filter(|(_, h)| h.completed && h.erased);
        late.map(|(change, _)| *change)
    }

    /// They have come.
    pub fn late(&mut self, config: &Configuration, place: usize, change: ChangeId) {
        self.edit(place, |h| h.late(change));
        self.check(config);
    }

    /// The path that an anchor may take next, or takes and may leave again, unless
    /// both have seen that it carries the session.
    pub fn mortal(&self) -> Option<ChangeId> {
        let last = self.accepted.last()?;
        let change = last.change;
        let [one, other] = last.anchors().map(|at| self.host(at));
        let settled = |h: &Host| h.held.get(&change).is_some_and(|held| held.settled);
        let under_way = self
            .host(LEFT)
            .machine
            .as_ref()?
            .changes()
            .find(|c| c.change == change)?;
        let before = under_way.phase < Phase::Completing;
        let both = settled(one) && settled(other);
        (before && !both && !self.dead.contains(&change)).then_some(change)
    }

    /// The session ends.
    pub fn reset(&mut self) {
        for place in 0..self.hosts.len() {
            self.edit(place, |h| {
                h.gone = true;
                if h.machine.is_some() && (h.is_anchor() || !h.held.is_empty()) {
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
            head.find(|c| timer == Timer::Change(c.change))
                .map(|c| (c.change, c.phase))
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
        self.ask_for_state_again(place);
    }

    /// Nothing is on its way and no daemon is away or at work: only time can
    /// do anything about the changes.
    pub fn only_time_helps(&self) -> bool {
        let idle = |h: &Host| h.machine.is_some() && h.events.is_empty();
        let looks = |h: &Host| {
            let carried = self.carried(h.place).next();
            carried.is_some()
                || self.waits_late(h.place).next().is_some()
                || self.waits_in_vain(h.place).next().is_some()
        };
        self.net.is_empty() && self.hosts().all(idle) && !self.hosts().any(looks)
    }
}
