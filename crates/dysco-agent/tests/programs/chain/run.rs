//! Sessions of programs that run with services, and of rules, where the services must not be missed.

use dysco_common::policy::{Contested, Otherwise, PolicyRule, rule_name, run_name, serves, unheld};
use dysco_common::rule::Rule;
use dysco_common::session::State;
use dysco_common::{Addr, Counter, EventKind, FlowKey};

use super::{FIRST, Hosts, ISN, SECOND, all};
use crate::bench::{PASS, Programs, Way};
use crate::frame::Frame;

/// Run of the program that runs the test.
const RUN: u32 = 3;

/// A host whose programs run with services.
fn host_of(name: u32) -> Programs {
    let mut p = Programs::load();
    p.free(FIRST..FIRST + 4);
    p.begin_run(name);
    p
}

/// Tracks sessions to another port alone.
fn tracks_another(p: &mut Programs) {
    p.rules(&[Rule {
        prefix: Addr::default(),
        mask: Addr::default(),
        first_port: 1,
        last_port: 1,
    }]);
}

fn without_window(frame: &Frame) -> Frame {
    Frame {
        window: 0,
        ..frame.clone()
    }
}

/// Returns the SYN of the other end, and this host's answer.
fn accepted(h: &Hosts) -> (Frame, Frame) {
    let turned = |frame: Frame| Frame {
        src: frame.dst,
        dst: frame.src,
        ..frame
    };
    (turned(h.syn(b"")), turned(h.syn_ack()))
}

fn served(p: &Programs, slot: u32) -> (u32, u32) {
    let s = p.session(slot);
    (s.state, s.laid_by)
}

#[test]
fn sessions_that_nobody_asked_to_track_get_their_services() {
    for h in all() {
        for name in [run_name(RUN), unheld(run_name(RUN))] {
            let mut p = host_of(name);
            tracks_another(&mut p);
            p.passes(Way::Out, &h.syn(b""));
            assert_eq!(served(&p, FIRST), (State::Opening as u32, name));
            let (state, answer) = match name == run_name(RUN) {
                true => (State::Held, without_window(&h.syn_ack())),
                false => (State::Tracked, h.syn_ack()),
            };
            p.becomes(Way::In, &h.syn_ack(), PASS, &answer);
            assert_eq!(served(&p, FIRST), (state as u32, name));
        }
        // The same, by a rule.
        let mut p = Programs::load();
        p.free(FIRST..FIRST + 4);
        tracks_another(&mut p);
        let rule = PolicyRule {
            serves: serves::FROM_FIRST_BYTE,
            ..h.rule(&[], Otherwise::Direct)
        };
        p.policy(256, &[rule]);
        p.passes(Way::Out, &h.syn(b""));
        p.becomes(Way::In, &h.syn_ack(), PASS, &without_window(&h.syn_ack()));
        assert_eq!(served(&p, FIRST), (State::Held as u32, rule_name(7, 0)));
    }
}

#[test]
fn a_session_that_finds_no_room_does_not_open_without_its_services() {
    for h in all() {
        let mut p = Programs::load();
        p.begin_run(run_name(RUN));
        p.drops(Way::Out, &h.syn(b""), Counter::DroppedHeld);
        assert_eq!(p.count(Counter::NoRoom), 1);
        assert_eq!(p.events(), [(EventKind::NoRoom, u32::MAX)]);
        // The rule demands nothing that could be left out.
        p.policy(256, &[h.rule(&[], Otherwise::Direct)]);
        p.drops(Way::Out, &h.syn(b""), Counter::DroppedHeld);
        let (syn, syn_ack) = accepted(&h);
        p.passes(Way::In, &syn);
        p.drops(Way::Out, &syn_ack, Counter::DroppedHeld);
        let mut p = Programs::load();
        for serves in [serves::FROM_FIRST_BYTE, serves::UNHELD] {
            for otherwise in [Otherwise::Refuse, Otherwise::Direct] {
                let rule = h.rule(&[], otherwise);
                p.policy(256, &[PolicyRule { serves, ..rule }]);
                match otherwise {
                    Otherwise::Refuse => p.drops(Way::Out, &h.syn(b""), Counter::DroppedHeld),
                    Otherwise::Direct => p.passes(Way::Out, &h.syn(b"")),
                }
            }
        }
    }
}

