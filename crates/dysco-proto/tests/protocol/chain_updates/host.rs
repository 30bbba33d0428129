//! The commands that the model of the paths carries out.

use dysco_proto::Host;
use dysco_proto::command::{Anchor, Chain, Direct, Forwarder, Journal, Pair, Proxy};

use super::*;
use crate::plane::at as cutoff_at;

/// A host of the world that carries out a command.
pub(super) struct At<'a> {
    pub world: &'a mut World,
    pub at: usize,
}

impl At<'_> {
    fn paths(&mut self) -> &mut Paths {
        &mut self.world.hosts[self.at].paths
    }

    fn tell(&mut self, event: HostEvent) {
        self.world.tell(self.at, event);
    }

    /// Takes the new path.
    fn cut(&mut self, change: ChangeId) {
        assert!(
            self.paths().second_path,
            "it takes a path that is not there"
        );
        self.paths().takes_new = true;
        let cutoff = cutoff_at(7);
        self.tell(HostEvent::CutDone { change, cutoff });
        self.world.settle(change);
    }

    fn ask_delta(&mut self, change: ChangeId, from: IpAddr) {
        assert_eq!(self.at, OLD, "who comes in has changed nothing");
        // The host may refuse while state is being copied.
        let result = match self.world.chance.below(8) {
            0 if self.world.loss > 0 => Err(Reason::Closing),
            _ => Ok(ADDED),
        };
        self.tell(HostEvent::DeltaKnown {
            change,
            from,
            result,
        });
    }

    fn forget(&mut self, change: ChangeId, from: IpAddr, paths: &[u32]) {
        let (world, at) = (&*self.world, self.at);
        // The number is that of the path that was given up, regardless of former processes.
        assert_eq!(paths, [if at == OLD { 0 } else { order().number }]);
        let moved = |(_, of, to): &(usize, ChangeId, IpAddr)| *of == change && *to == ip(at);
        assert!(
            !world.states.iter().any(moved),
            "state comes to {at} afterwards"
        );
        let anchors = [LEFT, RIGHT].map(|a| world.hosts[a].paths.takes_new);
        assert_eq!(anchors, [at == OLD; 2], "host {at} is still needed");
        self.tell(HostEvent::Forgotten { change, from });
    }
}

impl Host for At<'_> {
    type Outcome = ();

    fn proxy(&mut self, _: ChangeId, command: Proxy) {
        panic!("not of a chain: {command:?}");
    }

    fn anchor(&mut self, _: ChangeId, command: Anchor) {
        panic!("not of a chain: {command:?}");
    }

    fn pair(&mut self, _: ChangeId, command: Pair) {
        panic!("not of a chain: {command:?}");
    }

    fn direct(&mut self, _: ChangeId, command: Direct) {
        panic!("not of a chain: {command:?}");
    }

    fn chain(&mut self, change: ChangeId, command: Chain) {
        match command {
            Chain::Hold { .. } => {
                let result = Ok(World::facts(self.at));
                self.tell(HostEvent::Locked { change, result });
            }
            Chain::Extend { .. } => {
                self.paths().second_path = true;
                let result = Ok(());
                self.tell(HostEvent::Prepared { change, result });
            }
            Chain::MoveState { to, .. } => self.world.states.push((self.at, change, to)),
            Chain::Open { delta, .. } => {
                // A host that cannot be asked may still be left out.
                let silent = delta.is_none() && self.world.loss > 0;
                assert!(delta == ADDED || silent, "{delta:?}");
                self.world.open(self.at, change);
            }
            Chain::Cut => self.cut(change),
            Chain::SetCutIn { .. } => {
                self.paths().cut_in = true;
                self.world.settle(change);
            }
            Chain::Splice { hosts, .. } => assert_eq!((self.at, hosts), (LEFT, order().after)),
            Chain::Complete => {
                assert!(self.paths().takes_new);
                self.paths().hears_old = false;
            }
            Chain::Abandon => {
                assert!(self.paths().hears_old, "no way back");
                self.paths().takes_new = false;
                self.paths().cut_in = false;
            }
            Chain::Release => {
                assert!(!self.paths().takes_new);
                self.paths().second_path = false;
            }
        }
    }

    fn forwarder(&mut self, change: ChangeId, command: Forwarder) {
        match command {
            Forwarder::Enlist { from, .. } => {
                let result = Ok(());
                self.tell(HostEvent::Enlisted {
                    change,
                    from,
                    result,
                });
            }
            Forwarder::AskDelta { from, .. } => self.ask_delta(change, from),
            Forwarder::Forget { from, paths, .. } => self.forget(change, from, &paths),
        }
    }

    fn journal(&mut self, change: ChangeId, command: Journal) {
        let records = &mut self.world.hosts[self.at].records;
        match command {
            Journal::Persist { record } => records.insert(change, record),
            Journal::Erase => records.remove(&change),
        };
    }
}
