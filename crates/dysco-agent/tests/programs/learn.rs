//! Facts that SYNs teach.

use dysco_common::rule::Rule;
use dysco_common::session::{Offer, offer};
use dysco_common::tcp::{ACK, CWR, ECE, SYN};
use dysco_common::{Addr, Counter, EventKind, Session, State, Translation};

use crate::bench::{Programs, SLOT, Way};
use crate::frame::{Frame, Net, nets};

/// MSS 1460, SACK permitted, timestamps, NOP, window scale 7: as Linux sends them.
const LINUX: [u8; 20] = [
    2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7,
];

fn syn(net: &Net, options: &[u8]) -> Frame {
    Frame {
        seq: 0xffff_ffff,
        flags: SYN,
        options: options.to_vec(),
        ..net.sent()
    }
}

fn syn_ack(net: &Net, options: &[u8]) -> Frame {
    Frame {
        seq: 5000,
        ack: 0,
        flags: SYN | ACK,
        options: options.to_vec(),
        ..net.received()
    }
}

/// Returns the same packet as the other host sees it.
fn mirrored(f: &Frame) -> (Way, Frame) {
    (Way::In, f.clone())
}

/// Returns programs with room for `n` sessions from slot 5 on.
fn room(n: u32) -> Programs {
    let mut p = Programs::load();
    p.free(5..5 + n);
    p
}

fn learnt(p: &Programs, net: &Net) -> Option<Session> {
    p.find(&net.key()).map(|f| p.session(f.slot))
}

#[test]
fn both_ends_learn_the_same() {
    for net in nets() {
        let (open, answer) = (syn(&net, &LINUX), syn_ack(&net, &[2, 4, 1, 0, 4, 2, 1, 1]));
        let mut here = room(2);
        here.passes(Way::Out, &open);
        let s = learnt(&here, &net).unwrap();
        assert_eq!(s.state, State::Opening as u32);
        assert!(s.created_ns > 0);
        here.passes(Way::In, &answer);
        let s = learnt(&here, &net).unwrap();
        assert_eq!(
            (s.state, s.life.opened_here, s.key),
            (State::Tracked as u32, 1, net.key())
        );
        assert_eq!((s.snd_max, s.rcv_max, s.rcv_ack), (0, 5001, 0));
        let flags = offer::SEEN | offer::SACK;
        let local = Offer {
            isn: 0xffff_ffff,
            mss: 1460,
            wscale: 7,
            flags: flags | offer::TIMESTAMPS | offer::WSCALE,
        };
        let remote = Offer {
            isn: 5000,
            mss: 256,
            wscale: 0,
            flags,
        };
        assert_eq!((s.local, s.remote), (local, remote));
        assert_eq!(here.events(), [(EventKind::Opened, 5)]);
        assert_eq!(here.count(Counter::Tracked), 1);

        let there_net = Net {
            local: net.remote,
            remote: net.local,
            ..net
        };
        let mut there = room(1);
        let (way, f) = mirrored(&open);
        there.passes(way, &f);
        there.passes(Way::Out, &answer);
        let s = learnt(&there, &there_net).unwrap();
        assert_eq!((s.local, s.remote, s.life.opened_here), (remote, local, 0));
        assert_eq!((s.snd_max, s.rcv_max, s.snd_ack), (5001, 0, 0));
        assert_eq!(s.state, State::Tracked as u32);
    }
}

#[test]
fn who_does_not_listen_hears_of_no_opening() {
    for net in nets() {
        let mut p = room(1);
        p.watch_openings(false);
        p.passes(Way::Out, &syn(&net, &LINUX));
        p.passes(Way::In, &syn_ack(&net, &LINUX));
        assert_eq!(learnt(&p, &net).unwrap().state, State::Tracked as u32);
        assert_eq!(p.events(), []);
    }
}

