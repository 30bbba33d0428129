//! Knowledge of this host about a session, and about the proxy that relays it.

use std::net::{IpAddr, SocketAddr};

use dysco_common::{FlowKey, Session, View};
use dysco_explain::Cause;
use dysco_firewall::{FiveTuple, conntrack};
use dysco_proto::{ChangeId, Facts, HostEvent, Measurement, Reason, Subsession, plan};
use dysco_proxy::{MeasureError, Measured, Pair, Sending};

use super::measured::{complete, is_shifted, windows_suffice};
use super::neighbours::Known;
use super::{Plane, ProxyChanges};

impl ProxyChanges {
    pub(super) fn measure(&mut self, plane: &mut Plane, change: ChangeId, sub: Subsession) {
        // A host that has measured a pair is no relay.
        let has_pair = self.has_pair(change);
        if let Some(slots) = (!has_pair).then(|| plane.relay_of(&sub)).flatten() {
            let result = self.measure_relay(plane, change, slots);
            return plane.tell_machine(HostEvent::Measured { change, result });
        }
        match plane.measurable(&sub, plane.is_vouched(change)) {
            Ok((pair, a, b)) => {
                let before = self.held.entry(change).or_default().pair.replace(pair);
                if before.is_none() {
                    // The measurement that counts is made once both anchors are locked.
                    let left = pair.a.key.remote().ip();
                    let result = Ok(Measurement {
                        left_answers: plane.neighbours.know(left) == Known::Agent,
                        ..claimed(&pair, a, b)
                    });
                    return plane.tell_machine(HostEvent::Measured { change, result });
                }
                plane.jobs.measure(change, pair);
            }
            Err(Reason::NotHeard(_)) if self.listen(plane, change, sub) => {}
            Err(reason) => plane.tell_machine(HostEvent::Measured {
                change,
                result: Err(reason),
            }),
        }
    }

    /// Handles the kernel's answer to the claims about a pair: confirmed or not. The wire's state
    /// is read now: it is compared with clocks that were read before.
    pub(super) fn measured(
        &self,
        plane: &mut Plane,
        change: ChangeId,
        pair: &Pair,
        measured: Result<Measured, MeasureError>,
    ) {
        let reported = measured.map_err(|e| Reason::NotTransparent(e.cause()));
        let result = reported.and_then(|m| {
            let a = plane.facts_of(&pair.a.key, &accepted(&pair.a.key))?;
            let b = plane.facts_of(&pair.b.key, &opened(&pair.b.key))?;
            let claimed = claimed(pair, a, b);
            // The stack is the old path there, behind the device that shifts timestamps: not all
            // data drains.
            let local = self.is_pair(change);
            if local && is_shifted(&claimed, &m) {
                return Err(Reason::NotTransparent(shifted()));
            }
            if local {
                self.note_edges(plane, change, &claimed, &m);
            }
            complete(claimed, &m)
        });
        plane.tell_machine(HostEvent::Measured { change, result });
    }
}

impl Plane {
    /// Returns the pair of a proxy here that has the session on either side.
    pub(super) fn pair_of_session(&self, sub: &Subsession) -> Option<Pair> {
        let of_a = FlowKey::new(sub.right, sub.left);
        let of_b = FlowKey::new(sub.left, sub.right);
        let found = self.proxy.find(&of_a);
        found.or_else(|| self.proxy.of(&of_b).filter(|p| p.b.key == of_b))
    }

    /// Returns the pair that relays the session, if nothing objects to the proxy's leaving.
    pub(super) fn measurable(
        &self,
        sub: &Subsession,
        word: bool,
    ) -> Result<(Pair, Facts, Facts), Reason> {
        let pair = self.pair_of_session(sub).ok_or_else(|| {
            let cause = Cause::new("no shim has reported that a proxy relays it");
            Reason::NotTransparent(cause.hint(
                "for a proxy without the shim, name its process (--pid) or listener (--listen) of 'remove-middlebox', or use 'drain' with --transparent if it only passes bytes on",
            ))
        })?;
        match self.judge(&pair, word, |key, sub| self.facts_of(key, sub)) {
            Ok([a, b]) => Ok((pair, a, b)),
            Err(reasons) => Err(reasons.into_iter().next().unwrap_or(Reason::Closing)),
        }
    }

    /// Returns all reasons that keep a proxy in a session, the decisive one first.
    pub(super) fn objections(&self, sub: &Subsession, word: bool) -> Vec<Reason> {
        let Some(pair) = self.pair_of_session(sub) else {
            return self.measurable(sub, word).err().into_iter().collect();
        };
        let judged = self.judge(&pair, word, |key, sub| self.facts_of(key, sub));
        judged.err().unwrap_or_default()
    }

    /// Returns a reason if the window of one end is too small for the other, by the present state
    /// of a pair's sockets.
    pub(super) fn window_objection(&self, pair: &Pair, sending: &[Sending; 2]) -> Option<Reason> {
        let a = self.facts_of(&pair.a.key, &accepted(&pair.a.key)).ok()?;
        let b = self.facts_of(&pair.b.key, &opened(&pair.b.key)).ok()?;
        windows_suffice(&claimed(pair, a, b), sending).err()
    }

