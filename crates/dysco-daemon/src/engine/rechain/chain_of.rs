//! The chain that a session has, as the host that opened it knows it, and the chains that it may
//! get.

use std::net::IpAddr;

use dysco_common::chain::{Chain, Element, Given, MAX_CHAIN};
use dysco_common::view::{ChainState, Change, View};
use dysco_common::{Addr, Session};
use dysco_explain::{Cause, Explain};
use dysco_proto::{Order, Reason, Subsession};

use crate::engine::{Engine, ThisHost, measure};

impl ThisHost {
    /// Returns the hosts that a session passes, where the session was opened here.
    pub(in crate::engine) fn chain_now(&self, slot: u32, s: &Session) -> Vec<IpAddr> {
        if !s.is_chained() {
            return Vec::new();
        }
        self.agent.chain_of(slot).unwrap_or_default()
    }

    /// Returns the chain and numbers that a session was given, where it was opened here. A direct
    /// session has had a chain, or the attempt to give it one.
    pub(in crate::engine) fn given(&self, slot: u32, s: &Session) -> Given {
        let given = self.agent.given(slot).unwrap_or_default();
        match s.is_chained() {
            true => given,
            false => Given {
                highest: given.highest,
                ..Given::default()
            },
        }
    }

    /// Returns the slots of a session's paths. The session may be about to take or leave one of
    /// them.
    fn path_slots(&self, slot: u32) -> impl Iterator<Item = u32> + use<> {
        let mut paths = self.rechain.paths.values();
        let next = paths.find(|p| p.first.0 == slot).and_then(|p| p.second);
        let before = self.agent.session(slot).other_path();
        let other = before.filter(|_| !self.is_done_with_before(slot)).or(next);
        [Some(slot), other].into_iter().flatten()
    }

    /// Gives a number to the path that a change is about to lay, and records which paths the
    /// session has now. The number is recorded before any host learns it, so that no number is
    /// given twice, even if this process dies.
    pub(super) fn number_path(&self, order: &mut Order) -> Result<(), Reason> {
        let slot = self.find(&order.session).ok_or(Reason::Closing)?;
        let given = |slot| self.given(slot, &self.agent.session(slot));
        let highest = self.path_slots(slot).map(|slot| given(slot).highest).max();
        order.number = highest.unwrap_or_default() + 1;
        for slot in self.path_slots(slot) {
            let numbered = Given {
                highest: order.number,
                ..given(slot)
            };
            let noted = self.agent.set_given(slot, &numbered);
            noted.map_err(|e| Reason::Failed(e.explain().into()))?;
        }
        order.paths = order.segment_of(given(slot).paths()).to_vec();
        Ok(())
    }

    /// Records the hosts that a session passes now between two hosts of its chain, or its ends, and
    /// the number of the path that leads there.
    pub(in crate::engine) fn splice_chain(
        &mut self,
        session: &Subsession,
        between: (Option<IpAddr>, Option<IpAddr>),
        hosts: &[IpAddr],
        number: u32,
    ) {
        let Some(slot) = self.find(session) else {
            return;
        };
        for slot in self.path_slots(slot) {
            let now = self.given(slot, &self.agent.session(slot));
            let Some(given) = relaid(&now, between, hosts, number) else {
                tracing::error!(%session, ?now, ?between, "a session's chain is not what was taken down");
                continue;
            };
            if let Err(error) = self.agent.set_given(slot, &given) {
                tracing::error!(%session, %error, "a session's chain is not taken down");
            }
        }
    }

    /// Returns true if the path before this one, which a session takes, only admits late packets.
    fn is_done_with_before(&self, slot: u32) -> bool {
        let change = self.rechain.by_slot.get(&slot);
        let paths = change.and_then(|change| self.rechain.paths.get(change));
        paths.is_none_or(|paths| paths.completed.is_some())
    }
}