#[test]
fn defaults_hold_where_options_are_absent() {
    let [v4, v6] = nets();
    for (net, mss) in [(v4, 536), (v6, 1220)] {
        let mut p = room(1);
        p.passes(Way::Out, &syn(&net, &[]));
        let local = learnt(&p, &net).unwrap().local;
        assert_eq!(
            local,
            Offer {
                isn: 0xffff_ffff,
                mss,
                wscale: 0,
                flags: offer::SEEN
            }
        );
    }
}

/// Packets of an adopted session pass, raise its numbers, and are reported once both ends have
/// sent one. User space decides whether the session may be changed.
#[test]
fn an_adopted_session_is_heard() {
    for net in nets() {
        for first in [Way::Out, Way::In] {
            let mut p = Programs::with(&net, State::Adopted, Translation::default());
            let (sent, received) = (
                Frame {
                    payload: vec![1; 10],
                    ..net.sent()
                },
                Frame {
                    payload: vec![2; 20],
                    ..net.received()
                },
            );
            p.change(|s| {
                (s.snd_max, s.snd_seen) = (sent.seq, sent.seq);
                (s.rcv_max, s.snd_ack) = (received.seq, received.seq.wrapping_sub(1));
                s.rcv_ack = received.ack.wrapping_sub(1);
            });
            let (second, frames) = match first {
                Way::Out => (Way::In, [&sent, &received]),
                _ => (Way::Out, [&received, &sent]),
            };
            p.passes(first, frames[0]);
            p.passes(first, frames[0]);
            let heard = |s: &Session| (s.life.seen_out, s.life.seen_in);
            let once = match first {
                Way::Out => (1, 0),
                _ => (0, 1),
            };
            assert_eq!(heard(&p.session(SLOT)), once);
            assert_eq!(p.events(), []);
            p.passes(second, frames[1]);
            let s = p.session(SLOT);
            assert_eq!((heard(&s), s.state), ((1, 1), State::Adopted as u32));
            assert_eq!(s.snd_max, sent.seq.wrapping_add(10));
            assert_eq!(s.rcv_max, received.seq.wrapping_add(20));
            assert_eq!(p.events(), [(EventKind::Heard, SLOT)]);
            p.passes(second, frames[1]);
            assert_eq!(p.events(), []);
        }
    }
}

/// A component between the socket and the wire translates the numbers: the entry has the
/// socket's numbers, and the wire has others.
#[test]
fn an_adopted_session_with_other_numbers_on_the_wire_is_not_heard() {
    const APART: u32 = 1 << 23;
    for net in nets() {
        for (seq, ack) in [(APART, 0), (0, APART), (APART.wrapping_neg(), 0)] {
            let mut p = Programs::with(&net, State::Adopted, Translation::default());
            let (sent, received) = (net.sent(), net.received());
            p.change(|s| {
                s.snd_max = sent.seq.wrapping_add(seq);
                s.rcv_max = sent.ack.wrapping_add(ack);
            });
            let before = p.session(SLOT);
            p.passes(Way::Out, &sent);
            p.passes(Way::In, &received);
            let s = p.session(SLOT);
            assert_eq!((s.life.seen_out, s.life.seen_in), (0, 0));
            assert_eq!((s.snd_max, s.rcv_max), (before.snd_max, before.rcv_max));
            assert_eq!(p.events(), []);
        }
    }
}

#[test]
fn what_no_translation_knows_is_noted() {
    let md5 = [[19, 18].as_slice(), &[0; 16], &[1, 1]].concat();
    let authenticated = [29, 4, 0, 1];
    let multipath = [30, 4, 0, 1];
    let is_foreign = |s: &Session| offer::are_foreign(s.local.flags, s.remote.flags);
    for net in nets() {
        for options in [&md5[..], &authenticated] {
            let mut p = room(1);
            p.passes(Way::Out, &syn(&net, options));
            assert!(is_foreign(&learnt(&p, &net).unwrap()), "{options:?}");
        }
        // An end that gets an answer without the option continues in plain TCP.
        for (answer, both) in [(&LINUX[..], false), (&multipath, true)] {
            let mut p = room(1);
            p.passes(Way::Out, &syn(&net, &multipath));
            p.passes(Way::In, &syn_ack(&net, answer));
            assert_eq!(is_foreign(&learnt(&p, &net).unwrap()), both, "{answer:?}");
        }
        let mut p = room(1);
        p.passes(
            Way::Out,
            &Frame {
                flags: SYN | ECE | CWR,
                ..syn(&net, &LINUX)
            },
        );
        assert!(learnt(&p, &net).unwrap().local.flags & offer::ECN != 0);
    }
}

