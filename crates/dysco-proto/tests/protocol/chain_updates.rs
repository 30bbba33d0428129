//! Changes of chains while messages are lost, repeated and reordered, and daemons die. A model of
//! the two anchors' paths contains the properties that must hold at any moment.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use dysco_common::session::offer;
use dysco_common::{Delta, Element, Offer};
use dysco_proto::{
    ChangeId, Facts, HostEvent, Machine, Margins, Message, Order, Phase, Progress, Reason, Report,
    Subsession,
};
use proptest::prelude::*;

use host::At;

mod host;

const HOSTS: usize = 4;
pub(crate) const LEFT: usize = 0;
pub(crate) const RIGHT: usize = 1;
pub(crate) const OLD: usize = 2;
pub(crate) const NEW: usize = 3;

/// Bytes that the middlebox on the old host has added to the stream.
pub(crate) const ADDED: Delta = Delta {
    to_server: 20,
    to_client: 0,
};

pub(crate) fn ip(host: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, host as u8 + 1])
}

pub(crate) fn element(host: usize) -> Element {
    Element::Host(ip(host))
}

pub(crate) fn session() -> Subsession {
    Subsession {
        left: (ip(LEFT), 40_000).into(),
        right: (ip(RIGHT), 80).into(),
    }
}

pub(crate) fn order() -> Order {
    Order {
        session: session(),
        before: vec![element(OLD)],
        after: vec![element(NEW)],
        margins: Margins::default(),
        state: vec![(ip(OLD), ip(NEW))],
        paths: vec![0],
        number: 1,
    }
}

/// Paths that an anchor has, takes and receives on.
#[derive(Clone, Copy, Default, Debug)]
struct Paths {
    second_path: bool,
    takes_new: bool,
    hears_old: bool,
    cut_in: bool,
}

struct Host {
    machine: Machine,
    records: BTreeMap<ChangeId, Vec<u8>>,
    paths: Paths,
    ended: Option<Progress>,
}

/// Source of random choices.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % n
    }
}

pub(crate) struct World {
    now: Duration,
    hosts: Vec<Host>,
    wire: Vec<(usize, usize, Message)>,
    /// State that is being copied: the waiting host, the change, and the host that gets the state.
    states: Vec<(usize, ChangeId, IpAddr)>,
    chance: Chance,
    /// Percentage of messages that are lost. The same percentage is duplicated.
    loss: u64,
    /// True if the new path carries nothing.
    dead: bool,
    kills: u32,
    /// Number of steps for which nothing reaches or leaves the right anchor, once it takes the new
    /// path.
    silent: u32,
}

pub(crate) fn machine(host: usize) -> Machine {
    let mut next = 16 * host as u8;
    Machine::new(vec![ip(host)], move || {
        next += 1;
        [next; 16]
    })
}

impl World {
    fn new(seed: u64, loss: u64, dead: bool, kills: u32) -> World {
        let host = |host| Host {
            machine: machine(host),
            records: BTreeMap::new(),
            paths: Paths {
                hears_old: true,
                ..Paths::default()
            },
            ended: None,
        };
        World {
            now: Duration::ZERO,
            hosts: (0..HOSTS).map(host).collect(),
            wire: Vec::new(),
            states: Vec::new(),
            chance: Chance(seed),
            loss,
            dead,
            kills,
            silent: 0,
        }
    }

    pub(crate) fn facts(at: usize) -> Facts {
        let of = |host: usize| Offer {
            isn: 1000 * host as u32,
            mss: 1460,
            wscale: 7,
            flags: offer::SEEN | offer::WSCALE | offer::SACK,
        };
        Facts {
            local: of(at),
            remote: of(1 - at),
            ..Facts::default()
        }
    }

    /// Carries out the machines' outputs until there are none.
    fn drive(&mut self) {
        for at in 0..HOSTS {
            while let Some(command) = self.hosts[at].machine.poll_command() {
                command.carry_out(&mut At { world: self, at });
            }
            while let Some((to, message)) = self.hosts[at].machine.poll_transmit() {
                let to = (0..HOSTS)
                    .find(|h| ip(*h) == to)
                    .expect("a host of the test");
                if self.chance.below(100) >= self.loss {
                    self.wire.push((at, to, message.clone()));
                }
                if self.chance.below(100) < self.loss {
                    self.wire.push((at, to, message));
                }
            }
            while let Some(report) = self.hosts[at].machine.poll_report() {
                match report {
                    Report::Progress { progress, .. } if progress.is_end() => {
                        self.hosts[at].ended = Some(progress);
                    }
                    Report::Violation {
                        violation, message, ..
                    } => {
                        panic!("{message}: {violation}")
                    }
                    _ => {}
                }
            }
        }
        self.check();
    }

    fn tell(&mut self, at: usize, event: HostEvent) {
        let now = self.now;
        self.hosts[at].machine.handle_event(now, event);
    }