    /// Returns the objections for a listing: from data at hand, and without the operator's word.
    pub(super) fn seeming_objections(&self, pair: &Pair) -> Vec<Reason> {
        let known = |key: &FlowKey, sub: &Subsession| match self.agent.find(key) {
            Some(slot) => facts(&self.confirmed(slot), sub),
            None => Err(Reason::NotTracked(*sub)),
        };
        let judged = self.judge(pair, false, known);
        judged.err().unwrap_or_default()
    }

    /// Returns the facts of both sessions of a pair, or all objections: permanent reasons first,
    /// and those that a packet would remove last.
    fn judge(
        &self,
        pair: &Pair,
        word: bool,
        facts_of: impl Fn(&FlowKey, &Subsession) -> Result<Facts, Reason>,
    ) -> Result<[Facts; 2], Vec<Reason>> {
        let a = facts_of(&pair.a.key, &accepted(&pair.a.key));
        let b = facts_of(&pair.b.key, &opened(&pair.b.key));
        let over = |facts: &Result<Facts, Reason>| facts == &Err(Reason::Closing);
        if over(&a) || over(&b) {
            return Err(vec![Reason::Closing]);
        }
        let ours = |ip: &IpAddr| self.is_on_host(ip);
        let mut all: Vec<Reason> = not_between(pair, ours).into_iter().collect();
        // Nothing tracks packets that pass no interface.
        let unseen = matches!(all[..], [Reason::EndAtMiddlebox(_)]);
        let mut unheard = Vec::new();
        let mut known = None;
        match (a, b) {
            (Ok(a), Ok(b)) => {
                all.extend(plan::objections(&claimed(pair, a, b)));
                known = Some([a, b]);
            }
            (a, b) => {
                let missing = [a.err(), b.err()].into_iter().flatten();
                let (silent, other): (Vec<_>, Vec<_>) =
                    missing.partition(|r| matches!(r, Reason::NotHeard(_)));
                let untracked = |r: &Reason| unseen && matches!(r, Reason::NotTracked(_));
                all.extend(other.into_iter().filter(|r| !untracked(r)));
                unheard = silent;
            }
        }
        all.extend(self.is_vouched_for(pair, word).err());
        let received = self.proxy.received(pair).err();
        all.extend(received.map(|e| Reason::NotTransparent(e.cause())));
        all.extend(unheard);
        match known {
            Some(known) if all.is_empty() => Ok(known),
            _ => Err(all),
        }
    }

    /// Returns an error unless all statements about the proxy say that it only passes on data.
    fn is_vouched_for(&self, pair: &Pair, word: bool) -> Result<(), Reason> {
        let listener = pair.a.key.local();
        let said = self.config.listener(listener);
        if said.is_some_and(|l| l.transparent == Some(false)) {
            let why =
                format!("the configuration says `transparent = false` of the listener {listener}");
            return Err(Reason::NotTransparent(why.into()));
        }
        self.proxy
            .transparent(pair, word)
            .map_err(|e| Reason::NotTransparent(e.cause()))?;
        if !pair.b.opened_here {
            return Err(Reason::NotTransparent(
                "the proxy did not open its second session".into(),
            ));
        }
        Ok(())
    }

    fn facts_of(&self, key: &FlowKey, sub: &Subsession) -> Result<Facts, Reason> {
        match self.agent.find(key) {
            Some(slot) => facts(&self.confirmed(slot), sub),
            None => Err(self.translated(sub).unwrap_or(Reason::NotTracked(*sub))),
        }
    }

    /// Returns a reason if a session is not seen here because this host itself translates it.
    pub(super) fn translated(&self, sub: &Subsession) -> Option<Reason> {
        let here = |end: &SocketAddr| self.config.host.addresses.contains(&end.ip());
        let (source, destination) = match here(&sub.left) {
            true => (sub.left, sub.right),
            false => (sub.right, sub.left),
        };
        let socket = FiveTuple {
            source,
            destination,
        };
        // Without connection tracking there is no NAT.
        let outside = conntrack::translated(&socket).ok().flatten();
        outside.map(|_| Reason::Translated(*sub))
    }
}

fn shifted() -> Cause {
    let why = "something on this host, such as SYNPROXY, shifts timestamps between the proxy's socket and the wire";
    Cause::new(why)
        .hint("take it out, or run dyscod on the hosts on both sides and use --mode bypass")
}

/// Returns the reason for which a proxy is not between two other hosts, each with its own
/// addresses. `ours` returns true for addresses of this host.
fn not_between(pair: &Pair, ours: impl Fn(&IpAddr) -> bool) -> Option<Reason> {
    let (client, server) = (pair.a.key.remote().ip(), pair.b.key.remote().ip());
    let borrows = |own: IpAddr, of: IpAddr| own == of && !ours(&own);
    if borrows(pair.b.key.local().ip(), client) {
        return Some(Reason::BorrowedAddress(client));
    }
    if borrows(pair.a.key.local().ip(), server) {
        return Some(Reason::BorrowedAddress(server));
    }
    [client, server]
        .into_iter()
        .find(ours)
        .map(Reason::EndAtMiddlebox)
}

