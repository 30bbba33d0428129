//! The model that is explored.

use dysco_common::State;
use dysco_daemon::protocol::{ChangeId, Machine, Phase, Role, Time, Timer};
use stateright::{Model, Property};

use crate::calm::Fate;
use crate::config::{Configuration, Request, Seen};
use crate::place::{self, Side};
use crate::pump::{NOW, Twist};
use crate::report::Explorable;
use crate::run::{Fates, explain};
use crate::seed;
use crate::socket::Say;
use crate::world::{Broken, World};

/// No message is on its way for so long, nor said again in vain: a deadline as
/// long as this passes only when none is.
const LIFE: Time = Time::from_secs(30);

/// A configuration, and what is known of its states.
pub struct Exploration {
    /// The configuration.
    pub config: Configuration,
    fates: Fates<World>,
}

/// One step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// An operator asks.
    Request(usize),
    /// An operator changes their mind.
    Cancel(usize, ChangeId),
    /// A message arrives; perhaps it will come again.
    Deliver {
        /// Which.
        index: usize,
        /// It stays on its way.
        keep: bool,
        /// What goes wrong.
        twist: Twist,
    },
    /// A message is lost.
    Lose(usize),
    /// A host has done something that took its time.
    Happen {
        /// Which host.
        place: usize,
        /// Which of its events.
        index: usize,
        /// What goes wrong.
        twist: Twist,
    },
    /// A message is said again.
    Repeat(usize, Timer),
    /// A deadline passes.
    Expire {
        /// At this host.
        place: usize,
        /// Whose.
        timer: Timer,
        /// What goes wrong.
        twist: Twist,
    },
    /// A daemon dies.
    Crash(usize),
    /// It starts anew.
    Start(usize),
    /// A socket sends a segment.
    Packet {
        /// Of this host.
        place: usize,
        /// Which session's.
        side: Side,
        /// What.
        say: Say,
        /// It does not arrive.
        lost: bool,
    },
    /// A session's entry is collected.
    Collect(usize, Side),
    /// A seeded bug: a deadline of before the cut passes.
    Late(usize),
}

impl Exploration {
    /// Of one configuration.
    pub fn new(config: Configuration) -> Exploration {
        Exploration {
            config,
            fates: Fates::default(),
        }
    }

    fn requests(&self, world: &World, actions: &mut Vec<Action>) {
        for (i, request) in self.config.requests.iter().enumerate() {
            if world.asked & (1 << i) != 0 {
                continue;
            }
            let at = match *request {
                Request::Leave { at } | Request::Ask { at, .. } => at,
                // All must have ended, and nothing may be left of it.
                Request::Again { at } => {
                    let still = world.only_time_helps() && world.hosts().all(|h| h.quiet());
                    let tracked = |s| {
                        let entry = world.host(at).entry(s);
                        entry.is_some_and(|e| e.state() == State::Tracked)
                    };
                    if !still || world.asked == 0 || !Side::BOTH.into_iter().all(tracked) {
                        continue;
                    }
                    at
                }
            };
            if world.host(at).machine.is_some() {
                actions.push(Action::Request(i));
            }
        }
    }

    fn twists(&self, world: &World) -> impl Iterator<Item = Twist> + use<> {
        Twist::all(world.left.crashes, world.left.refusals)
    }

