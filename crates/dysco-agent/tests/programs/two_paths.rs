//! Sessions between two paths.

use dysco_common::probe::{PROBE, Probe};
use dysco_common::session::{life, offer};
use dysco_common::tcp::{ACK, FIN, PSH, RST, SYN};
use dysco_common::two_paths::{CLOSES, Fins};
use dysco_common::{Counter, EventKind, Path, Session, State, Translation};

use crate::bench::{DROP, OK, PASS, Programs, REDIRECT, SLOT, Way};
use crate::frame::{Frame, Net, Options, nets, options};

/// Number that the translation adds to sent numbers, and to received ones.
const OUT: u32 = 0x1_0000;
const IN: u32 = 0x200_0000;
const T: Translation = Translation {
    seq_out: OUT,
    seq_in: IN,
    ts_out: 0,
    ts_in: 0,
    wscale_local: 0,
    wscale_local_far: 0,
    wscale_remote_far: 0,
    wscale_remote: 0,
    flags: 0,
};

/// Flags of a session that the middlebox has ended.
const ENDED: u8 = life::SEEN | life::BY_MIDDLEBOX;

const SENT: u32 = 100_000;
const CUT_IN: u32 = 0x300_0000;

/// Returns a session with `SENT` bytes sent and nothing cut yet.
fn before_the_cut(net: &Net) -> Programs {
    let mut p = Programs::with(net, State::TwoPaths, T);
    p.change(|s| {
        (s.snd_max, s.rcv_ack) = (SENT, SENT - 3000);
        (s.rcv_max, s.snd_ack) = (CUT_IN - 1000, CUT_IN - 2000);
    });
    p
}

/// Returns a session with both cutoffs set.
fn cut(net: &Net) -> Programs {
    let mut p = before_the_cut(net);
    p.change(|s| {
        (s.two.cut_set, s.cut_out) = (1, SENT);
        (s.two.cut_in_set, s.cut_in) = (1, CUT_IN);
    });
    p
}

fn sent(net: &Net, seq: u32, ack: u32, len: usize) -> Frame {
    Frame {
        seq,
        ack,
        payload: vec![7; len],
        options: options(Options::Timestamps, 1, 2, 0),
        ..net.sent()
    }
}

/// Returns a segment of the local end as it is on the new path.
fn on_new(net: &Net, f: &Frame) -> Frame {
    Frame {
        src: net.new_local,
        dst: net.new_remote,
        seq: f.seq.wrapping_add(OUT),
        ack: f.ack.wrapping_sub(IN),
        ..f.clone()
    }
}

fn from_far(net: &Net, seq: u32, ack: u32, len: usize) -> Frame {
    Frame {
        seq: seq.wrapping_sub(IN),
        ack: ack.wrapping_add(OUT),
        payload: vec![9; len],
        options: options(Options::Timestamps, 1, 2, 0),
        ..net.new_received()
    }
}

/// Returns a segment of the new path as the local end receives it.
fn delivered(net: &Net, f: &Frame) -> Frame {
    Frame {
        src: net.remote,
        dst: net.local,
        seq: f.seq.wrapping_add(IN),
        ack: f.ack.wrapping_sub(OUT),
        ..f.clone()
    }
}

#[test]
fn before_the_cut_all_passes() {
    for net in nets() {
        let mut p = before_the_cut(&net);
        for len in [0, 1000] {
            p.passes(Way::Out, &sent(&net, SENT, CUT_IN - 1000, len));
        }
        p.passes(
            Way::In,
            &Frame {
                ack: SENT - 2000,
                ..net.received()
            },
        );
        assert_eq!(p.session(SLOT).two.cut_set, 0);
        assert_eq!(p.session(SLOT).snd_max, SENT + 1000);
    }
}

#[test]
fn the_cutoff_is_where_the_next_segment_finds_it() {
    for net in nets() {
        for arm in [
            |s: &mut Session| s.two.cut_armed = 1,
            |s: &mut Session| s.two.new_heard = 1,
        ] {
            let mut p = before_the_cut(&net);
            p.change(arm);
            // A retransmission of old data: not below the cutoff.
            p.passes(Way::Out, &sent(&net, SENT - 500, CUT_IN - 1000, 500));
            let data = sent(&net, SENT, CUT_IN - 1000, 500);
            p.becomes(Way::Out, &data, REDIRECT, &on_new(&net, &data));
            let s = p.session(SLOT);
            assert_eq!((s.two.cut_set, s.cut_out, s.snd_max), (1, SENT, SENT + 500));
        }
    }
}

