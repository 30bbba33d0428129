//! A new path on which nothing is received any longer, and one that is taken back.

use dysco_common::session::offer;
use dysco_common::tcp::{ACK, FIN, PSH, RST};
use dysco_common::{Counter, Session, State, Translation};

use crate::bench::{OK, PASS, Programs, REDIRECT, SLOT, Way};
use crate::frame::{Frame, Net, nets};

/// Highest number that the local end has sent at the cutoff.
const SENT: u32 = 100_000;
/// Highest number that the old path has sent to the local end.
const GOT: u32 = 0x300_0000;

/// Both ends have cut, and the new path has carried `carried` bytes to the local end.
fn between(net: &Net, carried: u32) -> Programs {
    let mut p = Programs::with(net, State::TwoPaths, Translation::default());
    p.change(|s| {
        (s.snd_max, s.rcv_ack) = (SENT, SENT);
        (s.rcv_max, s.snd_ack) = (GOT, GOT);
        (s.two.cut_set, s.cut_out) = (1, SENT);
        (s.two.cut_in_set, s.cut_in) = (1, GOT);
        (s.local.flags, s.remote.flags) = (offer::SEEN, offer::SEEN);
    });
    if carried > 0 {
        let data = from_peer(net, GOT, SENT, carried as usize);
        p.run(Way::In, &data.bytes());
    }
    p
}

fn from_peer(net: &Net, seq: u32, ack: u32, len: usize) -> Frame {
    Frame {
        seq,
        ack,
        payload: vec![9; len],
        ..net.new_received()
    }
}

fn from_proxy(net: &Net, seq: u32, len: usize) -> Frame {
    Frame {
        seq,
        ack: SENT,
        payload: vec![9; len],
        ..net.received()
    }
}

fn sent(net: &Net, seq: u32, ack: u32, len: usize) -> Frame {
    Frame {
        seq,
        ack,
        payload: vec![7; len],
        ..net.sent()
    }
}

/// As `Memory::take_back` leaves the entry.
fn taken_back(s: &mut Session) {
    let two = &mut s.two;
    (two.cut_armed, two.new_received, two.cut_in_set) = (0, 0, 0);
    (two.drained, two.edge_set, two.cut_set) = (0, 0, 0);
    s.muted = 1;
}

#[test]
fn what_is_not_heard_teaches_nothing() {
    for net in nets() {
        let mut p = between(&net, 0);
        p.change(|s| s.muted = 1);
        p.drops(
            Way::In,
            &from_peer(&net, GOT, SENT + 1, 100),
            Counter::DroppedStray,
        );
        let opens = Frame {
            flags: ACK | PSH,
            window: u16::MAX,
            ..from_peer(&net, GOT, SENT, 0)
        };
        p.drops(Way::In, &opens, Counter::DroppedStray);
        let s = p.session(SLOT);
        assert_eq!(
            (s.two.new_received, s.two.edge_set, s.peer_sent_max),
            (0, 0, 0)
        );
        // New data is sent there until the path is taken back.
        let (verdict, _) = p.run(Way::Out, &sent(&net, SENT, GOT, 100).bytes());
        assert_eq!(verdict, REDIRECT);
    }
}

#[test]
fn all_takes_the_old_path_again() {
    for net in nets() {
        let mut p = between(&net, 0);
        p.run(Way::Out, &sent(&net, SENT, GOT, 100).bytes());
        p.change(taken_back);
        p.passes(Way::Out, &sent(&net, SENT, GOT, 100));
        p.passes(Way::Out, &sent(&net, SENT + 100, GOT, 100));
        p.passes(Way::In, &from_proxy(&net, GOT, 100));
        // Another processor may report the new path's last packet late.
        p.change(|s| s.two.new_received = 1);
        p.passes(Way::Out, &sent(&net, SENT + 200, GOT + 100, 100));
        assert_eq!(p.session(SLOT).two.cut_set, 0);
    }
}

/// The proxy is a relay again: its end of the session is the session's end.
#[test]
fn the_proxys_end_is_heard() {
    for net in nets() {
        let mut p = between(&net, 500);
        p.change(taken_back);
        let fin = Frame {
            flags: ACK | FIN,
            ..from_proxy(&net, GOT, 700)
        };
        p.passes(Way::In, &fin);
        assert_ne!(p.session(SLOT).life.fin_in, 0);
    }
}

/// The proxy would discard an acknowledgement of more than it ever sent.
#[test]
fn the_proxy_hears_no_ack_of_what_the_new_path_alone_has_carried() {
    for net in nets() {
        let mut p = between(&net, 500);
        p.change(taken_back);
        let ack = sent(&net, SENT, GOT + 500, 0);
        p.becomes(
            Way::Out,
            &ack,
            PASS,
            &Frame {
                ack: GOT,
                ..ack.clone()
            },
        );
        // The end would not accept the acknowledgement, or the reset, of such a segment.
        let behind = |flags| Frame {
            flags,
            ..from_proxy(&net, GOT, 0)
        };
        let expected = |flags| Frame {
            seq: GOT + 500,
            ..behind(flags)
        };
        p.becomes(Way::In, &behind(ACK), OK, &expected(ACK));
        // A window probe keeps its number.
        let probe = Frame {
            seq: GOT - 1,
            ..behind(ACK)
        };
        p.passes(Way::In, &probe);
        // The proxy sends these bytes again, and more.
        p.passes(Way::In, &from_proxy(&net, GOT, 800));
        p.passes(Way::Out, &sent(&net, SENT, GOT + 800, 0));
        p.passes(Way::In, &from_proxy(&net, GOT + 800, 0));
    }
}

/// The proxy has nothing beyond the bytes that the end has received, and the end receives its
/// reset.
#[test]
fn the_proxys_reset_is_heard_where_it_is_behind() {
    for net in nets() {
        let mut p = between(&net, 500);
        p.change(taken_back);
        p.run(Way::Out, &sent(&net, SENT, GOT + 500, 0).bytes());
        let reset = Frame {
            flags: ACK | RST,
            ..from_proxy(&net, GOT, 0)
        };
        let heard = Frame {
            seq: GOT + 500,
            ..reset.clone()
        };
        p.becomes(Way::In, &reset, OK, &heard);
        assert_eq!(p.session(SLOT).life.reset & 1, 1);
    }
}