    fn open(&mut self, at: usize, change: ChangeId) {
        self.hosts[at].paths.second_path = true;
        let opens = self.hosts[RIGHT].paths.second_path;
        let result = match opens {
            true => Ok(()),
            false => Err(Reason::ChainUnusable("nobody awaits it".into())),
        };
        self.tell(at, HostEvent::Prepared { change, result });
    }

    /// Completes the path's work: both anchors take it and know each other's cutoff, so that it
    /// carries all that it has to.
    fn settle(&mut self, change: ChangeId) {
        let taken = [LEFT, RIGHT].map(|a| self.hosts[a].paths.takes_new);
        for at in [LEFT, RIGHT] {
            if taken == [true; 2] && self.hosts[at].paths.cut_in && !self.dead {
                self.tell(at, HostEvent::Drained { change });
            }
        }
    }

    /// Checks the properties that must hold at any moment.
    fn check(&self) {
        let [left, right] = [LEFT, RIGHT].map(|a| self.hosts[a].paths);
        for (one, other) in [(left, right), (right, left)] {
            assert!(
                !one.takes_new || other.second_path || !other.hears_old,
                "nobody hears the new path"
            );
            assert!(
                one.takes_new || other.hears_old,
                "nobody hears the old path"
            );
        }
    }

    /// Kills a daemon, and restarts it from its records.
    fn kill(&mut self, at: usize) {
        let now = self.now;
        let mut fresh = Machine::new(vec![ip(at)], move || [200 + at as u8; 16]);
        for record in self.hosts[at].records.values() {
            fresh.restore(now, record).expect("its own record");
        }
        self.hosts[at].machine = fresh;
        // No process of that host waits for the state any more.
        self.states.retain(|(by, ..)| *by != at);
    }

    /// Reports that state was installed, or cannot be installed.
    fn move_state(&mut self) {
        let (at, change, to) = self.states.remove(0);
        let result = match self.chance.below(4) {
            0 if self.loss > 0 => Err(Reason::StateNotMoved("pretended".into())),
            _ => Ok(()),
        };
        self.tell(at, HostEvent::StateMoved { change, to, result });
    }

    /// Carries out one more event. Returns false if there is none.
    fn step(&mut self) -> bool {
        let due = self
            .hosts
            .iter()
            .filter_map(|h| h.machine.poll_timeout())
            .min();
        if self.kills > 0 && self.chance.below(12) == 0 {
            self.kills -= 1;
            let at = self.chance.below(HOSTS as u64) as usize;
            self.kill(at);
        } else if !self.states.is_empty() && self.chance.below(4) == 0 {
            self.move_state();
        } else if !self.wire.is_empty() {
            let at = self.chance.below(self.wire.len() as u64) as usize;
            let (from, to, message) = self.wire.swap_remove(at);
            let now = self.now;
            let cut_off = self.hosts[RIGHT].paths.takes_new && self.silent > 0;
            if cut_off && (from == RIGHT || to == RIGHT) {
                self.silent -= 1;
                return true;
            }
            self.hosts[to]
                .machine
                .handle_message(now, &[ip(from)], message);
        } else if !self.states.is_empty() {
            self.move_state();
        } else if let Some(due) = due {
            self.now = self.now.max(due);
            for host in &mut self.hosts {
                host.machine.handle_timeout(self.now);
            }
        } else {
            return false;
        }
        self.drive();
        true
    }

    /// Runs until all changes have ended. Both anchors then agree on the path, and it is free for
    /// the next change.
    fn run(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 20_000, "it does not end");
        }
        let [left, right] = [LEFT, RIGHT].map(|a| self.hosts[a].paths.takes_new);
        assert_eq!(left, right, "the anchors do not agree");
        for host in &self.hosts {
            assert!(host.records.is_empty(), "a record is left");
            assert_eq!(host.machine.stats().changes, 0);
        }
    }
}

#[test]
fn it_is_done_and_both_know() {
    let mut world = World::new(1, 0, false, 0);
    world.hosts[LEFT]
        .machine
        .request_chain(Duration::ZERO, order())
        .unwrap();
    world.drive();
    world.run();
    for at in [LEFT, RIGHT] {
        assert!(world.hosts[at].paths.takes_new);
        assert_eq!(world.hosts[at].ended, Some(Progress::Removed));
    }
}

#[test]
fn a_path_that_carries_nothing_is_left() {
    let mut world = World::new(1, 0, true, 0);
    world.hosts[LEFT]
        .machine
        .request_chain(Duration::ZERO, order())
        .unwrap();
    world.drive();
    world.run();
    assert!(!world.hosts[LEFT].paths.takes_new);
    assert!(matches!(
        world.hosts[LEFT].ended,
        Some(Progress::RolledBack(Reason::ChainUnusable(_)))
    ));
}

