//! The direct path of a session that has another path, or had one. An end that returns to the
//! direct path shows the firewalls there its numbers, and no stack receives that packet.

use dysco_common::session::part;
use dysco_common::tcp::{ACK, PSH};
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
        s.two.new_heard = given.into();
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

/// This end has not gone back yet: the session's five-tuple leads to the other path.
#[test]
fn no_stack_hears_it_before_this_end_goes_back() {
    for net in nets() {
        let mut p = direct(&net, true);
        let mut next = Session {
            state: State::Switching as u32,
            other_path: SLOT + 1,
            ..p.session(SLOT)
        };
        (next.two.chained, next.two.part) = (2, part::CURRENT);
        p.put(NEXT, &next);
        p.flow(net.key(), NEXT, Path::Old);
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
