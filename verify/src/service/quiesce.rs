//! The end of a state if no fault occurs from now on.

use dysco_common::detour::phase;
use dysco_proto::{Machine, Timer};

use super::actions::Action;
use super::config::Configuration;
use super::daemon::Stage;
use super::fate::Fate;
use super::handler::Handler;
use super::network::{Place, Side};
use super::tcp::Say;
use super::world::World;
use crate::parts::digest;
use crate::run::Quiesce;

impl World {
    /// Steps that need no fault and no time.
    fn prompt(&self, config: &Configuration) -> Vec<Action> {
        let mut all = Vec::new();
        all.extend(
            (0..self.hosts.len())
                .filter(|h| self.hosts[*h].daemon.dead)
                .map(Action::Start),
        );
        all.extend((0..self.net.len()).map(|index| Action::Deliver { index, keep: false }));
        all.extend((0..self.late.len()).map(|index| Action::Land { index, keep: false }));
        self.tunnels_come(&mut all);
        let says = [Say::Ack, Say::New];
        let places = self.places(config);
        let twist = None;
        all.extend(places.iter().flat_map(|place| {
            says.map(|what| Action::Say {
                place: *place,
                what,
                twist,
            })
        }));
        for host in 0..self.hosts.len() {
            all.extend([
                Action::CutOff(host),
                Action::Settle(host),
                Action::Still(host),
            ]);
        }
        all
    }

    /// Makes sockets and daemons repeat everything that is unanswered, and takes all further steps
    /// that need no time.
    fn waits_a_while(&mut self, config: &Configuration) {
        for place in self.places(config) {
            if self.waits(place) {
                self.say(config, place, Say::Again, None);
                self.come_to_rest(config);
            }
        }
        for host in 0..self.hosts.len() {
            if config.pair {
                self.repeat(config, host);
            }
        }
        self.come_to_rest(config);
    }

    fn come_to_rest(&mut self, config: &Configuration) {
        for _ in 0..Self::STEPS {
            if !self.take_first(config, &self.prompt(config)) {
                return;
            }
        }
    }

    /// True if a socket will retransmit something.
    pub fn waits(&self, place: Place) -> bool {
        let socket = match place {
            Place::End(i) => Some(&self.ends[i]),
            Place::Socket(host, which) => {
                let handler = self.hosts[host].handler.as_ref();
                handler.and_then(|handler| handler.sockets[which].as_ref())
            }
        };
        socket.is_some_and(|socket| socket.waits())
    }

    fn take_first(&mut self, config: &Configuration, actions: &[Action]) -> bool {
        let name = digest(self);
        for action in actions {
            let mut next = self.clone();
            if next.act(config, action) && digest(&next) != name {
                *self = next;
                return true;
            }
        }
        false
    }

    /// True if nothing but time helps.
    pub(crate) fn only_time_helps(&self, config: &Configuration) -> bool {
        self.net.is_empty() && !self.clone().take_first(config, &self.prompt(config))
    }

    fn is_whole(&self, config: &Configuration) -> bool {
        (0..2).all(|d| self.is_served(config, d))
    }

    /// True if an end has received everything, and all its data is acknowledged.
    fn is_served(&self, config: &Configuration, end: usize) -> bool {
        let tcp = &self.ends[end];
        let other = 1 - end;
        let closed = !config.closes[other] || tcp.has_ended();
        tcp.is_heard() && closed && tcp.got == self.expected(config, other)
    }

    /// Makes each end that still waits after a reset of the other end send its next segment, which a
    /// RST answers.
    fn probes(&self, config: &Configuration) -> World {
        let mut later = self.clone();
        for end in 0..2 {
            if !later.ends[end].dead && !later.is_served(config, end) {
                later.ends[end].probes();
            }
        }
        later.come_to_rest(config);
        later
    }

    fn hears_reset(&self, config: &Configuration) -> bool {
        (0..2).all(|end| self.ends[end].dead || self.is_served(config, end))
    }

    /// True if nothing is left of the services of a session that was reset: no change is under way,
    /// no connection is open, and no handler has a socket of it.
    fn is_over(&self) -> bool {
        let rests = |host: &super::world::Host| {
            let handler = host.handler.as_ref();
            host.daemon.stage == Stage::None && handler.is_none_or(Handler::is_dead)
        };
        let closed = |sides: &[Side; 2]| sides.iter().all(|side| *side != Side::Held);
        self.hosts.iter().all(rests) && self.tunnels.iter().all(closed)
    }

    /// True if no change is under way, and nothing is left of services that are not in the session.
    pub(crate) fn is_settled(&self, config: &Configuration) -> bool {
        let rests = |stage: Stage| matches!(stage, Stage::None | Stage::In);
        let stages = self.hosts.iter().map(|host| host.daemon.stage);
        let same = |host: &super::world::Host| match host.daemon.stage {
            Stage::None => {
                host.record.is_past() && host.handler.as_ref().is_none_or(Handler::is_dead)
            }
            _ => host.record.are(phase::THROUGH) && host.handler.is_some(),
        };
        let agree = self
            .hosts
            .windows(2)
            .all(|w| w[0].daemon.stage == w[1].daemon.stage);
        let open = |sides: &[Side; 2]| {
            let held = sides.iter().filter(|side| **side == Side::Held);
            held.count() == 2
        };
        let tunnels = self.tunnels.iter().filter(|sides| open(sides)).count();
        let wanted = usize::from(config.pair && self.hosts[0].daemon.stage == Stage::In);
        let mut stages = stages;
        stages.all(rests) && self.hosts.iter().all(same) && agree && tunnels == wanted
    }
}

impl Quiesce for World {
    type Configuration = Configuration;
    type Fate = Fate;

    const ENDLESS: Fate = Fate::Endless;
    const STEPS: usize = 200;

    fn machines(&self) -> impl Iterator<Item = (usize, &Machine)> {
        std::iter::empty()
    }

    fn step(&mut self, config: &Configuration) -> bool {
        if self.broken.is_some() {
            return false;
        }
        if self.take_first(config, &self.prompt(config)) {
            return true;
        }
        let mut later = self.clone();
        later.waits_a_while(config);
        if digest(&later) != digest(self) {
            *self = later;
            return true;
        }
        let hosts = 0..self.hosts.len();
        let give_up: Vec<Action> = hosts.map(Action::GiveUp).collect();
        config.pair && self.take_first(config, &give_up)
    }

    fn says_again(&mut self, _: &Configuration, _: usize, _: Timer) {}

    fn times_out(&mut self, _: &Configuration, _: usize, _: Timer) {}

    fn judge(&self, config: &Configuration) -> Fate {
        if self.ends.iter().any(|end| end.dead) {
            let later = self.probes(config);
            return match self.uneven || later.hears_reset(config) {
                true if later.is_over() => Fate::Good,
                true => Fate::Unfinished,
                false => Fate::HalfReset,
            };
        }
        match (self.is_whole(config), self.is_settled(config)) {
            (false, _) => Fate::Missing,
            (_, false) => Fate::Unfinished,
            _ => Fate::Good,
        }
    }
}
