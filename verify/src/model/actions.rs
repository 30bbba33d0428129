//! The actions that a world offers.

use dysco_common::State;
use dysco_proto::{Machine, Role, Timer};

use super::{Action, Exploration, LIFE};
use crate::config::Request;
use crate::drive::{OUTPUTS, PAIR_OUTPUTS, Twist};
use crate::place::Side;
use crate::socket::{Death, Say};
use crate::world::{Lost, World};

impl Exploration {
    pub(super) fn requests(&self, world: &World, actions: &mut Vec<Action>) {
        for (i, request) in self.config.requests.iter().enumerate() {
            if world.asked & (1 << i) != 0 {
                continue;
            }
            let at = match *request {
                Request::Leave { at } | Request::Ask { at, .. } => at,
                // Everything must have ended, and nothing may remain of the change.
                Request::Again { at } => {
                    let still = world.only_time_helps() && world.hosts().all(|h| h.quiet());
                    let all = |state| {
                        let entry = |s| world.host(at).entry(s).map(|e| e.state());
                        Side::BOTH.into_iter().all(|s| entry(s) == Some(state))
                    };
                    let whole = all(State::Tracked) || all(State::Relay);
                    if !still || world.asked == 0 || !whole {
                        continue;
                    }
                    at
                }
            };
            let host = world.host(at);
            if host.machine.is_some() && host.rest.is_empty() {
                actions.push(Action::Request(i));
            }
        }
    }

    fn twists(&self, world: &World) -> impl Iterator<Item = Twist> + use<> {
        let outputs = match self.config.alone {
            true => PAIR_OUTPUTS,
            false => OUTPUTS,
        };
        let left = &world.left;
        Twist::all(outputs, [left.crashes, left.refusals, left.delays])
    }

    pub(super) fn messages(&self, world: &World, actions: &mut Vec<Action>) {
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

    pub(super) fn hosts(&self, world: &World, actions: &mut Vec<Action>) {
        let only_time = world.only_time_helps();
        let has_pending = |m: &Machine| m.waits().any(|w| w.has_pending);
        let any_pending = world
            .hosts()
            .any(|h| h.machine.as_ref().is_some_and(has_pending));
        for host in world.hosts().filter(|h| self.config.has_daemon(h.place)) {
            let place = host.place;
            let Some(machine) = &host.machine else {
                // The next process of other hosts dies once it has started.
                let twists = self
                    .twists(world)
                    .filter(|t| *t == Twist::Plain || self.config.alone);
                actions.extend(twists.map(|twist| Action::Start(place, twist)));
                continue;
            };
            if world.left.crashes > 0 {
                actions.push(Action::Crash(place));
            }
            if !host.rest.is_empty() {
                actions.extend(self.twists(world).map(|twist| Action::GoOn(place, twist)));
                continue;
            }
            if !host.ring.is_empty() {
                actions.extend(self.twists(world).map(|twist| Action::Listen(place, twist)));
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
                if waits.has_pending && (only_time || world.left.duplicates > 0) {
                    actions.push(Action::Repeat(place, timer));
                }
                let late = |at| match at < LIFE {
                    true => only_time || world.left.late > 0,
                    false => only_time && !any_pending,
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

    /// Adds the cancels: a change can be cancelled only where it was requested.
    pub(super) fn cancels(
        &self,
        world: &World,
        machine: &Machine,
        place: usize,
        actions: &mut Vec<Action>,
    ) {
        let asks = machine.waits().filter_map(|w| match w.timer {
            Timer::Ask(change) => Some(change),
            Timer::Change(_) => None,
        });
        let own = machine.changes();
        let own = own.filter(|c| matches!(c.role, Role::Middle | Role::Local));
        if world.left.cancels > 0 {
            // Elsewhere no other fault occurs at that moment.
            let alone = self.config.alone;
            for change in asks.chain(own.map(|c| c.change)) {
                let twists = self.twists(world).filter(|t| *t == Twist::Plain || alone);
                actions.extend(twists.map(|twist| Action::Cancel(place, change, twist)));
            }
        }
    }

    pub(super) fn packets(&self, world: &World, actions: &mut Vec<Action>) {
        let config = &self.config;
        // If ends close, their actions before a request are of no interest.
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
                let ends = (place == 0 && side == Side::Right)
                    || (place + 1 == config.hosts && side == Side::Left);
                for say in [Say::New, Say::Ack, Say::Again, Say::AllAgain] {
                    let again = matches!(say, Say::Again | Say::AllAgain);
                    if again && !still && world.left.again == 0
                        || !world.can_say(config, place, side, say)
                    {
                        continue;
                    }
                    for lost in [Lost::Nowhere, Lost::AtOnce, Lost::Beyond] {
                        let beyond = lost != Lost::Beyond || config.alone && ends;
                        if lost == Lost::Nowhere || world.left.packets > 0 && beyond {
                            actions.push(Action::Packet {
                                place,
                                side,
                                say,
                                lost,
                            });
                        }
                    }
                }
                let wants =
                    ends && world.left.resets > 0 && world.can_say(config, place, side, Say::Reset);
                if wants || world.must_reset(place, side) {
                    actions.push(Action::Packet {
                        place,
                        side,
                        say: Say::Reset,
                        lost: Lost::Nowhere,
                    });
                }
                // This is seconds after the session's end: no message is in flight for so long.
                if only_time && world.collectable(config, place, side) {
                    actions.push(Action::Collect(place, side));
                }
            }
        }
    }

    pub(super) fn deaths(&self, world: &World, actions: &mut Vec<Action>) {
        if world.left.deaths > 0 && world.is_cut() {
            let ways = [[true, true], [true, false], [false, true]];
            actions.extend(ways.map(Action::PathDies));
        }
    }

    /// Adds deaths of proxies. Data that a process has read and not written is lost; data that it
    /// has written is not lost.
    pub(super) fn proxy_deaths(&self, world: &World, actions: &mut Vec<Action>) {
        if world.left.proxies == 0 || world.asked == 0 {
            return;
        }
        for place in 1..self.config.hosts - 1 {
            let sockets = &world.host(place).sockets;
            let ends = Side::BOTH.map(|side| {
                let written = sockets[side as usize].nxt..=sockets[side.other() as usize].rcv;
                let fins = written.map(Death::Fin);
                fins.chain([Death::Reset]).collect::<Vec<_>>()
            });
            let all = ends[0]
                .iter()
                .flat_map(|a| ends[1].iter().map(|b| [*a, *b]));
            actions.extend(all.map(|how| Action::ProxyDies(place, how)));
        }
    }

    pub(super) fn rejections(&self, world: &World, actions: &mut Vec<Action>) {
        if self.config.rejects() {
            let hearing = world.hearing().into_iter();
            actions.extend(hearing.map(|(place, side, next)| Action::Reject(place, side, next)));
        }
    }

    /// Adds the packets that show how far an end has sent: at any moment on a path that may die,
    /// and otherwise when nothing else is left to happen.
    pub(super) fn shows(&self, world: &World, actions: &mut Vec<Action>) {
        if self.config.faults.deaths > 0 || world.only_time_helps() {
            actions.extend((0..self.config.hosts).map(Action::Announce));
        }
    }
}
