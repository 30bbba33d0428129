//! The chain that a session has, as the host knows it that opened it, and which one it
//! may get.

use std::net::IpAddr;

use dysco_common::chain::MAX_CHAIN;
use dysco_common::{Session, State};

use crate::engine::{Engine, measure};
use crate::protocol::{Reason, Subsession};

impl Engine {
    /// The hosts that a session passes, where it was opened here.
    pub(in crate::engine) fn chain_now(&self, slot: u32, s: &Session) -> Vec<IpAddr> {
        if s.two.chained == 0 {
            return Vec::new();
        }
        self.agent.chain_of(slot).unwrap_or_default()
    }

    /// Takes down what a session passes now between two hosts of its chain, or its ends.
    pub(in crate::engine) fn splice_chain(
        &mut self,
        session: &Subsession,
        between: (Option<IpAddr>, Option<IpAddr>),
        hosts: &[IpAddr],
    ) {
        let Some(slot) = self.find(session) else {
            return;
        };
        // It may be about to take another path, or the one before again.
        let mut paths = self.rechain.paths.values();
        let next = paths.find(|p| p.first.0 == slot).and_then(|p| p.second);
        let before = self.agent.session(slot).other_path();
        let other = before.filter(|_| !self.is_done_with_before(slot)).or(next);
        for slot in [Some(slot), other].into_iter().flatten() {
            let now = self.chain_now(slot, &self.agent.session(slot));
            let Some(chain) = spliced(&now, between, hosts) else {
                tracing::error!(%session, ?now, ?between, "a session's chain is not what was taken down");
                continue;
            };
            if let Err(error) = self.agent.set_chain(slot, &chain) {
                tracing::error!(%session, %error, "a session's chain is not taken down");
            }
        }
    }

    /// Does the path before this one, which a session takes, only let in what is late?
    fn is_done_with_before(&self, slot: u32) -> bool {
        let change = self.rechain.by_slot.get(&slot);
        let paths = change.and_then(|change| self.rechain.paths.get(change));
        paths.is_none_or(|paths| paths.completed.is_some())
    }

    /// What speaks against it, as far as this host knows.
    pub(super) fn fits(
        &self,
        s: &Session,
        before: &[IpAddr],
        after: &[IpAddr],
    ) -> Result<(), Reason> {
        let no = |why: String| Err(Reason::NoSuchChain(why));
        self.not_in_between(s)?;
        self.has_a_neighbour(s)?;
        let own = measure::opened(&s.key);
        if s.was_bypassed() && self.machine.is_changing(&own) {
            return no("its middlebox has not left it altogether; ask again in a moment".into());
        }
        if !live(s) {
            return Err(not_live(s, own));
        }
        if before == after {
            return no("it has that chain; nothing is to be done".into());
        }
        let server = s.name().remote.ip();
        let is_end = |host: IpAddr| {
            self.config.host.addresses.contains(&host) || self.chains.is_one_host(host, server)
        };
        can_be(after, server, is_end, |a, b| self.chains.is_one_host(a, b))
    }
}

/// Can any session to this server have the chain? Hosts are told apart as far as their
/// addresses are known.
fn can_be(
    chain: &[IpAddr],
    server: IpAddr,
    is_end: impl Fn(IpAddr) -> bool,
    is_one_host: impl Fn(IpAddr, IpAddr) -> bool,
) -> Result<(), Reason> {
    let no = |why: String| Err(Reason::NoSuchChain(why));
    if chain.len() > MAX_CHAIN {
        return no(format!(
            "a chain has {MAX_CHAIN} hosts at most; leave some out"
        ));
    }
    for (at, host) in chain.iter().enumerate() {
        if host.is_ipv4() != server.is_ipv4() {
            return no(format!(
                "{host} is of the other address family; name its other address"
            ));
        }
        if is_end(*host) {
            return no(format!(
                "{host} is an end of it; name the hosts between the two ends"
            ));
        }
        let before = &chain[..at];
        if before.contains(host) {
            return no(format!("{host} is in it twice; leave one out"));
        }
        if let Some(same) = before.iter().find(|other| is_one_host(**other, *host)) {
            return no(format!(
                "{same} and {host} are addresses of one host, which is in it twice; leave one out"
            ));
        }
    }
    Ok(())
}

/// Do the hosts of its chain know the session as its ends do? Then each of them may be
/// an anchor.
pub(super) fn is_whole(s: &Session) -> bool {
    !s.was_bypassed() && s.relay == 0 && s.state != State::Relay as u32
}

/// A chain with other hosts between two of it, or its ends; none if it has them not.
pub(super) fn spliced(
    now: &[IpAddr],
    (left, right): (Option<IpAddr>, Option<IpAddr>),
    hosts: &[IpAddr],
) -> Option<Vec<IpAddr>> {
    let place = |host: IpAddr| now.iter().position(|h| *h == host);
    let from = left.map_or(Some(0), |host| Some(place(host)? + 1))?;
    let to = right.map_or(Some(now.len()), place)?;
    let (before, behind) = (now.get(..from)?, now.get(to.max(from)..)?);
    Some([before, hosts, behind].concat())
}

