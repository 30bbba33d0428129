//! Services at one end, as `engine/services/progress.rs` puts them in and takes them out.

use dysco_common::detour::phase;

use super::config::{Configuration, Seen};
use super::daemon::Stage;
use super::handler::Handler;
use super::seed::Seed;
use super::world::{START, World};

impl World {
    /// Puts services into the session: the handler has its sockets, and the session enters.
    pub(crate) fn put_alone(&mut self, config: &Configuration) -> bool {
        let host = &mut self.hosts[0];
        let free = host.daemon.stage == Stage::None && host.record.are(phase::DIRECT);
        if host.daemon.dead || !free || self.puts == 0 {
            return false;
        }
        let nth = config.puts.len() - usize::from(self.puts);
        self.puts -= 1;
        host.handler = Some(Handler::new(START, config.puts[nth], true));
        host.record.enter(START);
        host.daemon.stage = Stage::Entering;
        if nth > 0 {
            self.saw(Seen::PutAgain);
        }
        true
    }

    /// Takes the services out of the handler. The session leaves the detour once both directions
    /// have entered it.
    pub(crate) fn left_alone(&mut self, config: &Configuration) -> bool {
        let host = &mut self.hosts[0];
        let Some(handler) = &mut host.handler else {
            return false;
        };
        let may = match host.daemon.stage {
            _ if host.daemon.dead => false,
            Stage::In => true,
            Stage::Entering => config.leaves_early,
            _ => false,
        };
        if !may || handler.left || self.takes == 0 {
            return false;
        }
        self.takes -= 1;
        handler.left = true;
        for d in 0..2 {
            let seen = handler.seen[d];
            if let Some(part) = self.parts[d].last_mut().filter(|part| part.to.is_none()) {
                part.to = Some(part.from + seen);
            }
        }
        if config.seed == Some(Seed::LeavesEarly) {
            host.record.settle();
            self.leave_alone(config);
        }
        self.step_alone(config);
        true
    }

    fn leave_alone(&mut self, config: &Configuration) {
        let host = &mut self.hosts[0];
        let Some(handler) = &host.handler else {
            return;
        };
        let mut added = [0, 1].map(|d| handler.deltas[d].added(handler.seen[d]));
        if config.seed == Some(Seed::WrongDirection) {
            added.swap(0, 1);
        }
        host.record.leave(true, added[0], false);
        host.record.leave(false, added[1], false);
        host.daemon.stage = Stage::Leaving;
    }

    /// Continues the change of the session as far as its routes have changed.
    pub(crate) fn step_alone(&mut self, config: &Configuration) {
        let host = &mut self.hosts[0];
        host.record.settle();
        let drained = match config.seed {
            Some(Seed::NotDrained) => {
                let [out, back] = [&host.record.0.out, &host.record.0.back];
                [out, back]
                    .iter()
                    .all(|way| way.cut_set == 1 || !way.changes())
            }
            _ => host.record.are(phase::DIRECT),
        };
        match host.daemon.stage {
            Stage::Entering if host.record.are(phase::THROUGH) => {
                host.daemon.stage = Stage::In;
                self.saw(Seen::Put);
                self.leaves_if_left(config);
            }
            Stage::In => self.leaves_if_left(config),
            Stage::Leaving if drained => {
                host.daemon.stage = Stage::None;
                self.drop_handler(0);
                self.saw(Seen::Taken);
            }
            _ => {}
        }
    }

    fn leaves_if_left(&mut self, config: &Configuration) {
        let handler = self.hosts[0].handler.as_ref();
        if handler.is_some_and(|handler| handler.left) {
            self.leave_alone(config);
        }
    }

    /// Ends the handler of a host. Its daemon resets the sockets that have bytes.
    pub(crate) fn handler_dies(&mut self, config: &Configuration, host: usize) -> bool {
        if self.hosts[host].handler.is_none() || self.hosts[host].daemon.dead {
            return false;
        }
        self.hosts[host].record.settle();
        self.excuse();
        if config.pair {
            self.close_tunnel(host);
            self.lost(config, host);
        } else {
            self.resets(config, host);
            self.hosts[host].daemon.stage = Stage::None;
        }
        self.drop_handler(host);
        true
    }
}
