//! Steps of a world: a message arrives, a timer expires, a host or a proxy dies.

use dysco_proto::{Machine, Timer};

use super::{Broken, World};
use crate::config::Configuration;
use crate::drive::{NOW, Twist};
use crate::host::Outcome;
use crate::parts::post;
use crate::place::{self, Side};
use crate::seed;
use crate::socket::Death;

impl World {
    /// Applies the results of a host's input. Returns false if the twist found nothing to act on.
    fn settle(&mut self, config: &Configuration, place: usize, twist: Twist, out: Outcome) -> bool {
        for (to, message) in out.letters {
            if seed::mutes(config.seed, &message) {
                continue;
            }
            if let Some(to) = place::place_of(to).filter(|to| *to < self.hosts.len()) {
                post(&mut self.net, place, to, message);
            }
        }
        if let Some(wrong) = out.wrong {
            self.broken = Some(Broken::Host(wrong));
        }
        self.reset_ends(place);
        if config.prompt {
            self.answer(config, place);
        }
        self.act_as_seeded(config, place);
        twist == Twist::Plain || out.twisted
    }

    /// Completes at once the actions that take a host some time.
    fn answer(&mut self, config: &Configuration, place: usize) {
        let host = self.host(place);
        if host.machine.is_none() || !host.rest.is_empty() {
            return;
        }
        if !host.events.is_empty() {
            self.happen(config, place, 0, Twist::Plain);
        } else if !host.ring.is_empty() {
            self.listen(config, place, Twist::Plain);
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
        self.input(config, place, twist, |m| m.expire(NOW, timer))
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
        if !self.hears(config.seed, &letter) {
            return twist == Twist::Plain;
        }
        let from = place::addresses(letter.from);
        let message = letter.message.clone();
        self.input(config, letter.to, twist, |m| {
            m.handle_message(NOW, &from, message);
        })
    }

    /// Delivers an event that a host waited for.
    pub fn happen(
        &mut self,
        config: &Configuration,
        place: usize,
        index: usize,
        twist: Twist,
    ) -> bool {
        if self.opens(config, place, index) {
            return twist == Twist::Plain;
        }
        let out = self.edit(place, |h| h.happen(index, twist));
        self.settle(config, place, twist, out)
    }

    /// Makes a daemon take the next notice of its programs.
    pub fn listen(&mut self, config: &Configuration, place: usize, twist: Twist) -> bool {
        let out = self.edit(place, |h| h.listen(twist));
        self.settle(config, place, twist, out)
    }

    /// Starts a daemon again.
    pub fn start(&mut self, config: &Configuration, place: usize, twist: Twist) -> bool {
        let out = self.edit(place, |h| h.start(twist));
        self.settle(config, place, twist, out)
    }

    /// Makes a daemon continue that was held up.
    pub fn go_on(&mut self, config: &Configuration, place: usize, twist: Twist) -> bool {
        self.input(config, place, twist, |_| ())
    }

    /// Collects an entry.
    pub fn collect(
        &mut self,
        config: &Configuration,
        place: usize,
        side: Side,
        twist: Twist,
    ) -> bool {
        let out = self.edit(place, |h| h.collect(side, twist));
        self.settle(config, place, twist, out)
    }

    /// Ends the process of a proxy. `how` states how its kernel ends the left and the right socket.
    pub fn proxy_dies(&mut self, place: usize, how: [Death; 2]) -> bool {
        self.edit(place, |h| {
            let all = Side::BOTH.map(|side| h.sockets[side.other() as usize].rcv);
            let sockets = h.sockets.iter_mut().zip(how).zip(all);
            sockets.fold(true, |died, ((socket, how), all)| {
                socket.dies(how, all) && died
            })
        })
    }

    /// Makes the new path die in these directions. Only a path of a cut session can die.
    pub fn dies(&mut self, ways: [bool; 2]) -> bool {
        if !self.is_cut() || self.dead != [false; 2] {
            return false;
        }
        self.dead = ways;
        for place in 0..self.hosts.len() {
            self.edit(place, |h| h.silent = true);
        }
        true
    }

    /// Restores the network between the two hosts, so that it carries packets again.
    pub fn repaired(&mut self) {
        if self.dead != [false; 2] {
            self.dead = [false; 2];
            for place in 0..self.hosts.len() {
                self.edit(place, |h| h.silent = false);
            }
        }
    }
}