impl Engine {
    /// Returns an error if, as far as this host knows, the session cannot get the chain.
    pub(super) fn fits(
        &self,
        s: &Session,
        before: &[IpAddr],
        after: &[IpAddr],
    ) -> Result<(), Reason> {
        let no = |why: &str, hint: &str| Err(Reason::NoSuchChain(Cause::new(why).hint(hint)));
        self.host.not_in_between(s)?;
        self.host.has_a_neighbour(s)?;
        let own = measure::opened(&s.key);
        if s.was_bypassed() && self.machine.is_changing(&own) {
            return no("its middlebox has not left it altogether", AGAIN);
        }
        if !live(s) {
            return Err(not_live(s, own));
        }
        if before == after {
            return Err(Reason::NoSuchChain("it has that chain already".into()));
        }
        let server = s.name().remote.ip();
        let is_end = |host: IpAddr| {
            self.host.config.host.addresses.contains(&host)
                || self.host.chains.is_one_host(host, server)
        };
        can_be(after, server, is_end, |a, b| {
            self.host.chains.is_one_host(a, b)
        })
    }
}

/// Returns an error if no session to this server can have the chain. Hosts are distinguished as far
/// as their addresses are known.
fn can_be(
    chain: &[IpAddr],
    server: IpAddr,
    is_end: impl Fn(IpAddr) -> bool,
    is_one_host: impl Fn(IpAddr, IpAddr) -> bool,
) -> Result<(), Reason> {
    let no = |why: String, hint: &str| Err(Reason::NoSuchChain(Cause::new(why).hint(hint)));
    if chain.len() > MAX_CHAIN {
        let why = format!("a chain has {MAX_CHAIN} hosts at most");
        return no(why, "leave some out");
    }
    for (at, host) in chain.iter().enumerate() {
        if host.is_ipv4() != server.is_ipv4() {
            let why = format!("{host} is of the other address family");
            return no(why, "name its other address");
        }
        if is_end(*host) {
            let why = format!("{host} is an end of it");
            return no(why, "name the hosts between the two ends");
        }
        let before = &chain[..at];
        if before.contains(host) {
            return no(format!("{host} is in it twice"), "leave one out");
        }
        if let Some(same) = before.iter().find(|other| is_one_host(**other, *host)) {
            let why = format!("{same} and {host} are addresses of one host, which is in it twice");
            return no(why, "leave one out");
        }
    }
    Ok(())
}

/// Returns true if the hosts of its chain know the session as its ends do, so that each of them may
/// be an anchor.
pub(super) fn is_whole(s: &Session) -> bool {
    !s.was_bypassed() && s.relay == 0 && !s.view().is_relayed()
}

/// Returns the chain of a session after it got other hosts between two hosts of its chain, or its
/// ends, and a path of this number between them. Returns nothing if its chain does not have the
/// two.
pub(super) fn relaid(
    now: &Given,
    (left, right): (Option<IpAddr>, Option<IpAddr>),
    hosts: &[IpAddr],
    number: u32,
) -> Option<Given> {
    let all = now.chain.elements();
    let place = |host: IpAddr| all.iter().position(|e| e.host.ip() == host);
    let from = left.map_or(Some(0), |host| Some(place(host)? + 1))?;
    let to = right.map_or(Some(all.len()), place)?;
    let (before, behind) = (all.get(..from)?, all.get(to.max(from)..)?);
    let addresses = |part: &[Element]| part.iter().map(|e| e.host).collect::<Vec<_>>();
    let between: Vec<Addr> = hosts.iter().map(|host| (*host).into()).collect();
    let chain = Chain::of(&[addresses(before), between, addresses(behind)].concat())?;
    let new = vec![number; hosts.len() + 1];
    let numbers = now.paths();
    let numbers = [numbers.get(..from)?, &new, numbers.get(to.max(from) + 1..)?].concat();
    let mut paths = [0; MAX_CHAIN + 1];
    paths.get_mut(..numbers.len())?.copy_from_slice(&numbers);
    Some(Given {
        chain,
        paths,
        highest: now.highest.max(number),
    })
}

/// Returns true if the session can get another chain now.
pub(super) fn live(s: &Session) -> bool {
    let fit = match s.view() {
        View::Tracked | View::Relayed(_) => true,
        View::NewPath(route) | View::Changing(Change::Switching(route)) => {
            route.is_open() || route.bypassed
        }
        _ => false,
    };
    fit && !s.has_ended()
}