#[test]
fn data_goes_by_its_first_byte() {
    for net in nets() {
        let mut p = cut(&net);
        let ack = CUT_IN - 1000;
        p.passes(Way::Out, &sent(&net, SENT - 1, ack, 1));
        p.passes(Way::Out, &sent(&net, SENT - 1, ack, 1000));
        let new = sent(&net, SENT, ack, 1);
        p.becomes(Way::Out, &new, REDIRECT, &on_new(&net, &new));
        let fin = Frame {
            flags: ACK | FIN,
            ..sent(&net, SENT + 1, ack, 0)
        };
        p.becomes(Way::Out, &fin, REDIRECT, &on_new(&net, &fin));
        assert_eq!(p.count(Counter::OldPath), 2);
        assert_ne!(p.session(SLOT).life.fin_out, 0);
    }
}

#[test]
fn the_old_path_hears_no_ack_of_what_it_never_sent() {
    for net in nets() {
        let mut p = cut(&net);
        let data = sent(&net, SENT - 100, CUT_IN + 5000, 100);
        let want = Frame {
            ack: CUT_IN - 1000,
            ..data.clone()
        };
        p.becomes(Way::Out, &data, PASS, &want);
    }
}

#[test]
fn drained_is_told_once() {
    for net in nets() {
        let mut p = cut(&net);
        p.run(Way::Out, &sent(&net, SENT, CUT_IN - 1, 1).bytes());
        assert_eq!((p.session(SLOT).two.drained, p.events()), (0, vec![]));
        for _ in 0..2 {
            p.run(Way::Out, &sent(&net, SENT, CUT_IN, 1).bytes());
        }
        let told = p.events();
        assert_eq!(
            (p.session(SLOT).two.drained, told),
            (1, vec![(EventKind::Drained, SLOT)])
        );
    }
}

/// A probe has a number before the probed one: the new path must not see it.
#[test]
fn a_pure_ack_on_the_new_path_has_a_number_of_it() {
    for net in nets() {
        let mut p = cut(&net);
        let probe = sent(&net, SENT - 1, CUT_IN + 10, 0);
        let want = on_new(
            &net,
            &Frame {
                seq: SENT,
                ..probe.clone()
            },
        );
        p.becomes(Way::Out, &probe, REDIRECT, &want);
    }
}

#[test]
fn a_copy_is_the_header_alone() {
    for net in nets() {
        for which in [
            Options::None,
            Options::Timestamps,
            Options::Sack,
            Options::Odd,
        ] {
            for len in [0, 1, 2, 999] {
                let mut p = cut(&net);
                let original = Frame {
                    options: options(which, 1, 2, CUT_IN),
                    ..sent(&net, SENT - 10, CUT_IN + 7, len)
                };
                let header = |seq, ack| Frame {
                    seq,
                    ack,
                    payload: vec![],
                    ..original.clone()
                };
                let (seq, ack) = (SENT - 7, CUT_IN - 1000);
                let got = p.run_copy(&original.bytes(), seq, ack, Path::Old, ACK);
                assert_eq!(
                    got,
                    (PASS, header(seq, ack).bytes()),
                    "{which:?}, {len} bytes"
                );

                let mut want = on_new(&net, &header(SENT, CUT_IN + 7));
                want.options = options(which, 1, 2, CUT_IN - IN);
                let got = p.run_copy(&original.bytes(), SENT, CUT_IN + 7, Path::New, ACK);
                assert_eq!(got, (REDIRECT, want.bytes()), "{which:?}, {len} bytes");
            }
        }
    }
}

#[test]
fn a_copy_of_no_session_is_dropped() {
    for net in nets() {
        let mut p = Programs::load();
        let frame = sent(&net, 1, 1, 10).bytes();
        assert_eq!(p.run_copy(&frame, 1, 1, Path::Old, ACK).0, DROP);
    }
}