#[test]
fn options_that_do_not_parse_leave_the_offer_unseen() {
    for net in nets() {
        let mut p = room(1);
        p.passes(Way::Out, &syn(&net, &[2, 4, 5, 180, 8, 1, 0, 0]));
        assert_eq!(learnt(&p, &net).unwrap().local.flags, 0);
        p.passes(Way::In, &syn_ack(&net, &LINUX));
        assert_eq!(learnt(&p, &net).unwrap().local.flags, 0);
        let mut p = room(1);
        p.passes(Way::Out, &syn(&net, &LINUX));
        p.passes(Way::In, &syn_ack(&net, &[8, 1, 0, 0]));
        let s = learnt(&p, &net).unwrap();
        assert_eq!((s.local.flags, s.remote.flags), (0, 0));
    }
}

#[test]
fn a_retransmitted_syn_takes_no_second_slot() {
    for net in nets() {
        let mut p = room(2);
        for _ in 0..3 {
            p.passes(Way::Out, &syn(&net, &LINUX));
        }
        assert_eq!(
            (p.count(Counter::Tracked), p.count(Counter::NoRoom)),
            (1, 0)
        );
        p.passes(Way::In, &syn_ack(&net, &LINUX));
        p.passes(Way::In, &syn_ack(&net, &LINUX));
        assert_eq!(
            p.events(),
            [(EventKind::Opened, 5)],
            "the second answer is no news"
        );
    }
}

/// The answer was lost after this host had seen it, and the SYN is retransmitted.
#[test]
fn a_syn_whose_answer_was_lost_keeps_its_session() {
    for net in nets() {
        let here = (Way::Out, syn(&net, &LINUX), Way::In, syn_ack(&net, &LINUX));
        let there = (
            Way::In,
            Frame {
                flags: SYN,
                ..syn_ack(&net, &LINUX)
            },
            Way::Out,
            Frame {
                flags: SYN | ACK,
                ack: 5001,
                ..syn(&net, &LINUX)
            },
        );
        for (to, opens, back, answers) in [here, there] {
            let mut p = room(2);
            for _ in 0..2 {
                p.passes(to, &opens);
                p.passes(back, &answers);
            }
            assert_eq!(p.count(Counter::Tracked), 1);
            assert_eq!(p.find(&net.key()).unwrap().slot, 5);
            assert_eq!(p.session(5).state, State::Tracked as u32);
            assert_eq!(p.events(), [(EventKind::Opened, 5)]);
        }
    }
}

/// The port is used again after the earlier session has ended.
#[test]
fn a_new_syn_on_a_known_key_takes_a_new_slot() {
    for net in nets() {
        let mut p = room(2);
        p.passes(Way::Out, &syn(&net, &LINUX));
        p.passes(Way::In, &syn_ack(&net, &LINUX));
        assert_eq!(p.find(&net.key()).unwrap().slot, 5);
        p.passes(
            Way::Out,
            &Frame {
                seq: 1,
                ..syn(&net, &LINUX)
            },
        );
        assert_eq!(p.find(&net.key()).unwrap().slot, 6);
        assert_eq!(
            p.session(5).state,
            State::Tracked as u32,
            "until it is collected"
        );
        assert_eq!(learnt(&p, &net).unwrap().local.isn, 1);
        // The hint still leads to the ended session's slot.
        let ended = p.session(5).snd_max;
        let later = Frame {
            seq: 1_000_000,
            ..net.sent()
        };
        p.passes(Way::Out, &later);
        assert_eq!(p.session(5).snd_max, ended);
        assert!(p.session(6).snd_max >= 1_000_000);
    }
}