    fn messages(&self, world: &World, actions: &mut Vec<Action>) {
        for index in 0..world.net.len() {
            for twist in self.twists(world) {
                actions.push(Action::Deliver {
                    index,
                    keep: false,
                    twist,
                });
            }
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
        let only_time = world.only_time_helps();
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
            if world.left.crashes > 0 {
                actions.push(Action::Crash(place));
            }
            for index in 0..host.events.len() {
                for twist in self.twists(world) {
                    actions.push(Action::Happen {
                        place,
                        index,
                        twist,
                    });
                }
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
                    for twist in self.twists(world) {
                        actions.push(Action::Expire {
                            place,
                            timer,
                            twist,
                        });
                    }
                }
            }
            self.cancels(world, machine, place, actions);
            if host.spoilt.before.is_some() && world.left.late > 0 {
                actions.push(Action::Late(place));
            }
        }
    }

    /// Only where it was asked for can it be cancelled.
    fn cancels(&self, world: &World, machine: &Machine, place: usize, actions: &mut Vec<Action>) {
        let asks = machine.waits().filter_map(|w| match w.timer {
            Timer::Ask(change) => Some(change),
            Timer::Change(_) => None,
        });
        let own = machine.changes().filter(|c| c.role == Role::Middle);
        if world.left.cancels > 0 {
            let changes = asks.chain(own.map(|c| c.change));
            actions.extend(changes.map(|change| Action::Cancel(place, change)));
        }
    }

    fn packets(&self, world: &World, actions: &mut Vec<Action>) {
        let config = &self.config;
        // Where ends close, what they do before anybody asks is of no interest.
        if config.acks_at_once && world.asked == 0 || config.closes_cut && !world.is_cut() {
            return;
        }
        let only_time = world.only_time_helps();
        let still = (0..config.hosts)
            .flat_map(|p| Side::BOTH.map(|s| (p, s)))
            .all(|(p, s)| {
                !world.can_say(config, p, s, Say::New) && !world.can_say(config, p, s, Say::Ack)
            });
        for place in 0..config.hosts {
            for side in Side::BOTH {
                for say in [Say::New, Say::Ack, Say::Again, Say::AllAgain] {
                    let again = matches!(say, Say::Again | Say::AllAgain);
                    if again && !still && world.left.again == 0
                        || !world.can_say(config, place, side, say)
                    {
                        continue;
                    }
                    for lost in [false, true] {
                        if !lost || world.left.packets > 0 {
                            actions.push(Action::Packet {
                                place,
                                side,
                                say,
                                lost,
                            });
                        }
                    }
                }
                let ends = (place == 0 && side == Side::Right)
                    || (place + 1 == config.hosts && side == Side::Left);
                let wants =
                    ends && world.left.resets > 0 && world.can_say(config, place, side, Say::Reset);
                if wants || world.must_reset(place, side) {
                    actions.push(Action::Packet {
                        place,
                        side,
                        say: Say::Reset,
                        lost: false,
                    });
                }
                // Seconds after the session's end: no message is under way so long.
                if only_time && world.collectable(config, place, side) {
                    actions.push(Action::Collect(place, side));
                }
            }
        }
    }

    /// Is this step a fault? Then one fewer may come.
    fn pay(&self, world: &mut World, action: &Action) {
        let only_time = world.only_time_helps();
        let left = &mut world.left;
        let twist = match action {
            Action::Deliver { twist, .. }
            | Action::Happen { twist, .. }
            | Action::Expire { twist, .. } => *twist,
            _ => Twist::Plain,
        };
        let twisted = match twist {
            Twist::Plain => None,
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
            Action::Packet { lost: true, .. } => &mut left.packets,
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
                // More of them than may come too early come when all is still.
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
            Action::Cancel(place, change) => {
                world.input(config, place, Twist::Plain, |m| m.cancel(NOW, change))
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
            Action::Start(place) => {
                world.start(config, place);
                true
            }
            Action::Packet {
                place,
                side,
                say,
                lost,
            } => world.packet(config, place, side, say, lost),
            Action::Collect(place, side) => world.collect(config, place, side, Twist::Plain),
            Action::Late(place) => seed::late(world, place)
                .is_some_and(|timer| world.expire(config, place, timer, Twist::Plain)),
        }
    }

    fn ask(&self, world: &mut World, i: usize) -> bool {
        let config = &self.config;
        world.asked |= 1 << i;
        match config.requests[i] {
            Request::Leave { at } => world.input(config, at, Twist::Plain, |m| {
                let _ = m.request_leave(NOW, place::subsession(at, Side::Left));
            }),
            Request::Again { at } => {
                world.pure = config.closes == [false; 2]
                    && !world.hosts().any(|h| h.sockets.iter().any(|s| s.reset));
                world.input(config, at, Twist::Plain, |m| {
                    let _ = m.request_leave(NOW, place::subsession(at, Side::Left));
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
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        self.pay(&mut world, &action);
        if !self.act(&mut world, &action) {
            return None;
        }
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
                format!("{} arrives{again}{}", world.net[*index], plainly(*twist))
            }
            Action::Lose(index) => format!("{} is lost", world.net[*index]),
            Action::Happen {
                place,
                index,
                twist,
            } => {
                let event = format!("{:?}", world.host(*place).events[*index]);
                let name = event.split(' ').next().unwrap_or_default();
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

fn plainly(twist: Twist) -> String {
    match twist {
        Twist::Plain => String::new(),
        other => format!(" ({other:?})"),
    }
}

/// Are two segments locked at once that share a session? A left anchor that
/// has got the plan holds the one from itself to two hosts further.
fn overlapping(world: &World) -> bool {
    let held = |p: Phase| (Phase::Preparing..=Phase::Cutting).contains(&p);
    let lefts = world.hosts().flat_map(|h| {
        let changes = h.machine.iter().flat_map(Machine::changes);
        let changes = changes.filter(move |c| c.role == Role::Left && held(c.phase));
        changes.map(|_| h.place)
    });
    let lefts: Vec<usize> = lefts.collect();
    lefts.windows(2).any(|w| w[1] - w[0] < 2)
}

/// What must hold in every state.
pub fn always() -> Vec<Property<Exploration>> {
    vec![
        Property::always("no overlapping locks", |_, w: &World| {
            !matches!(
                w.broken,
                Some(Broken::Overlap | Broken::Host(crate::host::Wrong::LockedTwice))
            )
        }),
        Property::always("no host breaks a rule of the data plane", |_, w: &World| {
            use crate::host::Wrong;
            !matches!(w.broken, Some(Broken::Host(wrong)) if wrong != Wrong::LockedTwice)
        }),
        Property::always(
            "nothing is acknowledged to a path that never sent it",
            |_, w: &World| w.broken != Some(Broken::Tcp(crate::socket::Harm::AckOfUnsent)),
        ),
        Property::always("every byte arrives under its own number", |_, w: &World| {
            w.broken != Some(Broken::Tcp(crate::socket::Harm::WrongBytes))
        }),
        Property::always("every byte arrives once faults stop", |_, w: &World| {
            w.fate != Fate::Starved
        }),
        Property::always("every change ends once faults stop", |_, w: &World| {
            !matches!(w.fate, Fate::Stranded | Fate::Endless)
        }),
        Property::always("both anchors and the middlebox agree", |_, w: &World| {
            w.fate != Fate::Disagreement
        }),
        Property::always("nothing is left of a change", |_, w: &World| {
            w.fate != Fate::Leftover
        }),
        Property::always("who asked is told", |_, w: &World| w.fate != Fate::Untold),
        Property::always("without faults one wins", |_, w: &World| {
            w.fate != Fate::NobodyWon
        }),
    ]
}

fn entry_states(world: &World) -> impl Iterator<Item = &crate::plane::Entry> {
    world
        .hosts()
        .flat_map(|h| Side::BOTH.into_iter().filter_map(|s| h.entry(s)))
}

fn ended(world: &World, wanted: bool) -> bool {
    let mut endings = world.hosts().flat_map(|h| &h.endings);
    endings.any(|e| e.removed == wanted && e.role == Role::Left)
}

fn sometimes(seen: &Seen) -> Property<Exploration> {
    match seen {
        Seen::Removal => Property::sometimes("a middlebox is removed", |_, w: &World| {
            ended(w, true) && w.hosts().all(|h| h.quiet())
        }),
        Seen::RollBack => {
            Property::sometimes("a change is rolled back", |_, w: &World| ended(w, false))
        }
        Seen::SecondAttempt => Property::sometimes("a second attempt succeeds", |_, w: &World| {
            ended(w, true) && w.hosts().flat_map(|h| &h.endings).any(|e| !e.removed)
        }),
        Seen::OneOfTwo => Property::sometimes("one of two contenders wins", |_, w: &World| {
            let middles = |removed| {
                w.hosts()
                    .flat_map(|h| &h.endings)
                    .any(|e| e.removed == removed && matches!(e.role, Role::Middle | Role::Asker))
            };
            middles(true) && middles(false)
        }),
        Seen::ClosedInTwoPaths => {
            Property::sometimes("both ends close in two paths", |_, w: &World| {
                entry_states(w).any(|e| {
                    e.state() == State::TwoPaths
                        && e.s.two.cut_set != 0
                        && e.s.life.fin_in & e.s.life.fin_out != 0
                })
            })
        }
        Seen::ResetInTwoPaths => Property::sometimes("a reset in two paths", |_, w: &World| {
            entry_states(w).any(|e| {
                e.state() == State::TwoPaths && e.s.two.cut_set != 0 && e.s.life.reset != 0
            })
        }),
        Seen::OldDataAfterCut => {
            Property::sometimes("old data is repeated after the cut", |_, w: &World| {
                w.hosts().any(|h| {
                    h.entry(Side::Right)
                        .is_some_and(|e| e.state() == State::TwoPaths && e.s.two.cut_set != 0)
                        && h.place == 0
                        && {
                            let base = place::base(0, Side::Right, 3).map_or(0, |b| b.out);
                            let una = h.sockets[1].una;
                            let una = base.wrapping_add(u32::from(una));
                            h.entry(Side::Right)
                                .is_some_and(|e| dysco_common::seq::before(una, e.s.cut_out))
                        }
                })
            })
        }
        Seen::GoneOn => Property::sometimes("a change outlives a daemon", |_, w: &World| {
            ended(w, true) && w.hosts().any(|h| h.life > 0) && w.hosts().all(|h| h.quiet())
        }),
    }
}
