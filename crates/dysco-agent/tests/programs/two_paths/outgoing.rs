//! Tests of what an end sends between two paths: path, numbers, and the copy for the other path.

use dysco_common::tcp::{ACK, FIN};
use dysco_common::{Counter, EventKind, Path, Session};

use super::{CUT_IN, IN, SENT, before_the_cut, cut, on_new, sent};
use crate::bench::{DROP, PASS, Programs, REDIRECT, SLOT, Way};
use crate::frame::{Frame, Options, nets, options};

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
            |s: &mut Session| s.two.new_received = 1,
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
        let reported = p.events();
        assert_eq!(
            (p.session(SLOT).two.drained, reported),
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
