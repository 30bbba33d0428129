//! Both ends open a session at once (RFC 9293, 3.5), by rules of both or of one.

use dysco_common::chain::{Chain, PAYLOAD, Payload, WireElement};
use dysco_common::policy::{Otherwise, PolicyRule};
use dysco_common::tcp::{ACK, SYN};
use dysco_common::{Counter, EventKind, FlowKey, Session, State, mark};

use super::*;
use crate::bench::{DROP, OK, Programs, REDIRECT, Way};
use crate::frame::{Frame, mirror, on};

/// An end of the session. If both have a chain, that of the first end stays.
#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    First,
    Second,
}
use End::{First, Second};

impl End {
    fn isn(self) -> u32 {
        match self {
            First => ISN,
            Second => 5000,
        }
    }

    fn other(self) -> End {
        match self {
            First => Second,
            Second => First,
        }
    }
}

impl Hosts {
    /// Returns the session as this end opens it.
    fn from(&self, end: End) -> FlowKey {
        match end {
            First => self.net.key(),
            Second => mirror(self.net.key()),
        }
    }

    fn syn_of(&self, end: End) -> Frame {
        let seq = end.isn();
        let syn = Frame {
            seq,
            ..self.syn(b"")
        };
        on(self.from(end), &syn)
    }

    fn answer_of(&self, end: End) -> Frame {
        Frame {
            ack: end.other().isn().wrapping_add(1),
            flags: SYN | ACK,
            ..self.syn_of(end)
        }
    }

    /// Returns this end's SYN on a subsession.
    fn steered_by(&self, end: End, path: FlowKey) -> Frame {
        let (session, mut payload) = (self.from(end), Payload::default());
        payload.fill(KEY_ID, &session, &session, &path, SENT);
        payload.set_rest(
            &Chain::of(&[self.middlebox]).unwrap(),
            &WireElement::default(),
        );
        payload.mac = payload.proof(KEY);
        let payload = payload.to_bytes().to_vec();
        on(
            path,
            &Frame {
                payload,
                ..self.syn_of(end)
            },
        )
    }

    /// Returns a subsession by which the middlebox receives from this end.
    fn to_middlebox(&self, end: End) -> FlowKey {
        let session = self.from(end);
        let port = if end == First { 61_700 } else { 61_800 };
        FlowKey {
            local_port: u16::to_be(port),
            remote: self.middlebox,
            ..session
        }
    }

    /// Returns a subsession by which this end receives from the middlebox.
    fn behind_middlebox(&self, end: End) -> FlowKey {
        FlowKey {
            local: self.middlebox,
            local_port: 61_900_u16.to_be(),
            ..self.from(end.other())
        }
    }

    /// Returns the host of an end, with a rule or without.
    fn host_of(&self, end: End, has_rule: bool) -> Programs {
        let session = self.from(end);
        let mut p = self.host_at(session.local);
        p.hop(self.middlebox, &self.hop(self.net.new_local));
        let port = u16::from_be(session.remote_port);
        let rule = PolicyRule {
            destination: session.remote,
            first_port: port,
            last_port: port,
            ..self.rule(&[self.middlebox], Otherwise::Refuse)
        };
        if has_rule {
            p.policy(0, &[rule]);
        }
        p
    }

    /// Returns the middlebox's host, which both chains pass.
    fn between(&self) -> Programs {
        let mut p = self.middlebox();
        for end in [self.net.local, self.net.remote] {
            p.hop(end.ip().into(), &self.hop(self.net.new_remote));
        }
        p
    }
}

fn slot_of(p: &Programs, path: FlowKey) -> Option<u32> {
    p.find(&path).map(|flow| flow.slot)
}

/// Returns the entries in use.
fn taken(p: &Programs) -> Vec<Session> {
    let all = (FIRST..FIRST + 4).map(|slot| p.session(slot));
    all.filter(|s| s.state != State::Free as u32).collect()
}