#[test]
fn of_two_requests_the_first_wins() {
    let mut world = World::new(1, 0, false, 0);
    let machine = &mut world.hosts[LEFT].machine;
    machine.request_chain(Duration::ZERO, order()).unwrap();
    let second = machine.request_chain(Duration::ZERO, order());
    assert!(matches!(second, Err(Reason::LockedByAnother(_))));
    world.drive();
    world.run();
    assert!(world.hosts[LEFT].paths.takes_new);
}

/// A request that was refused during the first change may be repeated after that change, and then
/// wins.
#[test]
fn of_two_requests_the_second_wins_where_the_first_is_taken_back() {
    let mut world = World::new(1, 0, true, 0);
    let machine = &mut world.hosts[LEFT].machine;
    let first = machine.request_chain(Duration::ZERO, order()).unwrap();
    world.drive();
    loop {
        let (now, machine) = (world.now, &mut world.hosts[LEFT].machine);
        let phase = machine.phase_of(first);
        if phase.is_none() {
            break;
        }
        // As long as the change exists, it has not reached the point of no return.
        assert!(!matches!(phase, Some(Phase::Completing | Phase::Closing)));
        let second = machine.request_chain(now, order());
        assert_eq!(second, Err(Reason::LockedByAnother(first)));
        assert!(world.step());
    }
    assert!(matches!(
        world.hosts[LEFT].ended,
        Some(Progress::RolledBack(Reason::ChainUnusable(_)))
    ));
    world.dead = false;
    let (now, machine) = (world.now, &mut world.hosts[LEFT].machine);
    machine.request_chain(now, order()).unwrap();
    world.drive();
    world.run();
    assert!(world.hosts[LEFT].paths.takes_new);
    assert_eq!(world.hosts[LEFT].ended, Some(Progress::Removed));
}

/// A later process must not find the record of this change together with two paths of the change
/// before. It would take back the path that was given up.
#[test]
fn a_session_is_held_before_the_change_is_recorded() {
    let mut left = machine(LEFT);
    left.request_chain(Duration::ZERO, order()).unwrap();
    let names: Vec<_> = std::iter::from_fn(|| left.poll_command())
        .map(|c| c.name())
        .collect();
    assert_eq!(names, ["Hold", "Persist"]);
}

#[test]
fn nobody_hears_of_a_change_that_cannot_be_recorded() {
    let mut left = machine(LEFT);
    let change = left.request_chain(Duration::ZERO, order()).unwrap();
    while let Some(command) = left.poll_command() {
        let event = match command.name() {
            "Hold" => HostEvent::Locked {
                change,
                result: Ok(World::facts(LEFT)),
            },
            "Persist" => HostEvent::PersistFailed {
                change,
                error: "no space".into(),
            },
            _ => continue,
        };
        left.handle_event(Duration::ZERO, event);
    }
    assert_eq!(left.poll_transmit(), None);
    let last = std::iter::from_fn(|| left.poll_report()).last();
    let Some(Report::Progress { progress, .. }) = last else {
        panic!("{last:?}")
    };
    assert!(matches!(progress, Progress::Refused(Reason::NoRecord(_))));
    assert_eq!(left.stats().changes, 0);
}

/// The right anchor had completed the change, and its daemon was restarted. A repeated message
/// makes it await a path that no host will open.
#[test]
fn what_is_over_is_not_made_anew() {
    let mut right = machine(RIGHT);
    let change = ChangeId([9; 16]);
    let hear = |right: &mut Machine, message| {
        right.handle_message(Duration::ZERO, &[ip(LEFT)], message);
        let mut names = Vec::new();
        while let Some(command) = right.poll_command() {
            names.push(command.name());
            let event = match command.name() {
                "Hold" => HostEvent::Locked {
                    change,
                    result: Ok(World::facts(RIGHT)),
                },
                "Extend" => HostEvent::Prepared {
                    change,
                    result: Ok(()),
                },
                _ => continue,
            };
            right.handle_event(Duration::ZERO, event);
        }
        let said: Vec<_> = std::iter::from_fn(|| right.poll_transmit()).collect();
        (names, said.last().map(|(_, m)| m.name()))
    };
    let extend = Message::Extend {
        change,
        session: session(),
        token: [1, 2],
    };
    let (names, said) = hear(&mut right, extend);
    assert_eq!(names, ["Hold", "Persist", "Extend"]);
    assert_eq!(said, Some("Extended"));
    let (names, said) = hear(&mut right, Message::Done { change });
    assert_eq!(names, ["Abandon", "Release", "Erase"]);
    assert_eq!(said, Some("DoneAck"));
    assert_eq!(right.stats().changes, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn whatever_is_lost_they_agree(
        seed in any::<u64>(),
        loss in 0u64..60,
        dead in any::<bool>(),
        kills in 0u32..5,
        silent in 0u32..30,
    ) {
        let mut world = World::new(seed, loss, dead, kills);
        world.silent = silent;
        let _ = world.hosts[LEFT].machine.request_chain(Duration::ZERO, order());
        world.drive();
        world.run();
    }
}
