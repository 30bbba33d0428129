//! Single packets whose loss would leave an end without an answer.

use super::super::{
    Detour, End, FromEnd, Way, cut, from_end, from_socket, keep_in_window, late, phase,
};
use crate::tcp::{ACK, FIN, RST, Segment};

fn detour(paired: u16) -> Detour {
    Detour {
        out: Way::entering(100, 0, 1000, 1000),
        back: Way::entering(200, 0, 2000, 2000),
        paired,
        ..Detour::default()
    }
}

fn segment(seq: u32, ack: u32, flags: u8) -> Segment {
    Segment {
        seq,
        ack,
        len: 0,
        window: 10,
        flags,
    }
}

/// Lets a direction take the route through the sockets.
fn enters(way: &mut Way) {
    way.set_cut();
    way.cut_set = cut::SET;
    way.phase = phase::THROUGH;
}

/// Decides about a packet of an end as the programs do.
fn leaves_end(d: &mut Detour, from: End, seg: &Segment, out: &mut FromEnd) {
    from_end(d, from, seg, 0, out);
    keep_in_window(d, from, seg, 0, out);
}

/// Lets a direction leave the route through the sockets at its next byte.
fn leaves(way: &mut Way) {
    way.begin_to_leave(false);
    way.phase = phase::LEAVING;
    way.set_cut();
    way.cut_set = cut::SET;
}

#[test]
fn a_handler_that_gives_up_resets_an_end_that_has_not_entered() {
    for paired in [0, 1] {
        let mut d = detour(paired);
        enters(&mut d.out);
        let reset = segment(200, 100, ACK | RST);
        let out = from_socket(&mut d, End::Local, &reset, 0);
        assert_eq!(out.map(|header| header.seq), Some(2000));
        // Data of a handler that has received none is not for this end.
        assert_eq!(
            from_socket(
                &mut d,
                End::Local,
                &Segment {
                    len: 1,
                    flags: ACK,
                    ..reset
                },
                0
            ),
            None
        );
    }
}

#[test]
fn a_handler_that_gives_up_resets_an_end_that_has_left() {
    let mut d = detour(0);
    enters(&mut d.out);
    d.back.phase = phase::DIRECT;
    let reset = segment(200, 100, ACK | RST);
    assert!(from_socket(&mut d, End::Local, &reset, 0).is_some());
    d.out.phase = phase::DIRECT;
    assert_eq!(from_socket(&mut d, End::Local, &reset, 0), None);
}

/// All that the end has said since went directly, and it may have nothing more to say. Without its
/// answer the socket would not send a byte.
#[test]
fn an_end_answers_the_probe_of_a_socket_that_has_sent_nothing() {
    for silent in [0, 1] {
        let mut d = Detour {
            silent,
            ..detour(0)
        };
        enters(&mut d.out);
        let closed = Segment {
            len: 10,
            window: 0,
            ..segment(1000, 2000, ACK)
        };
        let mut out = FromEnd::default();
        from_end(&mut d, End::Local, &closed, 0, &mut out);
        assert!(out.to_socket && out.main.window == 0);
        from_end(&mut d, End::Local, &segment(1010, 2000, ACK), 0, &mut out);
        assert!(!out.to_socket && !out.copied);
        enters(&mut d.back);
        let probe = from_socket(&mut d, End::Local, &segment(199, 110, ACK), 0);
        assert_eq!(probe.map(|header| header.seq), Some(1999));
    }
}

/// A window that opens may be told by one packet, which may be lost.
#[test]
fn a_socket_probes_an_end_that_it_acknowledges_nothing_to() {
    let mut d = detour(0);
    enters(&mut d.back);
    d.out.phase = phase::DIRECT;
    d.back.through = 2010;
    let mut probe = |seq| from_socket(&mut d, End::Local, &segment(seq, 100, ACK), 0);
    assert_eq!(probe(209).map(|header| header.seq), Some(2009));
    assert_eq!(
        probe(210),
        None,
        "it acknowledges what the end has not sent"
    );
}