#[test]
fn where_both_ends_have_a_rule_the_chain_of_one_is_taken() {
    for h in all() {
        let mut p = h.host_of(First, true);
        let (own, comes) = (h.syn_of(First), h.behind_middlebox(First));
        assert_eq!(p.run(Way::Out, &own.bytes()).0, REDIRECT);
        for _ in 0..2 {
            p.drops(Way::In, &h.steered_by(Second, comes), Counter::DroppedSyn);
            assert_eq!(p.run(Way::Out, &own.bytes()).0, REDIRECT);
        }
        let answer = h.answer_of(Second);
        let path = mirror(p.session(FIRST).path);
        p.becomes(Way::In, &on(path, &answer), OK, &answer);
        assert_eq!(p.session(FIRST).remote.isn, Second.isn());
        assert_eq!(taken(&p).len(), 1);
        // Once the SYN is answered, it belongs to another session.
        p.drops(Way::In, &h.steered_by(Second, comes), Counter::ChainTaken);
    }
}

#[test]
fn where_both_ends_have_a_rule_the_chain_of_the_other_gives_its_place_back() {
    for h in all() {
        let mut p = h.host_of(Second, true);
        assert_eq!(p.run(Way::Out, &h.syn_of(Second).bytes()).0, REDIRECT);
        let (given_up, comes) = (p.session(FIRST).path, h.behind_middlebox(Second));
        for _ in 0..2 {
            p.becomes(Way::In, &h.steered_by(First, comes), OK, &h.syn_of(First));
        }
        assert_eq!(slot_of(&p, given_up), None);
        let s = p.session(FIRST);
        assert_eq!((s.path, s.key), (mirror(comes), h.from(Second)));
        assert_eq!((s.laid_by, s.life.opened_here), (0, 0));
        // The stack may have retransmitted its own SYN before it received the other.
        let (own, answer) = (h.syn_of(Second), h.answer_of(Second));
        p.becomes(Way::Out, &own, REDIRECT, &on(mirror(comes), &own));
        p.becomes(Way::Out, &answer, REDIRECT, &on(mirror(comes), &answer));
        let s = p.session(FIRST);
        assert_eq!((s.local.isn, s.remote.isn), (Second.isn(), First.isn()));
        assert_eq!(p.events(), [(EventKind::Opened, FIRST)]);
        assert_eq!(taken(&p).len(), 1);
    }
}

/// Step of a SYN at the middlebox.
#[derive(Clone, Copy, Debug)]
enum Step {
    Comes(End),
    Goes(End),
    /// The SYN goes no further.
    Ends(End),
}
use Step::{Comes, Ends, Goes};

/// All orders of the arrivals and the departures.
const ORDERS: [&[Step]; 6] = [
    &[Comes(First), Goes(First)],
    &[Comes(Second), Goes(Second), Comes(First), Goes(First)],
    &[Comes(First), Comes(Second), Goes(First), Ends(Second)],
    &[Comes(First), Comes(Second), Ends(Second), Goes(First)],
    &[Comes(Second), Comes(First), Goes(First), Ends(Second)],
    &[Comes(Second), Comes(First), Ends(Second), Goes(First)],
];

#[test]
fn where_both_chains_pass_a_host_it_keeps_the_same_one() {
    for (h, has_mark) in all().iter().zip([true, false]) {
        for order in ORDERS {
            let mut p = h.between();
            let mut marks = [0; 2];
            for step in order {
                let (Comes(end) | Goes(end) | Ends(end)) = *step;
                let (syn, path) = (h.syn_of(end), h.to_middlebox(end));
                let mark = &mut marks[end as usize];
                if let Comes(_) = step {
                    p.becomes(Way::In, &h.steered_by(end, path), OK, &syn);
                    let slot = slot_of(&p, mirror(path)).unwrap();
                    *mark = mark::of_slot(slot).filter(|_| has_mark).unwrap_or(0);
                    continue;
                }
                let (verdict, out) = p.run_with_mark(Way::Out, &syn.bytes(), *mark);
                let goes = matches!(step, Goes(_));
                let whole = out.len() == syn.bytes().len() + PAYLOAD;
                let want = if goes { REDIRECT } else { DROP };
                // If nothing shows that the SYN came with a payload, it may go unchanged to the
                // source of the answer, which opens nothing.
                let alone = !has_mark && !goes && verdict == REDIRECT && !whole;
                assert!(
                    alone || verdict == want && whole == goes,
                    "{step:?} of {order:?}"
                );
            }
            keeps_the_first(h, &mut p, order);
        }
    }
}

