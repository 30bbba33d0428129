//! The chain that a session has, as the host knows it that opened it, and which one it
//! may get.

use std::collections::HashSet;
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
        if after.len() > MAX_CHAIN {
            return no(format!(
                "a chain has {MAX_CHAIN} hosts at most; leave some out"
            ));
        }
        let server = s.name().remote.ip();
        let mut seen = HashSet::new();
        for host in after {
            if host.is_ipv4() != server.is_ipv4() {
                return no(format!(
                    "{host} is of the other address family; name its other address"
                ));
            }
            if *host == server || self.config.host.addresses.contains(host) {
                return no(format!(
                    "{host} is an end of it; name the hosts between the two ends"
                ));
            }
            if !seen.insert(host) {
                return no(format!("{host} is in it twice; leave one out"));
            }
        }
        Ok(())
    }
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
