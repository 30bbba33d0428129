//! The two-path phase: cases, properties of single decisions, and a session whose two paths
//! compete.

mod announced;
mod any;
mod drained;
mod ending;
mod far_apart;
mod opening;
mod outgoing;
mod proxy;
mod windows;

use dysco_common::session::{Session, offer};
use dysco_common::tcp::Segment;
use dysco_common::two_paths::{self, Anchor, Ending, NewIncoming, OldIncoming, Outgoing};

const CUT_OUT: u32 = 1000;
const CUT_IN: u32 = 5000;

fn session() -> Session {
    Session {
        state: 3,
        snd_max: CUT_OUT,
        snd_ack: 4000,
        rcv_max: 4500,
        rcv_ack: 900,
        ifindex: 1,
        cut_out: CUT_OUT,
        cut_in: CUT_IN,
        ..Session::default()
    }
}

/// Returns the same session as the host at the other end of its old path has it. Outgoing here is
/// incoming there.
fn mirrored(s: &Session) -> Session {
    Session {
        snd_max: s.rcv_max,
        rcv_max: s.snd_max,
        snd_ack: s.rcv_ack,
        rcv_ack: s.snd_ack,
        tsval_out: s.tsval_in,
        tsval_in: s.tsval_out,
        local: s.remote,
        remote: s.local,
        clamp: 0,
        clamp_remote: s.clamp,
        ..*s
    }
}

/// Checks that both kinds of anchor give the same result, and returns it.
fn same<T: PartialEq + std::fmt::Debug>(s: &Session, f: impl Fn(Anchor, &Session) -> T) -> T {
    let near = f(Anchor::Local, s);
    assert_eq!(near, f(Anchor::Remote, &mirrored(s)));
    near
}

fn outgoing(s: &Session, seg: &Segment) -> Outgoing {
    same(s, |at, s| two_paths::outgoing(at, s, seg))
}

fn ending(s: &Session, seg: &Segment) -> Ending {
    same(s, |at, s| two_paths::ending(at, s, seg))
}

/// Returns true if this is the proxy's own end of the session, which no end may receive.
fn proxy_ends(s: &Session, seg: &Segment) -> bool {
    ending(s, seg) == Ending::Relayed
}

fn old_incoming(s: &Session, seg: &Segment, wscale: u8) -> OldIncoming {
    same(s, |at, s| two_paths::old_incoming(at, s, seg, wscale))
}

fn new_incoming(s: &Session, seg: &Segment, wscale: u8) -> NewIncoming {
    same(s, |at, s| two_paths::new_incoming(at, s, seg, wscale))
}

/// Returns the session after its end has sent a segment.
fn after_window(s: &Session, seg: &Segment) -> Session {
    let heard = |at: Anchor, mut s: Session| {
        two_paths::record_window(at, &mut s, seg);
        s
    };
    let near = heard(Anchor::Local, *s);
    let peer = heard(Anchor::Remote, mirrored(s));
    assert_eq!(near.two.new_ack_set, peer.two.new_ack_set);
    near
}

/// Returns a session after its cut.
fn cut() -> Session {
    let mut s = session();
    s.two.cut_set = 1;
    s.two.cut_in_set = 1;
    s
}

fn segment(seq: u32, ack: u32, len: u32, flags: u8) -> Segment {
    Segment {
        seq,
        ack,
        len,
        window: 100,
        flags,
    }
}

/// Returns a session whose new path has opened, but has not carried the data that the other end
/// sent elsewhere.
fn unannounced() -> Session {
    let mut s = cut();
    s.peer_sent_max = CUT_IN - 300;
    (s.local.flags, s.remote.flags) = (offer::WSCALE, offer::WSCALE);
    s.local.wscale = 2;
    s
}

fn near(s: &Session, seg: &Segment) -> Outgoing {
    two_paths::outgoing(Anchor::Local, s, seg)
}

/// Returns a session after both cuts, whose new path has carried data to the local end.
fn carried() -> Session {
    let mut s = session();
    (s.two.cut_set, s.two.cut_in_set) = (1, 1);
    (s.two.new_received, s.two.new_data, s.new_low) = (1, 1, CUT_IN);
    s
}

fn taken_back(mut s: Session) -> Session {
    (s.two.cut_set, s.two.cut_in_set, s.two.new_received) = (0, 0, 0);
    s.muted = 1;
    s
}
