//! FINs and resets of both ends and of the proxy, between two paths.

use dysco_common::tcp::{ACK, FIN, RST};
use dysco_common::two_paths::CLOSES;
use dysco_common::{Counter, EventKind};

use super::{CUT_IN, ENDED, SENT, before_the_cut, cut, from_peer, sent};
use crate::bench::{OK, SLOT, Way};
use crate::frame::{Frame, nets};

/// No daemon has set the other cutoff, and the proxy, which is no longer needed, closes. Or its
/// socket is gone, and each copy is answered by a reset.
#[test]
fn the_end_of_a_proxy_that_nobody_needs_is_not_heard() {
    for net in nets() {
        let mut p = before_the_cut(&net);
        p.change(|s| {
            (s.two.cut_set, s.cut_out) = (1, SENT);
            (s.two.new_received, s.two.new_data, s.new_low) = (1, 1, CUT_IN);
            (s.rcv_max, s.peer_sent_max) = (CUT_IN, CUT_IN + 500);
        });
        // The far end has received everything, and this end acknowledges the bytes of the new
        // path.
        p.run(Way::In, &from_peer(&net, CUT_IN, SENT, 500).bytes());
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
            ..from_peer(&net, acked, 0, 0)
        };
        p.drops(Way::In, &reset, Counter::DroppedStray);
        let s = p.session(SLOT);
        assert_eq!((s.life.reset, s.two.new_received, s.two.cut_set), (0, 0, 0));
        p.change(|s| s.two.cut_in_set = 1);
        p.run(Way::In, &reset.bytes());
        assert_eq!(p.session(SLOT).life.reset & 1, 1);
    }
}

/// The left anchor has cut, and its packets are rejected on the way: the other end resets a
/// session on both paths.
#[test]
fn a_reset_is_believed_where_something_else_has_come() {
    for net in nets() {
        let mut p = before_the_cut(&net);
        p.change(|s| {
            (s.life.opened_here, s.peer_sent_max) = (1, CUT_IN);
            (s.two.cut_set, s.cut_out) = (1, SENT);
        });
        let reset = Frame {
            flags: RST | ACK,
            ..from_peer(&net, p.session(SLOT).snd_ack, SENT, 0)
        };
        p.drops(Way::In, &reset, Counter::DroppedStray);
        assert_eq!(p.session(SLOT).life.reset, 0);
        p.run(Way::In, &from_peer(&net, CUT_IN, SENT, 10).bytes());
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
        p.change(|s| s.peer_sent_max = CUT_IN);
        let before = p.session(SLOT);
        let ahead = CUT_IN + 1_000_000;
        let old = Frame {
            seq: ahead,
            ack: SENT,
            flags: RST | ACK,
            ..net.received()
        };
        let new = Frame {
            flags: RST | ACK,
            ..from_peer(&net, ahead, SENT, 0)
        };
        for _ in 0..2 {
            p.run(Way::In, &old.bytes());
            p.run(Way::In, &new.bytes());
            let s = p.session(SLOT);
            assert_eq!(s.life.reset, 0);
            assert_eq!(
                (s.rcv_max, s.peer_sent_max),
                (before.rcv_max, before.peer_sent_max)
            );
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
        p.change(|s| s.peer_sent_max = CUT_IN - 1000);
        p.drops(Way::In, &fin, Counter::DroppedLateOld);
        assert_eq!(p.session(SLOT).life.fin_in, 0);
        p.change(|s| s.peer_sent_max = 0);
        p.passes(Way::In, &fin);
        assert_ne!(p.session(SLOT).life.fin_in, 0);
    }
}