/// Returns the reason for which the session cannot get another chain.
fn not_live(s: &Session, own: Subsession) -> Reason {
    let cause = match s.view() {
        View::Free => return Reason::NotTracked(own),
        _ if s.has_ended() => return Reason::Closing,
        View::Closed | View::Left(_) => return Reason::Closing,
        View::Adopted => return Reason::NotHeard(own),
        View::Opening => unopened(),
        _ if s.chain_state() == ChainState::Opening => unopened(),
        View::Tracked
        | View::Changing(_)
        | View::NewPath(_)
        | View::Relayed(_)
        | View::Returned => Cause::new("another change of it has not ended").hint(AGAIN),
    };
    Reason::NoSuchChain(cause)
}

const AGAIN: &str = "ask again in a moment";

fn unopened() -> Cause {
    let why = "its SYN has not been answered yet, or the answer does not pass this host";
    Cause::new(why).hint("ask again once the session is open")
}

/// Returns the pairs of hosts between which state moves: from the first that leaves to the first
/// that comes, and so on. A host that stays has the state.
pub(super) fn pairs(before: &[IpAddr], after: &[IpAddr]) -> Result<Vec<(IpAddr, IpAddr)>, Reason> {
    let not_in = |hosts: &[IpAddr], others: &[IpAddr]| -> Vec<IpAddr> {
        let only = hosts.iter().filter(|host| !others.contains(host));
        only.copied().collect()
    };
    let (leave, come) = (not_in(before, after), not_in(after, before));
    if leave.len() != come.len() {
        let why = format!(
            "state of {} hosts that leave cannot go to {} that come",
            leave.len(),
            come.len()
        );
        let hint = "leave --state out, or replace one host by one";
        return Err(Reason::NoSuchChain(Cause::new(why).hint(hint)));
    }
    Ok(leave.into_iter().zip(come).collect())
}

#[cfg(test)]
mod tests {
    use dysco_common::State;

    use super::*;

    fn given(chain: &[u8], paths: &[u32]) -> Given {
        let hosts: Vec<Addr> = chain.iter().map(|last| ip(*last).into()).collect();
        let mut given = Given {
            chain: Chain::of(&hosts).unwrap(),
            highest: 9,
            ..Given::default()
        };
        given.paths[..paths.len()].copy_from_slice(paths);
        given
    }

    #[test]
    fn a_segment_gets_the_number_of_its_new_path_and_the_rest_keeps_its_own() {
        let now = given(&[3, 4, 5], &[0, 7, 7, 2]);
        let laid = |left: Option<u8>, right: Option<u8>, hosts: &[u8]| {
            let hosts: Vec<IpAddr> = hosts.iter().copied().map(ip).collect();
            relaid(&now, (left.map(ip), right.map(ip)), &hosts, 9)
        };
        assert_eq!(laid(None, None, &[6]), Some(given(&[6], &[9, 9])));
        assert_eq!(laid(None, None, &[]), Some(given(&[], &[9])));
        let inner = laid(Some(3), Some(5), &[6, 8]).unwrap();
        assert_eq!(inner, given(&[3, 6, 8, 5], &[0, 9, 9, 9, 2]));
        assert_eq!(laid(Some(3), None, &[]), Some(given(&[3], &[0, 9])));
        // The same order arrives twice.
        let hosts = [6, 8].map(ip);
        let again = relaid(&inner, (Some(ip(3)), Some(ip(5))), &hosts, 9);
        assert_eq!(again, Some(inner));
        assert_eq!(laid(Some(6), None, &[]), None);
    }

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// The opener has the addresses 1 and 101, the server 2 and 102. Each other host also has an
    /// address that is higher by 100.
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
            assert!(said.contains("has not been answered yet"), "{said}");
        }
        let gone = session(State::Free, 0);
        assert_eq!(not_live(&gone, own), Reason::NotTracked(own));
    }
}