/// The SYN does not tell that a program with services will answer: the answer to the first one is
/// dropped, and the repeated one is recorded.
#[test]
fn a_session_that_is_accepted_gets_them_by_its_second_syn() {
    for h in all() {
        let mut p = host_of(run_name(RUN));
        tracks_another(&mut p);
        let (syn, syn_ack) = accepted(&h);
        p.passes(Way::In, &syn);
        assert!(p.find(&h.net.key()).is_none());
        p.drops(Way::Out, &syn_ack, Counter::DroppedHeld);
        // The answer may be repeated before the SYN is.
        p.drops(Way::Out, &syn_ack, Counter::DroppedHeld);
        p.passes(Way::In, &syn);
        let s = p.session(FIRST);
        assert_eq!((s.state, s.remote.mss), (State::Opening as u32, 1460));
        p.becomes(Way::Out, &syn_ack, PASS, &without_window(&syn_ack));
        let s = p.session(FIRST);
        assert_eq!(
            (s.state, s.laid_by, s.life.opened_here),
            (State::Held as u32, run_name(RUN), 0)
        );
        assert_eq!(s.remote.isn, ISN);
        p.becomes(Way::Out, &syn_ack, PASS, &without_window(&syn_ack));
    }
}

/// This host's end has lost an earlier session of the same five-tuple without notice.
#[test]
fn a_session_in_the_place_of_another_one_gets_them_by_its_second_syn() {
    for h in all() {
        let mut p = Programs::load();
        p.free(FIRST..FIRST + 4);
        let (syn, syn_ack) = accepted(&h);
        p.passes(Way::In, &syn);
        p.passes(Way::Out, &syn_ack);
        assert_eq!(served(&p, FIRST), (State::Tracked as u32, 0));
        p.begin_run(run_name(RUN));
        let later = |frame: &Frame| Frame {
            seq: frame.seq.wrapping_add(77_000),
            ..frame.clone()
        };
        let (syn, mut syn_ack) = (later(&syn), later(&syn_ack));
        syn_ack.ack = syn.seq.wrapping_add(1);
        p.passes(Way::In, &syn);
        p.drops(Way::Out, &syn_ack, Counter::DroppedHeld);
        p.passes(Way::In, &syn);
        p.becomes(Way::Out, &syn_ack, PASS, &without_window(&syn_ack));
        let key: FlowKey = h.net.key();
        assert_eq!(p.find(&key).map(|flow| flow.slot), Some(SECOND));
        assert_eq!(served(&p, SECOND), (State::Held as u32, run_name(RUN)));
    }
}

/// Neither takes the place of the other: the run is the user's, and the rule the administrator's.
#[test]
fn a_session_of_a_run_that_a_rule_would_take_does_not_open() {
    for h in all() {
        let middlebox = [h.middlebox];
        let host: &[Addr] = &middlebox;
        let mut p = host_of(run_name(RUN));
        p.hop(h.middlebox, &h.hop(h.net.new_local));
        let all = [
            (serves::FROM_FIRST_BYTE, &[][..]),
            (serves::UNHELD, &[]),
            (serves::ONCE_OPEN, host),
            (serves::NEVER, host),
        ];
        for ((serves, hosts), otherwise) in all
            .into_iter()
            .flat_map(|one| [Otherwise::Refuse, Otherwise::Direct].map(|other| (one, other)))
        {
            let rule = h.rule(hosts, otherwise);
            p.policy(256, &[PolicyRule { serves, ..rule }]);
            for name in [run_name(RUN), unheld(run_name(RUN))] {
                p.begin_run(name);
                p.drops(Way::Out, &h.syn(b""), Counter::DroppedHeld);
                let word = Contested::word(name, rule_name(7, 0));
                assert_eq!(p.events(), [(EventKind::Contested, word)]);
                assert!(p.find(&h.net.key()).is_none());
            }
        }
        // A rule that demands nothing.
        p.begin_run(run_name(RUN));
        p.policy(256, &[h.rule(&[], Otherwise::Refuse)]);
        p.passes(Way::Out, &h.syn(b""));
        assert_eq!(served(&p, FIRST), (State::Opening as u32, run_name(RUN)));
    }
}

/// Services of a run are for the first byte, and a chain of another host does not wait for them.
#[test]
fn a_program_that_runs_with_services_accepts_no_session_of_a_chain() {
    for h in all() {
        let mut p = h.middlebox();
        p.begin_run(run_name(RUN));
        let (code, _) = p.run(Way::In, &h.steered(b"", &[]).bytes());
        assert_eq!(code, crate::bench::OK);
        p.events();
        let (_, syn_ack) = accepted(&h);
        let answer = Frame {
            src: h.net.remote,
            dst: h.net.local,
            ..syn_ack
        };
        p.drops(Way::Out, &answer, Counter::DroppedHeld);
        let word = Contested::word(run_name(RUN), 0);
        assert_eq!(p.events(), [(EventKind::Contested, word)]);
    }
}
