//! A session that a rule gives services before its first byte.

use dysco_common::policy::{Otherwise, PolicyRule, rule_name, serves, unheld};
use dysco_common::tcp::{ACK, FIN, PSH, RST};
use dysco_common::{Counter, EventKind, State};

use super::{FIRST, Hosts, ISN, all};
use crate::bench::{PASS, Programs, Way};
use crate::frame::{Frame, Options, options};

/// A host with a rule that gives all sessions services.
fn server_of(h: &Hosts) -> Programs {
    let mut p = Programs::load();
    p.free(FIRST..FIRST + 4);
    let rule = PolicyRule {
        serves: 1,
        ..h.rule(&[], Otherwise::Refuse)
    };
    p.policy(256, &[rule]);
    p
}

fn without_window(frame: &Frame) -> Frame {
    Frame {
        window: 0,
        ..frame.clone()
    }
}

/// Returns a packet of the client after the handshake.
fn sent(h: &Hosts, flags: u8, data: &[u8]) -> Frame {
    Frame {
        seq: ISN.wrapping_add(1),
        ack: 5001,
        flags,
        payload: data.to_vec(),
        ..h.net.sent()
    }
}

#[test]
fn no_end_is_offered_a_window_until_its_services_are_in() {
    for h in all() {
        let mut p = server_of(&h);
        p.passes(Way::Out, &h.syn(b""));
        p.becomes(Way::In, &h.syn_ack(), PASS, &without_window(&h.syn_ack()));
        let s = p.session(FIRST);
        assert_eq!((s.state, s.laid_by), (State::Held as u32, 7 << 8));
        assert_eq!(p.events(), [(EventKind::Opened, FIRST)]);
        // The answer is repeated, and the end's acknowledgement completes the handshake.
        p.becomes(Way::In, &h.syn_ack(), PASS, &without_window(&h.syn_ack()));
        let ack = Frame {
            options: options(Options::Timestamps, 70, 90, 0),
            ..sent(&h, ACK, b"")
        };
        p.becomes(Way::Out, &ack, PASS, &without_window(&ack));
        assert_eq!(p.session(FIRST).snd_ack, 5001);
        assert_eq!(p.events(), [(EventKind::Unserved, FIRST)]);
        // Its echo is the clock of the answer.
        let s = p.session(FIRST);
        assert_eq!((s.tsval_out, s.tsval_in), (70, 90));
        let answer = Frame {
            seq: 5001,
            ack: ISN.wrapping_add(1),
            flags: ACK,
            ..h.net.received()
        };
        p.becomes(Way::In, &answer, PASS, &without_window(&answer));
    }
}

#[test]
fn no_data_passes_before_them() {
    for h in all() {
        let mut p = server_of(&h);
        // The stack repeats it without data.
        p.drops(Way::Out, &h.syn(b"fast open"), Counter::DroppedHeld);
        p.passes(Way::Out, &h.syn(b""));
        p.becomes(Way::In, &h.syn_ack(), PASS, &without_window(&h.syn_ack()));
        let before = p.session(FIRST);
        for (flags, data) in [(ACK | PSH, &b"early"[..]), (ACK | FIN, b"")] {
            let early = sent(&h, flags, data);
            p.drops(Way::Out, &early, Counter::DroppedHeld);
            let back = Frame {
                src: early.dst,
                dst: early.src,
                seq: 5001,
                ack: ISN.wrapping_add(1),
                ..early
            };
            p.drops(Way::In, &back, Counter::DroppedHeld);
        }
        let after = p.session(FIRST);
        assert_eq!(
            (
                after.snd_max,
                after.rcv_max,
                after.life.fin_in,
                after.life.fin_out
            ),
            (before.snd_max, before.rcv_max, 0, 0)
        );
        // An end that gives up is heard.
        p.passes(Way::Out, &sent(&h, RST | ACK, b""));
        assert_ne!(p.session(FIRST).life.reset, 0);
    }
}

#[test]
fn a_session_does_not_wait_for_services_of_the_packet_plane() {
    for h in all() {
        let mut p = Programs::load();
        p.free(FIRST..FIRST + 4);
        let rule = PolicyRule {
            serves: serves::UNHELD,
            ..h.rule(&[], Otherwise::Refuse)
        };
        p.policy(256, &[rule]);
        p.passes(Way::Out, &h.syn(b""));
        p.passes(Way::In, &h.syn_ack());
        let s = p.session(FIRST);
        assert_eq!(
            (s.state, s.laid_by),
            (State::Tracked as u32, unheld(rule_name(7, 0)))
        );
        assert_eq!(
            p.events(),
            [(EventKind::Unserved, FIRST), (EventKind::Opened, FIRST)]
        );
        p.passes(Way::Out, &sent(&h, PSH | ACK, b"hello"));
    }
}
