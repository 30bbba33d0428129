//! Steps of the model.

use super::config::Configuration;
use super::daemon::Stage;
use super::network::{Mishap, Place, Side, Twist};
use super::seed::Seed;
use super::tcp::Say;
use super::world::World;

/// One step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// An operator of a host requests to put services in.
    Put(usize),
    /// An operator of a host requests to take the services out, or they leave by themselves.
    Take(usize),
    /// A socket sends a segment.
    Say {
        /// The socket.
        place: Place,
        /// Kind of the segment.
        what: Say,
        /// Fault of the network.
        twist: Option<Twist>,
    },
    /// A late packet arrives.
    Land {
        /// Number of the packet.
        index: usize,
        /// It comes again.
        keep: bool,
    },
    /// A message arrives.
    Deliver {
        /// Number of the message.
        index: usize,
        /// It comes again.
        keep: bool,
    },
    /// A message is lost.
    Lose(usize),
    /// A daemon examines its record.
    Settle(usize),
    /// A daemon sets the cutoffs of directions in which no packet comes.
    Still(usize),
    /// A daemon repeats unanswered messages.
    Repeat(usize),
    /// A daemon ends its wait for the other host.
    GiveUp(usize),
    /// A connection between handlers arrives at the daemon of a host.
    Came(usize, u8),
    /// A handler notices that the other one has closed the connection.
    CutOff(usize),
    /// A handler dies.
    HandlerDies(usize),
    /// A daemon dies.
    Crash(usize),
    /// A daemon starts again.
    Start(usize),
}

impl World {
    /// All sockets.
    pub fn places(&self, _: &Configuration) -> Vec<Place> {
        let mut all = vec![Place::End(0), Place::End(1)];
        for (i, host) in self.hosts.iter().enumerate() {
            let sockets = host.handler.iter().flat_map(|handler| &handler.sockets);
            let sockets = sockets.enumerate().filter(|(_, socket)| socket.is_some());
            all.extend(sockets.map(|(which, _)| Place::Socket(i, which)));
        }
        all
    }

    /// Adds the steps by which connections arrive at daemons.
    pub(crate) fn tunnels_come(&self, actions: &mut Vec<Action>) {
        for (tunnel, sides) in self.tunnels.iter().enumerate() {
            for (host, side) in sides.iter().enumerate() {
                let alive = !self.hosts[host].daemon.dead;
                if matches!(side, Side::Pending(_)) && alive {
                    actions.push(Action::Came(host, tunnel as u8));
                }
            }
        }
    }

    /// Carries out a step. Returns false if it is not possible.
    pub fn act(&mut self, config: &Configuration, action: &Action) -> bool {
        match *action {
            Action::Put(host) if config.pair => self.put_pair(config, host),
            Action::Put(_) => self.put_alone(config),
            Action::Take(host) if config.pair => self.take_pair(config, host),
            Action::Take(_) => self.left_alone(config),
            Action::Say { place, what, twist } => self.say(config, place, what, twist),
            Action::Land { index, keep } => {
                let late = match keep {
                    true => self.late[index].clone(),
                    false => self.late.remove(index),
                };
                self.lands(config, late.to, late.packet, &mut None);
                true
            }
            Action::Deliver { index, keep } => {
                let letter = match keep {
                    true => self.net[index],
                    false => self.net.remove(index),
                };
                self.take_message(config, letter);
                true
            }
            Action::Lose(index) => {
                self.net.remove(index);
                true
            }
            Action::Settle(host) => self.settles(config, host, false),
            Action::Still(host) => self.settles(config, host, true),
            Action::Repeat(host) => {
                self.repeat(config, host);
                true
            }
            Action::GiveUp(host) => self.gives_up(config, host),
            Action::Came(host, tunnel) => self.came(config, host, tunnel),
            Action::CutOff(host) => self.cut_off(config, host),
            Action::HandlerDies(host) => self.handler_dies(config, host),
            Action::Crash(host) => self.crashes(host),
            Action::Start(host) => {
                self.starts(config, host);
                true
            }
        }
    }

    /// Makes a daemon examine its record. With `still`, the daemon also sets missing cutoffs.
    fn settles(&mut self, config: &Configuration, host: usize, still: bool) -> bool {
        let changes = matches!(
            self.hosts[host].daemon.stage,
            Stage::Entering | Stage::In | Stage::Leaving
        );
        if self.hosts[host].daemon.dead || !changes {
            return false;
        }
        if still {
            if config.seed == Some(Seed::NeverStill) {
                return false;
            }
            let before = self.hosts[host].record.clone();
            let record = &mut self.hosts[host].record;
            record.cut_still(true);
            if !config.pair {
                record.cut_still(false);
            }
            self.note_cuts(config, host, &before);
        }
        match config.pair {
            true => self.step_pair(config, host, false),
            false => self.step_alone(config),
        }
        true
    }

    /// Ends the daemon of a host.
    fn crashes(&mut self, host: usize) -> bool {
        if self.hosts[host].daemon.dead {
            return false;
        }
        // Between the orders of the two hosts, one of them may have begun.
        let orders = |stage| matches!(stage, Stage::Accepted | Stage::Entering);
        if self.hosts.len() == 2 && self.hosts.iter().any(|host| orders(host.daemon.stage)) {
            self.excuse();
        }
        let daemon = &mut self.hosts[host].daemon;
        daemon.dead = true;
        true
    }
}

/// All faults that may happen to the packets of a step.
pub(crate) fn twists(lost: bool, late: bool) -> impl Iterator<Item = Twist> {
    let mishaps = [
        (Mishap::Lost, lost),
        (Mishap::Late, late),
        (Mishap::Twice, late),
    ];
    let mishaps = mishaps.into_iter().filter(|(_, may)| *may);
    mishaps.flat_map(|(what, _)| (0..3).map(move |at| Twist { at, what }))
}