#[test]
fn the_old_window_is_bounded() {
    for net in nets() {
        for state in [State::Tracked, State::TwoPaths] {
            let mut p = before_the_cut(&net);
            p.change(|s| (s.state, s.clamp) = (state as u32, 300));
            for which in [Options::None, Options::Timestamps, Options::Sack] {
                let received = Frame {
                    seq: CUT_IN - 1000,
                    ack: SENT - 2000,
                    options: options(which, 1, 2, SENT - 1000),
                    ..net.received()
                };
                p.becomes(
                    Way::In,
                    &received,
                    OK,
                    &Frame {
                        window: 300,
                        ..received.clone()
                    },
                );
                p.passes(
                    Way::In,
                    &Frame {
                        window: 300,
                        ..received
                    },
                );
            }
        }
    }
}

#[test]
fn a_new_ack_is_raised_to_what_the_proxy_gave() {
    for net in nets() {
        let mut p = cut(&net);
        p.change(|s| (s.rcv_ack, s.tsval_out, s.tsval_in) = (SENT - 100, 77, 55));
        let data = Frame {
            options: options(Options::Sack, 1, 2, SENT + OUT),
            window: 3000,
            ..from_far(&net, CUT_IN, SENT - 2000, 50)
        };
        // The blocks are above a hole that has been acknowledged already: they become NOPs.
        let mut stripped = options(Options::Sack, 1, 2, 0);
        stripped[14..].fill(1);
        // Nor is the proxy's clock echoed, which lags behind this end's.
        stripped[8..12].copy_from_slice(&77u32.to_be_bytes());
        let want = Frame {
            ack: SENT - 100,
            window: 3000 - 1900,
            options: stripped,
            ..delivered(&net, &data)
        };
        p.becomes(Way::In, &data, OK, &want);
        let s = p.session(SLOT);
        assert_eq!((s.two.new_heard, s.two.edge_set), (1, 1));
        assert_eq!((s.edge, s.far_ack), (SENT + 1000, SENT - 2000));

        let repeats = Frame {
            window: 3000,
            ..from_far(&net, CUT_IN + 50, SENT - 2000, 0)
        };
        p.drops(Way::In, &repeats, Counter::AckWithheld);

        let caught_up = from_far(&net, CUT_IN + 50, SENT, 0);
        let mut want = delivered(&net, &caught_up);
        want.options[8..12].copy_from_slice(&77u32.to_be_bytes());
        // Within the window of an end that does not read, and by the proxy's clock.
        want.seq = s.rcv_max;
        want.options[4..8].copy_from_slice(&55u32.to_be_bytes());
        p.becomes(Way::In, &caught_up, OK, &want);

        p.change(|s| s.two.drained = 1);
        let behind = from_far(&net, CUT_IN + 50, SENT, 0);
        let mut want = delivered(&net, &behind);
        want.options[8..12].copy_from_slice(&77u32.to_be_bytes());
        p.becomes(Way::In, &behind, OK, &want);
    }
}

/// An end that does not read takes its window back, after the proxy has used it.
#[test]
fn an_ack_is_within_a_window_that_was_taken_back() {
    for net in nets() {
        let mut p = cut(&net);
        p.change(|s| s.tsval_in = 55);
        let seq_of = |p: &mut Programs, window: u16| {
            let told = Frame {
                window,
                ..sent(&net, SENT, CUT_IN - 2000, 0)
            };
            p.run(Way::Out, &told.bytes());
            let ack = from_far(&net, CUT_IN, SENT, 0);
            let (verdict, got) = p.run(Way::In, &ack.bytes());
            assert_eq!(verdict, OK);
            let at = ack.l4() + 4;
            u32::from_be_bytes(got[at..at + 4].try_into().unwrap())
        };
        assert_eq!(seq_of(&mut p, 1000), CUT_IN - 1000);
        assert_eq!(seq_of(&mut p, 999), CUT_IN - 2000);
        assert_eq!(seq_of(&mut p, 0), CUT_IN - 2000);
        assert_eq!(seq_of(&mut p, 1000), CUT_IN - 1000);
    }
}

#[test]
fn an_old_ack_that_was_overtaken_is_raised_or_withheld() {
    for net in nets() {
        let mut p = cut(&net);
        p.change(|s| {
            (s.two.edge_set, s.edge, s.far_ack) = (1, SENT + 400, SENT + 100);
        });
        let data = Frame {
            seq: CUT_IN - 1000,
            ack: SENT,
            options: options(Options::Sack, 1, 2, SENT),
            payload: vec![3; 20],
            ..net.received()
        };
        let mut stripped = data.options.clone();
        stripped[14..].fill(1);
        let want = Frame {
            ack: SENT + 100,
            window: 300,
            options: stripped,
            ..data.clone()
        };
        p.becomes(Way::In, &data, OK, &want);
        p.drops(
            Way::In,
            &Frame {
                payload: vec![],
                ..data
            },
            Counter::AckWithheld,
        );
    }
}

