//! The chains that a session may get.

use std::net::IpAddr;

use dysco_common::chain::MAX_CHAIN;
use dysco_common::view::{ChainState, Change, View};
use dysco_common::{Element, Session};
use dysco_explain::Cause;
use dysco_proto::{HostId, Reason, Subsession};

use crate::engine::core::Core;
use crate::engine::measure;

/// Returns an error if, as far as this host knows, the session cannot get the chain.
pub(super) fn fits(
    core: &Core,
    s: &Session,
    before: &[Element],
    after: &[Element],
) -> Result<(), Reason> {
    let no = |why: &str, hint: &str| Err(Reason::NoSuchChain(Cause::new(why).hint(hint)));
    core.host.plane.not_in_between(s)?;
    core.host.plane.has_a_neighbour(s)?;
    let own = measure::opened(&s.key);
    if s.was_bypassed() && core.machine.is_changing(&own) {
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
        core.host.plane.config.host.addresses.contains(&host)
            || core.host.chains.is_one_host(host, server)
    };
    can_be(after, server, is_end, |a, b| {
        core.host.chains.is_one_host(a, b)
    })
}

/// Returns an error if no session to this server can have the chain. Hosts are distinguished as far
/// as their addresses are known.
fn can_be(
    chain: &[Element],
    server: IpAddr,
    is_end: impl Fn(IpAddr) -> bool,
    is_one_host: impl Fn(IpAddr, IpAddr) -> bool,
) -> Result<(), Reason> {
    let no = |why: String, hint: &str| Err(Reason::NoSuchChain(Cause::new(why).hint(hint)));
    if chain.len() > MAX_CHAIN {
        let why = format!("a chain has {MAX_CHAIN} hosts at most");
        return no(why, "leave some out");
    }
    let hosts: Vec<IpAddr> = chain.iter().map(Element::host).collect();
    for (at, host) in hosts.iter().enumerate() {
        if host.is_ipv4() != server.is_ipv4() {
            let why = format!("{host} is of the other address family");
            return no(why, "name its other address");
        }
        if is_end(*host) {
            let why = format!("{host} is an end of it");
            return no(why, "name the hosts between the two ends");
        }
        let before = &hosts[..at];
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

/// Returns true if the session can get another chain now.
pub(super) fn live(s: &Session) -> bool {
    let fit = match s.view() {
        View::Tracked | View::Relayed(_) => true,
        View::NewPath(route) | View::Changing(Change::Switching(route)) => {
            route.is_open() || route.bypassed
        }
        _ => false,
    };
    fit && !s.has_ended() && !s.detours_before_path()
}

/// Returns the reason for which the session cannot get another chain.
fn not_live(s: &Session, own: Subsession) -> Reason {
    let cause = match s.view() {
        View::Free => return Reason::NotTracked(own),
        _ if s.has_ended() => return Reason::Closing,
        View::Closed | View::Left(_) => return Reason::Closing,
        _ if s.detours_before_path() => crate::engine::services::words::in_the_way(),
        View::Adopted => return Reason::NotHeard(own),
        View::Opening => unopened(),
        _ if s.chain_state() == ChainState::Opening => unopened(),
        View::Detoured | View::Held => crate::engine::services::words::in_the_way(),
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
pub(super) fn pairs(
    before: &[Element],
    after: &[Element],
) -> Result<Vec<(HostId, HostId)>, Reason> {
    let not_in = |chain: &[Element], others: &[Element]| -> Vec<HostId> {
        let stays = |host: &HostId| others.iter().any(|other| other.host() == *host);
        let hosts = chain.iter().map(Element::host);
        hosts.filter(|host| !stays(host)).collect()
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

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// The opener has the addresses 1 and 101, the server 2 and 102. Each other host also has an
    /// address that is higher by 100.
    fn judge(hosts: &[IpAddr]) -> String {
        let chain: Vec<_> = hosts.iter().copied().map(Element::Host).collect();
        let host = |at: IpAddr| match at {
            IpAddr::V4(ip) => ip.octets()[3] % 100,
            IpAddr::V6(_) => 0,
        };
        let is_end = |at| matches!(host(at), 1 | 2);
        let done = can_be(&chain, ip(2), is_end, |a, b| host(a) == host(b));
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