#[test]
fn a_probe_of_an_end_goes_to_the_receiver_of_its_next_byte() {
    // What it acknowledges is awaited elsewhere.
    let mut d = detour(0);
    enters(&mut d.out);
    d.back.phase = phase::DIRECT;
    d.out.sent = 1010;
    let mut out = FromEnd::default();
    from_end(&mut d, End::Local, &segment(1009, 2000, ACK), 0, &mut out);
    assert!(out.to_socket && out.copied);
    assert_eq!((out.main.seq, out.copy.ack), (109, 2000));
    let mut d = detour(0);
    enters(&mut d.back);
    d.out.phase = phase::DIRECT;
    d.out.sent = 1010;
    from_end(&mut d, End::Local, &segment(1009, 2000, ACK), 0, &mut out);
    assert!(!out.to_socket && out.copied);
    assert_eq!((out.main.seq, out.copy.ack), (1009, 200));
    // The number before the cutoff is the last of the old route, and the next byte takes the new one.
    let mut d = detour(0);
    (d.out.cut, d.out.cut_set) = (1000, cut::SET);
    (d.out.sent, d.out.to_socket) = (1010, 100u32.wrapping_sub(1000));
    from_end(&mut d, End::Local, &segment(999, 2000, ACK), 0, &mut out);
    assert!(out.to_socket);
    assert_eq!(out.main.seq, 99);
}

/// The sender has heard all of the old route, and the receiver reads nothing: only its own
/// acknowledgements keep the sender from giving up.
#[test]
fn a_sender_hears_of_a_closed_window_while_old_data_waits_for_it() {
    let mut d = detour(0);
    enters(&mut d.out);
    d.back.phase = phase::DIRECT;
    (d.out.sent, d.out.shown) = (1010, 1010);
    d.out.phase = phase::LEAVING;
    d.out.set_cut();
    d.out.received = 0;
    let mut out = FromEnd::default();
    let mut says = |ack, window| {
        let seg = Segment {
            window,
            ..segment(2000, ack, ACK)
        };
        from_end(&mut d, End::Remote, &seg, 0, &mut out);
        let header = if out.to_socket { out.copy } else { out.main };
        (!out.to_socket || out.copied).then_some((header.ack, header.window))
    };
    assert_eq!(says(1005, 0), Some((1010, 0)));
    // It goes on by itself once it reads.
    assert_eq!(says(1005, 9), None);
    assert_eq!(says(1010, 9), Some((1010, 9)));
}

/// A stack may join segments that it sends again.
#[test]
fn a_socket_gets_no_byte_after_the_cutoff_of_a_direction_that_leaves() {
    let mut d = detour(0);
    enters(&mut d.out);
    d.out.sent = 1010;
    d.out.phase = phase::LEAVING;
    d.out.released = 0;
    d.out.set_cut();
    let joined = Segment {
        len: 20,
        ..segment(1000, 2000, ACK)
    };
    let mut out = FromEnd::default();
    from_end(&mut d, End::Local, &joined, 0, &mut out);
    assert!(out.to_socket);
    assert_eq!(out.keep, Some(10));
}

#[test]
fn the_next_change_of_a_pair_begins_with_what_the_end_has_acknowledged() {
    let mut d = detour(1);
    enters(&mut d.out);
    enters(&mut d.back);
    d.back.sent = 2005;
    let mut out = FromEnd::default();
    from_end(&mut d, End::Local, &segment(1000, 2003, ACK), 0, &mut out);
    assert_eq!(d.back.shown, 2003);
    d.back.phase = phase::LEAVING;
    d.back.cut_set = cut::UNSET;
    (d.back.released, d.back.received) = (1, 0);
    d.back.through = 2005;
    from_end(&mut d, End::Local, &segment(1000, 2005, ACK), 0, &mut out);
    assert_eq!(d.back.shown, 2005);
    let mut next = Way::entering(300, 0, d.back.sent, d.back.shown);
    next.cut_at(2005);
    assert!(
        next.received != 0,
        "it waits for an acknowledgement that does not come again"
    );
}