/// A sender that knows a session's five-tuple cannot take its entry.
#[test]
fn a_syn_for_a_session_that_lives_changes_nothing() {
    for net in nets() {
        let mut p = room(2);
        p.passes(Way::Out, &syn(&net, &LINUX));
        p.passes(Way::In, &syn_ack(&net, &LINUX));
        p.events();
        let forged = Frame {
            seq: 777,
            flags: SYN,
            ..syn_ack(&net, &[])
        };
        p.passes(Way::In, &forged);
        assert_eq!(p.find(&net.key()).unwrap().slot, 5);
        assert_eq!(p.session(5).state, State::Tracked as u32);
        assert_eq!(p.session(5).remote.isn, 5000);
        // The session's end answers with its own numbers.
        p.passes(Way::Out, &net.sent());
        assert_eq!((p.events(), p.count(Counter::Tracked)), (vec![], 1));
        // If the end had lost the session, it would answer like this.
        let answer = Frame {
            seq: 9000,
            ack: 778,
            flags: SYN | ACK,
            ..syn(&net, &LINUX)
        };
        for _ in 0..2 {
            p.passes(Way::Out, &answer);
        }
        let s = learnt(&p, &net).unwrap();
        assert_eq!(p.find(&net.key()).unwrap().slot, 6);
        assert_eq!((s.state, s.life.opened_here), (State::Tracked as u32, 0));
        assert_eq!((s.snd_max, s.rcv_max, s.local.isn), (9001, 778, 9000));
        assert_eq!((s.local.flags, s.remote.flags), (0, 0));
        assert_eq!(p.events(), [(EventKind::Opened, 6)]);
    }
}

#[test]
fn an_answer_without_a_syn_teaches_nothing() {
    for net in nets() {
        let mut p = room(1);
        p.passes(Way::In, &syn_ack(&net, &LINUX));
        p.passes(Way::Out, &net.sent());
        assert_eq!(p.find(&net.key()), None);
    }
}

#[test]
fn a_full_table_is_counted_and_reported() {
    let [v4, v6] = nets();
    let mut p = room(1);
    p.passes(Way::Out, &syn(&v4, &LINUX));
    p.passes(Way::Out, &syn(&v6, &LINUX));
    assert_eq!(p.find(&v6.key()), None);
    assert_eq!(p.count(Counter::NoRoom), 1);
    assert_eq!(p.events(), [(EventKind::NoRoom, u32::MAX)]);
    // A packet that is not tracked passes as before.
    p.passes(Way::In, &syn_ack(&v6, &LINUX));
    p.passes(Way::Out, &v6.sent());
}

/// Returns the rule of a whole address and a range of ports.
fn rule(net: &Net, first_port: u16, last_port: u16) -> Rule {
    Rule {
        prefix: net.key().remote,
        mask: Addr::new([0xff; 16]),
        first_port,
        last_port,
    }
}

#[test]
fn rules_are_held_against_the_end_that_is_opened_to() {
    for net in nets() {
        let nowhere = Rule {
            prefix: Addr::new([9; 16]),
            ..rule(&net, 0, 65535)
        };
        let mut fifteen = vec![nowhere; 15];
        for (rules, tracked) in [
            (vec![], true),
            (vec![rule(&net, 8080, 8080)], true),
            (vec![rule(&net, 1, 8079)], false),
            (vec![rule(&net, 8081, 65535)], false),
            (vec![nowhere], false),
            (fifteen.clone(), false),
            (
                {
                    fifteen.push(rule(&net, 8000, 9000));
                    fifteen
                },
                true,
            ),
        ] {
            let mut p = room(1);
            p.rules(&rules);
            p.passes(Way::Out, &syn(&net, &LINUX));
            assert_eq!(p.find(&net.key()).is_some(), tracked, "{rules:?}");

            let there = Net {
                local: net.remote,
                remote: net.local,
                ..net
            };
            let mut p = room(1);
            p.rules(&rules);
            p.passes(Way::In, &syn(&net, &LINUX));
            assert_eq!(p.find(&there.key()).is_some(), tracked, "{rules:?}");
        }
    }
}