/// The new path has carried more to the end than the proxy has sent it. The proxy's
/// acknowledgement or reset is sent under a number that the end accepts.
#[test]
fn an_end_that_is_ahead_hears_the_proxy() {
    for net in nets() {
        let mut p = cut(&net);
        p.change(|s| {
            (s.two.new_heard, s.two.new_data, s.new_low) = (1, 1, CUT_IN);
            (s.rcv_max, s.snd_ack, s.shown) = (CUT_IN, CUT_IN + 500, CUT_IN + 500);
        });
        let behind = |flags, seq| Frame {
            seq,
            ack: SENT,
            flags,
            options: options(Options::Timestamps, 1, 2, 0),
            ..net.received()
        };
        p.becomes(
            Way::In,
            &behind(ACK, CUT_IN),
            OK,
            &behind(ACK, CUT_IN + 500),
        );
        // A packet that asks for an answer keeps its number.
        p.passes(Way::In, &behind(ACK, CUT_IN - 1));
        p.becomes(
            Way::In,
            &behind(ACK | RST, CUT_IN),
            OK,
            &behind(ACK | RST, CUT_IN + 500),
        );
        assert_eq!(p.session(SLOT).life.reset, ENDED);
        assert_eq!(p.events(), [(EventKind::Broken, SLOT)]);
    }
}

/// No daemon has set the other cutoff, and the proxy, which is no longer needed, closes. Or its
/// socket is gone, and each copy is answered by a reset.
#[test]
fn the_end_of_a_proxy_that_nobody_needs_is_not_heard() {
    for net in nets() {
        let mut p = before_the_cut(&net);
        p.change(|s| {
            (s.two.cut_set, s.cut_out) = (1, SENT);
            (s.two.new_heard, s.two.new_data, s.new_low) = (1, 1, CUT_IN);
            (s.rcv_max, s.shown) = (CUT_IN, CUT_IN + 500);
        });
        // The far end has received everything, and this end acknowledges the bytes of the new
        // path.
        p.run(Way::In, &from_far(&net, CUT_IN, SENT, 500).bytes());
        p.run(Way::Out, &sent(&net, SENT, CUT_IN + 500, 0).bytes());
        for flags in [RST, RST | ACK] {
            let reset = Frame {
                seq: CUT_IN,
                ack: SENT,
                flags,
                ..net.received()
            };
            p.drops(Way::In, &reset, Counter::DroppedLateOld);
        }
    }
}

/// The other end has given up the change, and the packet that opened the path met no socket. As
/// long as that end has not cut, it sends nothing of the session by the path.
#[test]
fn a_reset_on_a_path_that_was_given_up_is_nobodys() {
    for net in nets() {
        let mut p = before_the_cut(&net);
        let acked = p.session(SLOT).snd_ack;
        let reset = Frame {
            flags: RST,
            ..from_far(&net, acked, 0, 0)
        };
        p.drops(Way::In, &reset, Counter::DroppedStray);
        let s = p.session(SLOT);
        assert_eq!((s.life.reset, s.two.new_heard, s.two.cut_set), (0, 0, 0));
        p.change(|s| s.two.cut_in_set = 1);
        p.run(Way::In, &reset.bytes());
        assert_eq!(p.session(SLOT).life.reset & 1, 1);
    }
}

/// Nothing of the session comes by a path that has not opened, whoever answers there. The left
/// anchor sends the packets that open it, and receives nothing else before it has cut.
#[test]
fn nothing_is_heard_of_a_path_before_it_has_opened() {
    for net in nets() {
        for opened_here in [0, 1] {
            let mut p = before_the_cut(&net);
            p.change(|s| s.life.opened_here = opened_here);
            let expected = p.session(SLOT).snd_ack;
            for flags in [RST, RST | ACK, ACK, ACK | FIN] {
                let said = Frame {
                    flags,
                    ..from_far(&net, expected, SENT, 0)
                };
                p.drops(Way::In, &said, Counter::DroppedStray);
                let told: &[_] = match flags & RST {
                    0 => &[],
                    _ => &[(EventKind::Rejected, SLOT)],
                };
                assert_eq!(p.events(), told);
                let s = p.session(SLOT);
                assert_eq!((s.life.reset, s.life.fin_in, s.two.new_heard), (0, 0, 0));
                // So new data continues on the old path.
                p.passes(Way::Out, &sent(&net, SENT, CUT_IN - 1000, 10));
            }
        }
    }
}