#[test]
fn an_acknowledgement_that_passes_the_other_handler_is_no_probe() {
    let mut d = detour(1);
    enters(&mut d.back);
    // The near socket has sent 10 bytes. The other end's acknowledgement has the number of the cutoff.
    d.back.delivered = 2010;
    (d.back.through, d.back.sent) = (2010, 2010);
    d.out.sent = 1005;
    let mut out = FromEnd::default();
    from_end(&mut d, End::Remote, &segment(2000, 1002, ACK), 0, &mut out);
    let (seq, ack) = (out.main.seq, out.main.ack);
    assert!(!out.to_socket && !out.dropped);
    // The local end does not read what has an old number (`tcp_sequence`, net/ipv4/tcp_input.c).
    assert_eq!((seq, ack), (2010, 1002));

    // A probe from before the cutoff keeps its number.
    from_end(&mut d, End::Remote, &segment(1999, 1002, ACK), 0, &mut out);
    assert_eq!(out.main.seq, 1999);

    // Once the direction leaves, the probe of the next byte goes directly, and has to be answered.
    (d.back.phase, d.back.cut_set) = (phase::LEAVING, cut::UNSET);
    from_end(&mut d, End::Remote, &segment(2000, 1003, ACK), 0, &mut out);
    assert_eq!((out.main.seq, out.main.ack), (2010, 1003));
    d.back.cut_at(2010);
    d.back.cut_set = cut::SET;
    from_end(&mut d, End::Remote, &segment(2009, 1003, ACK), 0, &mut out);
    assert_eq!(out.main.seq, 2009);
}

/// The handler still has data of a direction that leaves. An acknowledgement of its sender has the number
/// behind that data, and the sender's own number once the receiver has all of it.
#[test]
fn an_acknowledgement_does_not_overtake_data_of_the_sockets() {
    let mut d = detour(0);
    enters(&mut d.out);
    // The sender has sent 500 bytes, of which the far socket has sent 100.
    d.out.sent = 1500;
    let data = Segment {
        len: 100,
        ..segment(100, 2000, ACK)
    };
    from_socket(&mut d, End::Remote, &data, 0).expect("it passes");
    assert_eq!(d.out.through, 1100);
    leaves(&mut d.out);
    for (received, number) in [(0, 1100), (1, 1500)] {
        d.out.received = received;
        let mut out = FromEnd::default();
        from_end(&mut d, End::Local, &segment(1500, 2000, ACK), 0, &mut out);
        let header = match out.to_socket {
            true => out.copy,
            false => out.main,
        };
        assert_eq!(header.seq, number, "{out:?}");
    }
}

/// The sender has a wide window of the near socket, and sends beyond that of the receiver. What the
/// receiver has no room for does not leave the host.
#[test]
fn data_that_overtakes_stays_in_the_receivers_window() {
    let mut d = detour(0);
    enters(&mut d.out);
    enters(&mut d.back);
    d.out.sent = 1500;
    let mut out = FromEnd::default();
    // The far socket's data up to 1100 is received, and there is room for 600 more.
    let acked = Segment {
        window: 600,
        ..segment(2000, 1100, ACK)
    };
    leaves_end(&mut d, End::Remote, &acked, &mut out);
    assert_eq!((d.out.late_edge, d.out.late_set), (1700, late::EDGE));
    leaves(&mut d.out);
    let data = |seq, len| Segment {
        len,
        ..segment(seq, 2000, ACK)
    };
    for (seq, len, passes) in [(1500, 200, true), (1500, 201, false), (1700, 100, false)] {
        let mut out = FromEnd::default();
        leaves_end(&mut d, End::Local, &data(seq, len), &mut out);
        let (number, keep) = match passes {
            true => (seq, None),
            false => (d.out.through, Some(0)),
        };
        assert!(!out.to_socket);
        assert_eq!((out.main.seq, out.keep), (number, keep), "{len} bytes");
    }
    let fin = Segment {
        len: 0,
        ..segment(1701, 2000, ACK | FIN)
    };
    let mut out = FromEnd::default();
    leaves_end(&mut d, End::Local, &fin, &mut out);
    assert!(out.dropped);
    // All of it is received: the sender's own numbers count.
    d.out.received = 1;
    let mut out = FromEnd::default();
    leaves_end(&mut d, End::Local, &data(1700, 100), &mut out);
    assert_eq!((out.main.seq, out.keep), (1700, None));
}
