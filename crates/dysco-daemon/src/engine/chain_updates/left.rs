//! Sessions that a middlebox has left by another mode than the bypass: the places where another
//! host can be inserted, and the reasons for which one cannot.

use dysco_common::Session;
use dysco_common::view::{Change, View};
use dysco_explain::Cause;
use dysco_proto::{Progress, Reason, Subsession};

use crate::engine::neighbours::Known;
use crate::engine::{ChainUpdates, Plane};

const LOCAL: &str = "a middlebox has left it, and its host alone relays it (local): another host can be inserted only between two that run dyscod, one on each side of it";

fn returned() -> Cause {
    Cause::new("a middlebox has left it, and replies go straight to a client that need not run dyscod (return): another host can be inserted only between two that run dyscod, one on each side of it")
        .hint("run dyscod on the client's host, then 'dyscoctl remove-middlebox self --mode bypass' on the middlebox's, and then ask on the client's")
}

impl Plane {
    /// Returns an error if this host is at a place where no other can be inserted beside it.
    pub(in crate::engine) fn not_in_between(&self, s: &Session) -> Result<(), Reason> {
        let cause = match s.view() {
            _ if s.detours_before_path() => crate::engine::services::words::in_the_way(),
            View::Changing(Change::TwoPaths(_) | Change::RelayTwoPaths(_)) => {
                Cause::new("a middlebox is leaving it at this moment")
                    .hint("ask again when it has left")
            }
            View::Relayed(_) if self.replies_pass_by(s) => returned(),
            View::Returned => returned(),
            View::Left(_) => {
                Cause::new("a middlebox of this host has left it, and its packets bypass this host")
                    .hint("ask on the host that opened it")
            }
            View::Detoured | View::Held => crate::engine::services::words::in_the_way(),
            View::Free
            | View::Closed
            | View::Opening
            | View::Tracked
            | View::Adopted
            | View::NewPath(_)
            | View::Relayed(_)
            | View::Changing(Change::Joining | Change::Switching(_) | Change::Passing(_)) => {
                return Ok(());
            }
        };
        Err(Reason::NoSuchChain(cause))
    }

    fn other_side(&self, s: &Session) -> Option<Session> {
        s.joined_to().map(|slot| self.agent.session(slot))
    }

    fn replies_pass_by(&self, s: &Session) -> bool {
        let other = self.other_side(s).map_or(0, |o| o.two.returns);
        s.two.returns | other != 0
    }

    /// Returns an error if no host can be inserted beside one that relays: the end there has to run
    /// an agent. The request belongs on that of the two hosts which opened the session between
    /// them.
    pub(in crate::engine) fn has_a_neighbour(&self, s: &Session) -> Result<(), Reason> {
        let Some(other) = (self.other_side(s)).filter(|_| s.view().is_relayed()) else {
            return Ok(());
        };
        let (here, there) = (s.key.remote.ip(), other.key.remote.ip());
        for ip in [here, there] {
            // For a client that asks again.
            if self.neighbours.worth_asking(ip) {
                self.control.reach(ip);
            }
        }
        let opened = s.life.opened_here != 0;
        match self.neighbours.know(here) {
            Known::Agent => return Ok(()),
            // The change itself asks the server's host.
            Known::Nothing if opened => return Ok(()),
            Known::Nobody(_) | Known::Nothing => {}
        }
        let both = format!("{LOCAL}; as far as is known, {there} runs it and {here} does not");
        let cause = match (self.neighbours.know(there), opened) {
            (Known::Agent, true) => Cause::new(both).hint(format!(
                "ask on {there}, for a host between that one and this one"
            )),
            (Known::Agent, false) => Cause::new(both).hint(format!(
                "name the session '{}>{}', for a host between this one and {there}",
                other.key.local(),
                other.key.remote()
            )),
            _ => Cause::new(format!(
                "{LOCAL}; as far as is known, neither {here} nor {there} runs it"
            )),
        };
        Err(Reason::NoSuchChain(cause))
    }

    /// Returns the more precise reason: a host that did not answer in time may have no agent.
    pub(in crate::engine) fn exactly(
        &self,
        subsession: &Subsession,
        progress: Progress,
    ) -> Progress {
        let right = subsession.right.ip();
        match progress {
            Progress::RolledBack(Reason::TimedOut(_))
                if matches!(self.neighbours.know(right), Known::Nobody(_)) =>
            {
                Progress::RolledBack(Reason::NoAgent(right))
            }
            other => other,
        }
    }

    /// Returns an error if a firewall is beside a host that relays the session, which cannot leave
    /// then.
    pub(in crate::engine) fn has_none_beside(&self, relays: [u32; 2]) -> Result<(), Reason> {
        if !self.agent.is_steered(relays) {
            return Ok(());
        }
        let why = "it has been given firewalls beside the host that relays it, and keeps that host as long as it lives";
        Err(Reason::NoSuchChain(why.into()))
    }
}

impl ChainUpdates {
    /// Ends changes of the paths of a relayed session that was reset.
    pub(in crate::engine) fn relay_was_reset(&self, plane: &mut Plane, relays: &[u32]) {
        let of = |slot: u32| {
            let relay = plane.agent.session(slot).relayed_by();
            relays.contains(&slot) || relay.is_some_and(|relay| relays.contains(&relay))
        };
        let all = self.paths.iter().filter(|(_, p)| of(p.first.0));
        let changes: Vec<_> = all.map(|(change, _)| *change).collect();
        for change in changes {
            self.tell_chain_gone(plane, change);
        }
    }
}