/// The left anchor has cut, and its packets are rejected on the way: the other end resets a
/// session on both paths.
#[test]
fn a_reset_is_believed_where_something_else_has_come() {
    for net in nets() {
        let mut p = before_the_cut(&net);
        p.change(|s| {
            (s.life.opened_here, s.shown) = (1, CUT_IN);
            (s.two.cut_set, s.cut_out) = (1, SENT);
        });
        let reset = Frame {
            flags: RST | ACK,
            ..from_far(&net, p.session(SLOT).snd_ack, SENT, 0)
        };
        p.drops(Way::In, &reset, Counter::DroppedStray);
        assert_eq!(p.session(SLOT).life.reset, 0);
        p.run(Way::In, &from_far(&net, CUT_IN, SENT, 10).bytes());
        p.run(Way::In, &reset.bytes());
        assert_eq!(p.session(SLOT).life.reset & 1, 1);
    }
}

/// The reset is delivered. No end believes it, and another reset of the same number is not
/// believed either.
#[test]
fn a_reset_of_any_number_teaches_nothing() {
    for net in nets() {
        let mut p = cut(&net);
        p.change(|s| s.shown = CUT_IN);
        let before = p.session(SLOT);
        let far = CUT_IN + 1_000_000;
        let old = Frame {
            seq: far,
            ack: SENT,
            flags: RST | ACK,
            ..net.received()
        };
        let new = Frame {
            flags: RST | ACK,
            ..from_far(&net, far, SENT, 0)
        };
        for _ in 0..2 {
            p.run(Way::In, &old.bytes());
            p.run(Way::In, &new.bytes());
            let s = p.session(SLOT);
            assert_eq!(s.life.reset, 0);
            assert_eq!((s.rcv_max, s.shown), (before.rcv_max, before.shown));
            assert_eq!((s.rcv_ack, s.tsval_in), (before.rcv_ack, before.tsval_in));
            assert_eq!((s.two.new_data, s.two.edge_set), (0, 0));
        }
        assert_eq!(p.events(), []);
        // The next number that the end expects is believed.
        p.run(
            Way::In,
            &Frame {
                seq: CUT_IN - 1000,
                ..old
            }
            .bytes(),
        );
        assert_eq!(p.session(SLOT).life.reset, ENDED);
        assert_eq!(p.events(), [(EventKind::Broken, SLOT)]);
    }
}

#[test]
fn the_proxys_own_end_is_not_delivered() {
    for net in nets() {
        let mut p = cut(&net);
        let fin = Frame {
            seq: CUT_IN,
            ack: SENT,
            flags: ACK | FIN,
            ..net.received()
        };
        p.drops(Way::In, &fin, Counter::DroppedLateOld);
        assert_eq!(p.session(SLOT).life.fin_in, 0);
        let last = Frame {
            seq: CUT_IN - 10,
            payload: vec![1; 10],
            ..fin.clone()
        };
        p.becomes(
            Way::In,
            &last,
            OK,
            &Frame {
                flags: ACK,
                ..last.clone()
            },
        );
        let mut p = cut(&net);
        p.change(|s| {
            (s.rcv_ack, s.rcv_max) = (SENT, CUT_IN);
            s.two.drained = 1;
        });
        let rst = Frame {
            seq: CUT_IN,
            flags: RST,
            ..net.received()
        };
        p.drops(Way::In, &rst, Counter::DroppedLateOld);
        assert_eq!(p.session(SLOT).life.reset, 0);
    }
}

