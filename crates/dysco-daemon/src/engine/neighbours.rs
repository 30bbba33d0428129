//! Which neighbours answer as agents, and between which of them a new path has died.
//! Found out once and remembered: one that does not answer costs a time-out, and such a
//! path holds each session up for as long as it takes to find out.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dysco_control::DownReason;
use dysco_proto::Reason;

/// How long it is believed that nobody is there.
const REMEMBER: Duration = Duration::from_secs(300);
/// After this it is asked again, without anybody waiting for it.
const ASK_AGAIN: Duration = Duration::from_secs(20);
/// How many are remembered: clients on the Internet are many.
const MOST: usize = 65_536;

/// What is known of one neighbour.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// An agent answers there.
    Agent,
    /// None does, for this reason.
    Nobody(String),
    /// Nothing is known.
    Nothing,
}

/// What is known of all.
#[derive(Default)]
pub(super) struct Neighbours {
    known: HashMap<IpAddr, (Known, Instant)>,
    /// Two hosts between which a new path has died, or would not have carried a session, the
    /// lower address first, and why.
    unusable: HashMap<[IpAddr; 2], (Reason, Instant)>,
}

impl Neighbours {
    /// What is known of this one.
    pub fn know(&self, peer: IpAddr) -> Known {
        match self.known.get(&peer) {
            Some((Known::Nobody(_), at)) if at.elapsed() > REMEMBER => Known::Nothing,
            Some((known, _)) => known.clone(),
            None => Known::Nothing,
        }
    }

    /// Would it be good to hear of this one?
    pub fn worth_asking(&self, peer: IpAddr) -> bool {
        match self.known.get(&peer) {
            Some((Known::Nobody(_), at)) => at.elapsed() > ASK_AGAIN,
            Some(_) => false,
            None => true,
        }
    }

    /// It is connected.
    pub fn is_there(&mut self, peer: IpAddr) {
        self.keep(peer, Known::Agent);
    }

    /// It is not, or not any more.
    pub fn is_not_there(&mut self, peer: IpAddr, why: &DownReason) {
        match why {
            DownReason::NoAnswer(_)
            | DownReason::Tls(_)
            | DownReason::Anonymous
            | DownReason::Framing(_)
            | DownReason::Silent
            | DownReason::Unreachable(_) => self.keep(peer, Known::Nobody(why.to_string())),
            // It may be there anew.
            DownReason::Closed(_) | DownReason::ClosedHere(_) => {
                self.known.remove(&peer);
            }
        }
    }

    /// It was asked long enough ago.
    pub fn did_not_answer(&mut self, peer: IpAddr) {
        self.keep(peer, Known::Nobody("no answer in time".into()));
    }

    /// The new path between these two has died: this one did not answer.
    pub fn died_between(&mut self, hosts: [IpAddr; 2], silent: IpAddr) {
        self.unusable_between(hosts, Reason::PathDied(silent));
    }

    /// A new path between these two would not carry a session.
    pub fn unusable_between(&mut self, hosts: [IpAddr; 2], why: Reason) {
        remember(&mut self.unusable, in_order(hosts), why);
    }

    /// A new path between these two lives.
    pub fn lives_between(&mut self, hosts: [IpAddr; 2]) {
        self.unusable.remove(&in_order(hosts));
    }

    /// Why none is to be tried between them, if that was found a while ago.
    pub fn why_not_between(&self, hosts: [IpAddr; 2]) -> Option<Reason> {
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

/// A path is the same from both its ends.
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
    fn silence_is_remembered_and_a_farewell_is_not() {
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
