//! The direct path of a session that has another path, or had one. An end that returns to the
//! direct path shows the firewalls there its numbers, and no stack receives that packet.

use dysco_common::session::{offer, part};
use dysco_common::tcp::{ACK, FIN, PSH, RST};
use dysco_common::{Path, Session, State, Translation};

use crate::bench::{DROP, PASS, Programs, SLOT, Way};
use crate::frame::{Frame, Net, nets};

/// The slot of the other path.
const NEXT: u32 = 4;
/// Highest numbers of the local end and of the other.
const SENT: u32 = 0xffff_fff0;
const RECEIVED: u32 = 90_000;

/// A session on the direct path, which has been given another path or has not.
fn direct(net: &Net, given: bool) -> Programs {
    let mut p = Programs::with(net, State::Tracked, Translation::default());
    p.change(|s| {
        (s.snd_max, s.rcv_max, s.rcv_ack) = (SENT, RECEIVED, SENT - 100);
        s.two.new_received = given.into();
    });
    p
}

fn primer(net: &Net) -> Frame {
    Frame {
        seq: RECEIVED + 500,
        ack: SENT - 40,
        flags: ACK | PSH,
        window: u16::MAX,
        ..net.received()
    }
}

#[track_caller]
fn heard(p: &Programs) {
    let s = p.session(SLOT);
    assert_eq!((s.rcv_max, s.rcv_ack), (RECEIVED + 500, SENT - 40));
}

#[test]
fn no_stack_hears_what_shows_the_direct_path() {
    for net in nets() {
        let p = direct(&net, true);
        assert_eq!(p.run(Way::In, &primer(&net).bytes()).0, DROP);
        heard(&p);
    }
}

/// Some stack may send PSH without data; its sessions have never been given another path.
#[test]
fn what_another_stack_pushes_is_its_own() {
    for net in nets() {
        let mut p = direct(&net, false);
        p.passes(Way::In, &primer(&net));
        heard(&p);
    }
}

/// A session that has taken another path: its own five-tuple leads to that path's entry.
fn switched(net: &Net) -> Programs {
    let mut p = direct(net, true);
    let mut next = Session {
        state: State::Switching as u32,
        other_path: SLOT + 1,
        snd_ack: RECEIVED,
        ..p.session(SLOT)
    };
    (next.two.chained, next.two.part) = (2, part::CURRENT);
    p.put(NEXT, &next);
    p.flow(net.key(), NEXT, Path::Old);
    p
}

/// The other end closes or resets by the direct path, because it has not followed, or because the
/// other path is too far behind. The number is judged by what this end has acknowledged: the other
/// path need not have carried it.
#[test]
fn an_end_by_the_direct_path_is_seen() {
    let widest = u32::from(u16::MAX) << 3;
    let unacknowledged = u32::from(u16::MAX);
    let ahead = [
        (FIN | ACK, 0, true),
        (FIN | ACK, widest, true),
        (FIN | ACK, widest + 1, false),
        // A retransmission that has been acknowledged.
        (FIN | ACK, 0u32.wrapping_sub(1), true),
        (FIN | ACK, 0u32.wrapping_sub(2), false),
        (RST, 0, true),
        (RST | ACK, unacknowledged, true),
        (RST, unacknowledged + 1, false),
        (RST, 0u32.wrapping_sub(1), false),
    ];
    for net in nets() {
        for (flags, by, is_seen) in ahead {
            let mut p = switched(&net);
            let mut s = p.session(NEXT);
            (s.local.flags, s.remote.flags) = (offer::WSCALE, offer::WSCALE);
            s.local.wscale = 3;
            p.put(NEXT, &s);
            let ends = Frame {
                seq: RECEIVED.wrapping_add(by),
                flags,
                ..net.received()
            };
            p.passes(Way::In, &ends);
            let life = p.session(NEXT).life;
            let seen = match flags & FIN {
                0 => life.reset,
                _ => life.fin_in,
            };
            assert_eq!(seen != 0, is_seen, "{flags:#x} {by:#x}");
            let reported = p.events().len();
            assert_eq!(reported, usize::from(is_seen && flags & RST != 0));
        }
    }
}

/// This end has not gone back yet.
#[test]
fn no_stack_hears_it_before_this_end_goes_back() {
    for net in nets() {
        let p = switched(&net);
        assert_eq!(p.run(Way::In, &primer(&net).bytes()).0, DROP);
        heard(&p);
        // A late packet there is for the stack.
        let late = Frame {
            payload: vec![7; 100],
            ..primer(&net)
        };
        let (verdict, after) = p.run(Way::In, &late.bytes());
        assert_eq!((verdict, after), (PASS, late.bytes()));
    }
}