/// Returns a pair's measurement as the shim claims it: enough to refuse early, and to begin.
fn claimed(pair: &Pair, a: Facts, b: Facts) -> Measurement {
    Measurement {
        delta_forward: pair.forward.delta,
        delta_reverse: pair.reverse.delta,
        a,
        b,
        clock_a: 0,
        clock_b: 0,
        subsession_a: accepted(&pair.a.key),
        subsession_b: opened(&pair.b.key),
        relay: None,
        left_answers: false,
    }
}

/// Returns the subsession of a socket that this host accepted.
pub(super) fn accepted(key: &FlowKey) -> Subsession {
    Subsession {
        left: key.remote(),
        right: key.local(),
    }
}

/// Returns the subsession of a socket that this host opened.
pub(super) fn opened(key: &FlowKey) -> Subsession {
    Subsession {
        left: key.local(),
        right: key.remote(),
    }
}

/// Returns the facts of a session, if it can be changed.
pub(super) fn facts(s: &Session, sub: &Subsession) -> Result<Facts, Reason> {
    match s.view() {
        View::Tracked => known(s),
        View::Adopted => Err(Reason::NotHeard(*sub)),
        View::Opening => Err(Reason::NotSeen),
        View::Changing(_) | View::NewPath(_) | View::Relayed(_) | View::Returned => {
            Err(known(s).err().unwrap_or_else(changed))
        }
        View::Detoured | View::Held => Err(Reason::Failed(super::services::words::in_the_way())),
        View::Left(_) | View::Closed => Err(Reason::Closing),
        View::Free => Err(Reason::NotTracked(*sub)),
    }
}

/// Returns the reason for which a session that was measured can no longer change.
pub(super) fn no_longer(view: View) -> Reason {
    match view {
        // Services came in meanwhile.
        View::Detoured | View::Held => Reason::Failed(super::services::words::in_the_way()),
        _ => Reason::Closing,
    }
}

fn changed() -> Reason {
    let why = "the session was given a chain, or a proxy leaves it or has left it: a proxy can leave only a session whose path has not changed since it was opened";
    Reason::Failed(Cause::new(why).hint("keep the middlebox, or wait for a new connection"))
}

/// Returns the facts of a session that has not ended.
pub(super) fn known(s: &Session) -> Result<Facts, Reason> {
    if s.life.reset != 0 || (s.life.fin_in != 0 && s.life.fin_out != 0) {
        return Err(Reason::Closing);
    }
    Ok(Facts {
        local: s.local,
        remote: s.remote,
        tsval_out: s.tsval_out,
        tsval_in: s.tsval_in,
        fin_out: s.life.fin_out != 0,
        fin_in: s.life.fin_in != 0,
        reset: false,
        ..Facts::default()
    })
}

#[cfg(test)]
mod tests {
    use dysco_proxy::{Direction, End, PairId, Witness};

    use super::*;

    const OURS: [u8; 4] = [10, 0, 2, 1];

    fn pair(client: [u8; 4], listen: [u8; 4], from: [u8; 4], server: [u8; 4]) -> Pair {
        let end = |local: [u8; 4], remote: [u8; 4], opened_here| End {
            key: FlowKey::new((local, 1).into(), (remote, 2).into()),
            cookie: 1,
            opened_here,
        };
        let way = Direction {
            endless: true,
            declared: false,
            delta: 0,
            pipe: None,
        };
        Pair {
            id: PairId {
                pid: 1,
                fd_a: 1,
                fd_b: 2,
            },
            a: end(listen, client, false),
            b: end(from, server, true),
            forward: way,
            reverse: way,
            witness: Witness::Shim,
        }
    }

    #[test]
    fn a_proxy_with_the_address_of_another_host_is_between_none() {
        let (client, server) = ([10, 0, 1, 1], [10, 0, 3, 1]);
        let reported = |pair: &Pair| not_between(pair, |ip| *ip == IpAddr::from(OURS));
        assert_eq!(reported(&pair(client, OURS, OURS, server)), None);
        // `usesrc clientip`, and a listener on the server's address.
        for borrows in [
            pair(client, OURS, client, server),
            pair(client, server, client, server),
        ] {
            assert_eq!(
                reported(&borrows),
                Some(Reason::BorrowedAddress(client.into()))
            );
        }
        let listens = pair(client, server, OURS, server);
        assert_eq!(
            reported(&listens),
            Some(Reason::BorrowedAddress(server.into()))
        );
        // Such packets pass no interface.
        for (client, server) in [(OURS, server), (client, OURS)] {
            let here = Some(Reason::EndAtMiddlebox(OURS.into()));
            assert_eq!(reported(&pair(client, OURS, OURS, server)), here);
        }
    }

    #[test]
    fn services_that_came_in_meanwhile_are_named() {
        let services = || Reason::Failed(super::super::services::words::in_the_way());
        for view in [View::Detoured, View::Held] {
            assert_eq!(no_longer(view), services());
        }
        assert_eq!(no_longer(View::Closed), Reason::Closing);
    }
}