/// Checks that the session is the first end's, with a way to the other, and that nothing else is
/// left.
fn keeps_the_first(h: &Hosts, p: &mut Programs, order: &[Step]) {
    let second = h.to_middlebox(Second);
    for _ in 0..2 {
        p.drops(Way::In, &h.steered_by(Second, second), Counter::DroppedSyn);
    }
    assert_eq!(slot_of(p, mirror(second)), None, "{order:?}");
    assert_eq!(taken(p).len(), 2, "{order:?}");
    let path = h.to_middlebox(First);
    let left = slot_of(p, mirror(path)).unwrap();
    // A retransmission by the sender.
    p.becomes(Way::In, &h.steered_by(First, path), OK, &h.syn_of(First));
    assert_eq!(p.run(Way::Out, &h.syn_of(First).bytes()).0, REDIRECT);
    let right = p.session(left).joined - 1;
    let (l, r) = (p.session(left), p.session(right));
    assert_eq!(r.joined, left + 1);
    assert_eq!((l.key, r.key), (mirror(h.from(First)), h.from(First)));
    assert_eq!((l.life.opened_here, r.life.opened_here), (0, 1));
    assert_eq!(r.path.remote, h.from(First).remote);
    assert_eq!(slot_of(p, r.path), Some(right));

    let answer = h.answer_of(Second);
    p.becomes(Way::In, &on(mirror(r.path), &answer), OK, &answer);
    p.becomes(Way::Out, &answer, REDIRECT, &on(l.path, &answer));
    for slot in [left, right] {
        assert_eq!(p.session(slot).two.chained, 2);
    }
    assert_eq!(taken(p).len(), 2, "{order:?}");
}

/// The other host may know nothing of the session, or track it: the SYN has gone the direct way
/// before.
#[test]
fn where_one_end_has_a_rule_its_chain_is_taken() {
    for h in all() {
        let (own, answer) = (h.syn_of(First), h.answer_of(First));
        let mut p = h.host_of(First, false);
        p.passes(Way::Out, &own);
        assert_eq!(p.session(FIRST).state, State::Opening as u32);
        let path = h.behind_middlebox(First);
        p.becomes(Way::In, &h.steered_by(Second, path), OK, &h.syn_of(Second));
        p.becomes(Way::Out, &answer, REDIRECT, &on(mirror(path), &answer));
        assert_eq!(taken(&p).len(), 1);

        let mut p = h.host_of(Second, true);
        assert_eq!(p.run(Way::Out, &h.syn_of(Second).bytes()).0, REDIRECT);
        p.drops(Way::In, &own, Counter::DroppedSyn);
        let path = mirror(p.session(FIRST).path);
        p.becomes(Way::In, &on(path, &answer), OK, &answer);
        assert_eq!(p.session(FIRST).remote.isn, First.isn());
        assert_eq!(taken(&p).len(), 1);
    }
}

/// The stack that a chain's SYN has reached may have sent its own SYN before. That SYN goes back
/// by the chain, and each host has received both.
#[test]
fn a_syn_that_crosses_on_the_chain_itself_reaches_the_other_end() {
    for h in all() {
        let syn = h.syn_of(Second);
        let mut p = h.between();
        let path = h.to_middlebox(First);
        p.run(Way::In, &h.steered_by(First, path).bytes());
        p.run(Way::Out, &h.syn_of(First).bytes());
        let right = p.session(SECOND).path;
        p.becomes(Way::In, &on(mirror(right), &syn), OK, &syn);
        p.becomes(Way::Out, &syn, REDIRECT, &on(mirror(path), &syn));
        assert_eq!(p.session(FIRST).local.isn, Second.isn());
        assert_eq!(p.session(SECOND).remote.isn, Second.isn());

        let mut p = h.host_of(First, true);
        p.run(Way::Out, &h.syn_of(First).bytes());
        let own = p.session(FIRST).path;
        p.becomes(Way::In, &on(mirror(own), &syn), OK, &syn);
        let answer = h.answer_of(First);
        p.becomes(Way::Out, &answer, REDIRECT, &on(own, &answer));
        let s = p.session(FIRST);
        assert_eq!((s.local.isn, s.remote.isn), (First.isn(), Second.isn()));
        assert_eq!(s.rcv_max, Second.isn() + 1);
        assert_eq!(s.two.chained, 2);
    }
}
