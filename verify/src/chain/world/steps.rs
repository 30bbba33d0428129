//! Steps of a world: a message arrives, a timer expires, an operator asks, a host dies.

use dysco_proto::{ChangeId, HostEvent, Machine, Message, Phase, Reason, Role, Timer};

use super::{Broken, World};
use crate::chain::configuration::{Configuration, LEFT, RIGHT};
use crate::chain::host::{Host, Later, Outcome};
use crate::chain::place::{LEFTWARDS, address, place_of};
use crate::chain::seed;
use crate::drive::{NOW, Twist};
use crate::parts::post;

impl World {
    /// Applies the results of a host's input. Returns false if the twist found nothing to act on.
    pub(in crate::chain) fn settle(
        &mut self,
        config: &Configuration,
        place: usize,
        twist: Twist,
        out: Outcome,
    ) -> bool {
        for (to, message) in out.letters {
            if seed::mutes(config.seed, &message) {
                continue;
            }
            if let Some(to) = place_of(to).filter(|to| *to < self.hosts.len()) {
                post(&mut self.net, place, to, message);
            }
        }
        if let Some(wrong) = out.wrong {
            self.broken = Some(Broken::Host(wrong));
        }
        self.prime_at_once(config, place);
        self.ask_for_state(config, place);
        self.check_delta(place);
        self.act_as_seeded(config, place);
        self.check_led(place);
        self.check(config);
        twist == Twist::Plain || out.twisted
    }

    /// Gives an input to a host's machine.
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

    /// Delivers a message. A dead daemon does not receive it.
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

    /// Completes an action that a host had in progress.
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
            Later::InUse { asked, by, now } => {
                self.in_use_answered(place, &asked, by, now.as_deref());
                self.check(config);
                return twist == Twist::Plain;
            }
            // A change of the session's chain ends in another way.
            Later::Closed if !self.host(place).held.is_empty() => return twist == Twist::Plain,
            Later::Closed => return self.does(config, place, twist, Host::tell_all_gone),
            Later::Gone => {
                return self.does(config, place, twist, |h| {
                    h.held.retain(|_, held| !held.completed);
                    h.tell_all_gone();
                });
            }
        };
        self.does(config, place, twist, |h| h.tell(event))
    }

    /// Sends the SYN of a path past its hosts. Returns an error if it is not answered.
    fn open(&mut self, config: &Configuration, change: ChangeId) -> Result<(), Reason> {
        let route = Some(change);
        let Some(path) = self.of(change).map(|a| a.path.clone()) else {
            return Err(Reason::Cancelled);
        };
        let right = path.last().copied().unwrap_or(RIGHT);
        let number = self.of(change).map_or(0, |a| a.number);
        for at in path.iter().skip(1).take(path.len().saturating_sub(2)) {
            if !self.edit(*at, |h| h.passes_on(change, number)) {
                return Err(Reason::Cancelled);
            }
            // A strict firewall would drop the SYN, or treat it as a new session.
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
        // The packets that open a path reveal what the path does to them (`engine/probe`).
        let takes = config.nature.is_plain() || seed::compares_nothing(config.seed);
        if !answers || self.gone() || !takes {
            return Err(Reason::Cancelled);
        }
        self.shake_hands(change);
        Ok(())
    }

    /// Models the arrival of the first data on the new path.
    pub fn follow(&mut self, config: &Configuration, change: ChangeId) {
        let right = self.of(change).map_or(RIGHT, |a| a.anchors()[1]);
        self.edit(right, |h| {
            h.take(LEFTWARDS, Some(change), h.planes[LEFTWARDS].current, false)
        });
        self.followed = true;
        self.check(config);
    }

    /// Makes the engine examine the path.
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

    /// Ends the wait for late packets.
    pub fn late(&mut self, config: &Configuration, place: usize, change: ChangeId) {
        self.edit(place, |h| h.late(change));
        self.check(config);
    }

    /// Ends the session.
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

    /// Makes a timer repeat its message.
    pub fn repeat(&mut self, config: &Configuration, place: usize, timer: Timer) {
        let mut out = self.edit(place, |h| h.input(Twist::Plain, |m| m.repeat(NOW, timer)));
        out.letters
            .retain(|(_, message)| !seed::silences(config.seed, message));
        self.settle(config, place, Twist::Plain, out);
    }

    /// Makes a timer's deadline pass.
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

    /// Removes messages to the host's former process that are not repeated.
    fn lose_given_up(&mut self, place: usize) {
        let machine = self.host(LEFT).machine.iter();
        let under_way: Vec<_> = machine.flat_map(Machine::changes).collect();
        let is_over = |of: &ChangeId| under_way.iter().all(|c| c.change != *of);
        let given_up = |message: &Message| matches!(message, Message::Dismiss { change, .. } if is_over(change));
        self.net.retain(|l| l.to != place || !given_up(&l.message));
    }

    /// Starts a daemon again.
    pub fn start(&mut self, config: &Configuration, place: usize) {
        self.lose_given_up(place);
        let out = self.edit(place, Host::start);
        self.settle(config, place, Twist::Plain, out);
        self.ask_for_state_again(place);
    }
}
