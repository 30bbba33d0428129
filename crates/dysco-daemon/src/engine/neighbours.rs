//! Neighbours that answer as agents, and pairs of hosts between which a new path has died. Results
//! are remembered: a neighbour that does not answer costs a time-out, and a path that dies holds up
//! each session until the failure is found.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dysco_control::DownReason;
use dysco_explain::Cause;
use dysco_proto::Reason;

/// Time for which a neighbour is believed to have no agent.
const REMEMBER: Duration = Duration::from_secs(300);
/// Time after which such a neighbour is asked again, without anybody waiting for the answer.
const ASK_AGAIN: Duration = Duration::from_secs(20);
/// Maximum number of remembered neighbours: clients on the Internet are many.
const MOST: usize = 65_536;

/// Knowledge about one neighbour.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// An agent answers there.
    Agent,
    /// No agent answers there, for this reason.
    Nobody(Cause),
    /// Nothing is known.
    Nothing,
}

/// Knowledge about all neighbours.
#[derive(Default)]
pub(super) struct Neighbours {
    known: HashMap<IpAddr, (Known, Instant)>,
    /// Pairs of hosts between which a new path has died or would not have carried a session, the
    /// lower address first, with the reason.
    unusable: HashMap<[IpAddr; 2], (Reason, Instant)>,
}

impl Neighbours {
    /// Returns the knowledge about this neighbour.
    pub(super) fn know(&self, peer: IpAddr) -> Known {
        match self.known.get(&peer) {
            Some((Known::Nobody(_), at)) if at.elapsed() > REMEMBER => Known::Nothing,
            Some((known, _)) => known.clone(),
            None => Known::Nothing,
        }
    }

    /// Returns true if it is worth asking this neighbour.
    pub(crate) fn worth_asking(&self, peer: IpAddr) -> bool {
        match self.known.get(&peer) {
            Some((Known::Nobody(_), at)) => at.elapsed() > ASK_AGAIN,
            Some(_) => false,
            None => true,
        }
    }

    /// Records that the neighbour is connected.
    pub(super) fn is_there(&mut self, peer: IpAddr) {
        self.keep(peer, Known::Agent);
    }

    /// Records that the neighbour is not connected, or not any more.
    pub(crate) fn is_not_there(&mut self, peer: IpAddr, why: &DownReason) {
        match why {
            DownReason::NoAnswer(_)
            | DownReason::Tls(_)
            | DownReason::Anonymous
            | DownReason::Framing(_)
            | DownReason::Silent
            | DownReason::Unreachable(_)
            | DownReason::NoChannel => self.keep(peer, Known::Nobody(why.cause())),
            // The neighbour may have been restarted.
            DownReason::Closed(_) | DownReason::ClosedHere(_) => {
                self.known.remove(&peer);
            }
        }
    }

    /// Records that the neighbour was asked and did not answer in time.
    pub(crate) fn did_not_answer(&mut self, peer: IpAddr) {
        self.keep(peer, Known::Nobody("no answer in time".into()));
    }

    /// Records that the new path between these two hosts has died: `silent` did not answer.
    pub(crate) fn died_between(&mut self, hosts: [IpAddr; 2], silent: IpAddr) {
        self.unusable_between(hosts, Reason::PathDied(silent));
    }

    /// Records that a new path between these two hosts would not carry a session.
    pub(crate) fn unusable_between(&mut self, hosts: [IpAddr; 2], why: Reason) {
        remember(&mut self.unusable, in_order(hosts), why);
    }

    /// Records that a new path between these two hosts lives.
    pub(crate) fn lives_between(&mut self, hosts: [IpAddr; 2]) {
        self.unusable.remove(&in_order(hosts));
    }

    /// Returns the reason for which no path is to be tried between them, if one was found recently.
    pub(crate) fn why_not_between(&self, hosts: [IpAddr; 2]) -> Option<Reason> {
        let (why, at) = self.unusable.get(&in_order(hosts))?;
        (at.elapsed() < REMEMBER).then(|| why.clone())
    }

    fn keep(&mut self, peer: IpAddr, known: Known) {
        if self.known.len() >= MOST {
            self.known
                .retain(|_, (known, at)| *known == Known::Agent || at.elapsed() < REMEMBER);
        }
        if self.known.len() < MOST || self.known.contains_key(&peer) {
            self.known.insert(peer, (known, Instant::now()));
        }
    }
}

/// Returns the two hosts in order, because a path is the same from both its ends.
pub(super) fn in_order(mut hosts: [IpAddr; 2]) -> [IpAddr; 2] {
    hosts.sort();
    hosts
}

fn remember<K: Eq + Hash, W>(known: &mut HashMap<K, (W, Instant)>, of: K, why: W) {
    if known.len() >= MOST {
        known.retain(|_, (_, at)| at.elapsed() < REMEMBER);
    }
    if known.len() < MOST || known.contains_key(&of) {
        known.insert(of, (why, Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_remembered_and_a_closed_connection_is_not() {
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut neighbours = Neighbours::default();
        assert_eq!(neighbours.know(one), Known::Nothing);
        neighbours.is_there(one);
        neighbours.is_not_there(other, &DownReason::NoAnswer(1000));
        assert_eq!(neighbours.know(one), Known::Agent);
        assert!(matches!(neighbours.know(other), Known::Nobody(_)));
        neighbours.is_not_there(one, &DownReason::Closed("dyscod stops".into()));
        assert_eq!(neighbours.know(one), Known::Nothing);
        neighbours.is_there(other);
        assert_eq!(neighbours.know(other), Known::Agent);
    }

    #[test]
    fn a_path_that_has_died_is_the_same_from_both_its_ends() {
        let [a, b, c] = [1, 2, 3].map(|host| IpAddr::from([10, 0, 0, host]));
        let mut neighbours = Neighbours::default();
        assert_eq!(neighbours.why_not_between([a, b]), None);
        neighbours.died_between([a, b], b);
        let died = Some(Reason::PathDied(b));
        assert_eq!(neighbours.why_not_between([b, a]), died);
        assert_eq!(neighbours.why_not_between([a, c]), None);
        neighbours.lives_between([b, a]);
        assert_eq!(neighbours.why_not_between([a, b]), None);
    }
}