/// The bytes that the proxy held are lost: the end receives a reset, and no clean end.
#[test]
fn a_fin_of_the_proxy_with_bytes_missing_is_a_reset() {
    for net in nets() {
        let mut p = cut(&net);
        let fin = |seq, len| Frame {
            seq,
            ack: SENT,
            flags: ACK | FIN,
            payload: vec![1; len],
            ..net.received()
        };
        let (last, end) = (fin(CUT_IN - 2000, 1500), CUT_IN - 500);
        let data = Frame {
            flags: ACK,
            ..last.clone()
        };
        p.becomes(Way::In, &last, OK, &data);
        p.drops(Way::In, &fin(end, 0), Counter::DroppedLateOld);
        p.run(Way::Out, &sent(&net, SENT, end, 0).bytes());
        let reset = Frame {
            flags: ACK | RST,
            ..fin(end, 0)
        };
        // The kernel retransmits it.
        for _ in 0..2 {
            p.becomes(Way::In, &fin(end, 0), OK, &reset);
        }
        let life = p.session(SLOT).life;
        assert_eq!((life.fin_in, life.reset), (0, ENDED));
        assert_eq!(p.events(), [(EventKind::Broken, SLOT)]);
        // The end receives the kernel's answers to its packets.
        let refused = Frame {
            flags: RST,
            ..net.received()
        };
        p.passes(
            Way::In,
            &Frame {
                seq: end,
                ..refused
            },
        );
    }
}

#[test]
fn the_other_ends_fin_before_the_cutoff_is_delivered() {
    for net in nets() {
        let mut p = cut(&net);
        p.change(|s| s.two.cut_in_set |= CLOSES);
        let fin = Frame {
            seq: CUT_IN - 1,
            ack: SENT,
            flags: ACK | FIN,
            ..net.received()
        };
        p.passes(Way::In, &fin);
        assert_ne!(p.session(SLOT).life.fin_in, 0);
        assert_eq!(p.session(SLOT).life.reset, 0);
    }
}

/// Until the cutoff is known nothing shows whose FIN it is.
#[test]
fn a_fin_waits_for_the_cutoff() {
    for net in nets() {
        let mut p = before_the_cut(&net);
        let fin = Frame {
            seq: CUT_IN - 1000,
            ack: SENT,
            flags: ACK | FIN,
            ..net.received()
        };
        p.change(|s| s.shown = CUT_IN - 1000);
        p.drops(Way::In, &fin, Counter::DroppedLateOld);
        assert_eq!(p.session(SLOT).life.fin_in, 0);
        p.change(|s| s.shown = 0);
        p.passes(Way::In, &fin);
        assert_ne!(p.session(SLOT).life.fin_in, 0);
    }
}

/// Returns a SYN as the left anchor sends it, with an MSS and a window scale as options.
fn syn(net: &Net, payload: usize) -> Frame {
    Frame {
        seq: 77,
        flags: SYN,
        options: vec![2, 4, 5, 0xb4, 3, 3, 9, 1],
        payload: vec![0; payload],
        ..net.new_received()
    }
}

/// Returns the SYN and its probe, as they arrived; the path may have changed the header.
fn probing(net: &Net, payload: usize) -> (Frame, Probe) {
    let mut frame = syn(net, payload);
    let probe = Probe::of_syn(5, &frame.tcp().to_bytes());
    frame.payload[..PROBE].copy_from_slice(&probe.to_bytes());
    (frame, probe)
}

/// Returns the header of a frame, as a probe contains it.
fn header(frame: &Frame) -> [u8; 60] {
    let bytes = frame.bytes();
    let l4 = bytes.len() - frame.payload.len() - 20 - frame.options.len();
    let mut header = [0; 60];
    let len = 20 + frame.options.len();
    header[..len].copy_from_slice(&bytes[l4..l4 + len]);
    header
}

