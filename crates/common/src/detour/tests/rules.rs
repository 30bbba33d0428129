//! Single packets whose loss would leave an end without an answer.

use super::super::{Detour, End, FromEnd, Way, cut, from_end, from_socket, phase};
use crate::tcp::{ACK, RST, Segment};

fn detour(paired: u32) -> Detour {
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