/// Can it get another chain now?
pub(super) fn live(s: &Session) -> bool {
    match State::from_word(s.state) {
        Some(State::Tracked | State::Relay) => !s.has_ended(),
        Some(State::NewPath | State::Switching) => {
            (s.two.chained > 1 || s.was_bypassed()) && !s.has_ended()
        }
        _ => false,
    }
}

/// Why it cannot.
fn not_live(s: &Session, own: Subsession) -> Reason {
    let why = match State::from_word(s.state) {
        Some(State::Free) | None => return Reason::NotTracked(own),
        _ if s.has_ended() => return Reason::Closing,
        Some(State::Closed | State::Tombstone) => return Reason::Closing,
        Some(State::Adopted) => return Reason::NotHeard(own),
        Some(State::Opening) => UNOPENED,
        _ if s.two.chained == 1 => UNOPENED,
        Some(
            State::Tracked
            | State::TwoPaths
            | State::NewPath
            | State::FarTwoPaths
            | State::Relay
            | State::Return
            | State::Joining
            | State::Switching
            | State::Passing,
        ) => "another change of it is not over yet; ask again in a moment",
    };
    Reason::NoSuchChain(why.into())
}

const UNOPENED: &str = "it has not been seen to open: its SYN was not answered yet, or the answer passes this host by; ask again when it was";

/// Whose state goes to whom: the first that leaves to the first that comes. Who
/// stays has it.
pub(super) fn pairs(before: &[IpAddr], after: &[IpAddr]) -> Result<Vec<(IpAddr, IpAddr)>, Reason> {
    let not_in = |hosts: &[IpAddr], others: &[IpAddr]| -> Vec<IpAddr> {
        let only = hosts.iter().filter(|host| !others.contains(host));
        only.copied().collect()
    };
    let (leave, come) = (not_in(before, after), not_in(after, before));
    if leave.len() != come.len() {
        return Err(Reason::NoSuchChain(format!(
            "state of {} hosts that leave cannot go to {} that come; leave --state out, or replace one host by one",
            leave.len(),
            come.len()
        )));
    }
    Ok(leave.into_iter().zip(come).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// The opener is 1 and 101, the server 2 and 102; others have an address of a hundred
    /// more each as well.
    fn judge(chain: &[IpAddr]) -> String {
        let host = |at: IpAddr| match at {
            IpAddr::V4(ip) => ip.octets()[3] % 100,
            IpAddr::V6(_) => 0,
        };
        let is_end = |at| matches!(host(at), 1 | 2);
        let done = can_be(chain, ip(2), is_end, |a, b| host(a) == host(b));
        done.err().map_or_else(String::new, |why| why.to_string())
    }

    #[test]
    fn what_no_session_can_have_is_refused_with_its_reason() {
        let most: Vec<IpAddr> = (3..).map(ip).take(MAX_CHAIN).collect();
        assert_eq!(judge(&most), "");
        assert_eq!(judge(&[]), "");
        let more: Vec<IpAddr> = (3..).map(ip).take(MAX_CHAIN + 1).collect();
        let v6 = IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]);
        let table: [(&[IpAddr], &str); 8] = [
            (&more, "8 hosts at most"),
            (&[ip(3), ip(4), ip(3)], "10.0.0.3 is in it twice"),
            (
                &[ip(3), ip(4), ip(103)],
                "10.0.0.3 and 10.0.0.103 are addresses of one host",
            ),
            (&[ip(1)], "10.0.0.1 is an end of it"),
            (&[ip(3), ip(101)], "10.0.0.101 is an end of it"),
            (&[ip(2)], "10.0.0.2 is an end of it"),
            (&[ip(102), ip(3)], "10.0.0.102 is an end of it"),
            (&[v6], "other address family"),
        ];
        for (chain, word) in table {
            let said = judge(chain);
            assert!(said.contains(word), "{chain:?}: {said}");
        }
    }

    fn session(state: State, chained: u8) -> Session {
        let mut s = Session::default();
        (s.state, s.two.chained) = (state as u32, chained);
        s
    }

    #[test]
    fn why_a_session_cannot_get_another_chain_is_what_it_is() {
        let own = Subsession {
            left: (ip(1), 40_000).into(),
            right: (ip(2), 80).into(),
        };
        for (state, chained) in [(State::Tracked, 0), (State::NewPath, 2), (State::Relay, 0)] {
            let mut s = session(state, chained);
            assert!(live(&s), "{state:?}");
            (s.life.fin_in, s.life.fin_out) = (1, 1);
            assert!(!live(&s));
            assert_eq!(not_live(&s, own), Reason::Closing, "{state:?}");
            let mut s = session(state, chained);
            s.life.reset = 1;
            assert!(!live(&s));
            assert_eq!(not_live(&s, own), Reason::Closing, "{state:?}");
        }
        for s in [session(State::NewPath, 1), session(State::Opening, 0)] {
            assert!(!live(&s));
            let said = not_live(&s, own).to_string();
            assert!(said.contains("has not been seen to open"), "{said}");
        }
        let gone = session(State::Free, 0);
        assert_eq!(not_live(&gone, own), Reason::NotTracked(own));
    }
}