#[test]
fn the_right_anchor_answers_what_opens_the_new_path() {
    for net in nets() {
        let mut p = before_the_cut(&net);
        p.change(|s| {
            (s.local.flags, s.remote.flags) = (offer::WSCALE, offer::WSCALE);
            (s.local.wscale, s.remote.wscale) = (4, 1);
        });
        // The path may be too narrow for the packet before it.
        p.drops(Way::In, &syn(&net, 0), Counter::DroppedStray);
        // Nor does another host's SYN open it, such as a firewall's.
        p.drops(Way::In, &syn(&net, 900), Counter::DroppedStray);
        assert_eq!(p.session(SLOT).shown, 0);
        let (opens, probe) = probing(&net, 900);
        p.change(|s| s.life.fin_in = life::SEEN);
        let fins = Fins {
            sent: false,
            heard: true,
        };
        let answer = Probe {
            heard: header(&opens),
            answered: [SENT + OUT - 1, 78].map(u32::to_be),
            fins: fins.bits().to_be(),
            ..probe
        };
        let mut payload = vec![0; 900];
        payload[..PROBE].copy_from_slice(&answer.to_bytes());
        let want = Frame {
            seq: SENT + OUT - 1,
            ack: 78,
            flags: SYN | ACK,
            window: u16::MAX,
            options: vec![2, 4, 5, 0xb4, 3, 3, 4, 1],
            payload,
            ..net.new_sent()
        };
        p.becomes(Way::In, &opens, REDIRECT, &want);
        assert_eq!(p.session(SLOT).shown, 78u32.wrapping_add(IN));
        // The packet behind it follows all data that was sent by the proxy since.
        p.change(|s| s.snd_max = SENT + 70_000);
        let again = Frame {
            options: options(Options::Timestamps, 1, 2, 0),
            ..syn(&net, 0)
        };
        let behind = Frame {
            seq: SENT + OUT,
            ack: 78,
            flags: ACK | PSH,
            window: u16::MAX,
            ..net.new_sent()
        };
        let want = Frame {
            options: again.options.clone(),
            ..behind.clone()
        };
        p.becomes(Way::In, &again, REDIRECT, &want);
        // This end's cutoff answers the left end's.
        p.change(|s| {
            (s.two.cut_set, s.cut_out) = (1, SENT + 70_000);
            (s.two.cut_in_set, s.cut_in, s.two.drained) = (1, 500u32.wrapping_add(IN), 1);
        });
        let shows = Frame {
            seq: 500,
            ack: SENT + OUT,
            flags: ACK | PSH,
            window: u16::MAX,
            ..net.new_received()
        };
        let want = Frame {
            seq: SENT + 70_000 + OUT,
            ack: 500,
            ..behind.clone()
        };
        p.becomes(Way::In, &shows, REDIRECT, &want);
        assert_eq!(p.events(), [(EventKind::Drained, SLOT)]);
        // Late: no stack receives it.
        p.change(|s| s.state = State::NewPath as u32);
        assert_eq!(p.run(Way::In, &shows.bytes()).0, DROP);
        // No path is prepared: no answer.
        p.change(|s| s.state = State::Tracked as u32);
        p.drops(Way::In, &syn(&net, 900), Counter::DroppedStray);
        p.drops(Way::In, &shows, Counter::DroppedStray);
    }
}

#[test]
fn the_left_anchor_hears_that_the_new_path_is_open() {
    for net in nets() {
        let mut p = before_the_cut(&net);
        p.change(|s| s.life.opened_here = 1);
        let behind = Frame {
            seq: 901,
            flags: ACK | PSH,
            window: u16::MAX,
            ..net.new_received()
        };
        p.drops(Way::In, &behind, Counter::DroppedStray);
        let answer = Frame {
            seq: 900,
            flags: SYN | ACK,
            ..net.new_received()
        };
        assert_eq!(p.run(Way::In, &answer.bytes()).0, DROP);
        let arrived = [(EventKind::Arrived, SLOT)];
        assert_eq!(p.events(), arrived, "its windows are not open yet");
        assert_eq!(p.run(Way::In, &behind.bytes()).0, DROP);
        assert_eq!(p.events(), [(EventKind::PathOpen, SLOT)]);
        assert_eq!(p.session(SLOT).shown, 901u32.wrapping_add(IN));
        assert_eq!(p.session(SLOT).two.new_heard, 0, "the far end has not cut");
    }
}

#[test]
fn what_the_new_path_has_not_shown_is_not_acknowledged_there() {
    for net in nets() {
        let mut p = cut(&net);
        p.change(|s| s.shown = CUT_IN - 600);
        // Data: its header goes to the path that carried the acknowledged bytes.
        let data = sent(&net, SENT, CUT_IN - 100, 500);
        let want = Frame {
            ack: CUT_IN - 600,
            window: 512 + 500,
            ..data.clone()
        };
        p.becomes(Way::Out, &data, REDIRECT, &on_new(&net, &want));
        // Shown by data: unchanged from then on.
        let far = from_far(&net, CUT_IN, SENT + 1, 10);
        p.becomes(Way::In, &far, OK, &delivered(&net, &far));
        assert_eq!(p.session(SLOT).shown, CUT_IN + 10);
        let data = sent(&net, SENT + 500, CUT_IN - 100, 500);
        p.becomes(Way::Out, &data, REDIRECT, &on_new(&net, &data));
    }
}
