//! Middleboxes that change the size of a stream, against streams that are stored whole, byte by
//! byte.

use dysco_common::delta::{Delta, Fit, Passed, Reach, Watched, is_consistent};
use dysco_common::flow::{Addr, FlowKey};
use dysco_common::session::{Offer, Two, offer};
use dysco_common::{Session, State, Translation};
use proptest::prelude::*;

use crate::wire::segment;

fn key(last: u8) -> FlowKey {
    FlowKey {
        local: Addr::v4([10, 0, 0, 1]),
        remote: Addr::v4([10, 0, 0, last]),
        local_port: 40_000u16.to_be(),
        remote_port: 80u16.to_be(),
    }
}

/// A stream in one direction through a middlebox: the byte at each place on the two sides. `None`
/// is a byte of the middlebox's own.
#[derive(Debug)]
struct Stream {
    first: u32,
    before: Vec<Option<u32>>,
    behind: Vec<Option<u32>>,
}

impl Stream {
    /// Creates a stream to which a header was added, or from which the first bytes were removed.
    fn new(first: u32, put: usize, taken: usize, len: usize) -> Stream {
        let before: Vec<_> = (0..len as u32).map(Some).collect();
        let header = std::iter::repeat_n(None, put);
        Stream {
            first,
            behind: header.chain(before[taken..].iter().copied()).collect(),
            before,
        }
    }

    fn number(&self, side: &[Option<u32>], byte: u32) -> u32 {
        let at = side.iter().position(|b| *b == Some(byte)).unwrap();
        self.first.wrapping_add(at as u32)
    }

    fn delta(&self) -> u32 {
        (self.behind.len() as u32).wrapping_sub(self.before.len() as u32)
    }
}

prop_compose! {
    fn stream()(first in any::<u32>(), put in 0usize..40, taken in 0usize..40) -> Stream {
        Stream::new(first, put, taken, 100)
    }
}

/// Returns a session that passes no middlebox any more, after one had changed its numbers so.
fn left(translation: Translation) -> Session {
    let scaled = Offer {
        wscale: 5,
        flags: offer::SEEN | offer::SACK,
        ..Offer::default()
    };
    Session {
        state: State::NewPath as u32,
        key: key(2),
        path: key(3),
        translation,
        local: scaled,
        remote: scaled,
        two: Two {
            chained: 2,
            ..Two::default()
        },
        ..Session::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Any byte that is sent, acknowledged or held back for another is the same byte behind the
    /// middlebox, in both directions.
    #[test]
    fn bytes_are_the_same_behind_it(up in stream(), down in stream(), byte in 40u32..100, acked in 40u32..100, t in any::<[u32; 2]>()) {
        let delta = Delta { to_server: up.delta(), to_client: down.delta() };
        // The client's own numbers may differ from those of the wire already.
        let own = Translation { seq_out: t[0], seq_in: t[1], ..Translation::default() };
        let beyond = own.beyond(&delta);
        let mine = |wire: u32| wire.wrapping_sub(t[0]);
        let heard = |wire: u32| wire.wrapping_add(t[1]);
        // The server's stream is before the middlebox on the server's side.
        let sent = segment(mine(up.number(&up.before, byte)), heard(down.number(&down.behind, acked)));
        let e = beyond.outgoing(&sent, &key(3));
        prop_assert_eq!(e.seq, up.number(&up.behind, byte));
        prop_assert_eq!(e.ack, down.number(&down.before, acked));
        prop_assert_eq!(e.sack_add, e.ack.wrapping_sub(sent.ack));
        let back = segment(e.ack, e.seq);
        let i = beyond.incoming(&back, &key(2));
        prop_assert_eq!((i.seq, i.ack), (sent.ack, sent.seq));
        prop_assert_eq!(i.sack_add, i.ack.wrapping_sub(back.ack));
        // Clocks, windows and options are unchanged.
        prop_assert_eq!(Translation { seq_out: t[0], seq_in: t[1], ..beyond }, own);
    }

    /// Two deltas equal one.
    #[test]
    fn deltas_add_up(a in any::<[u32; 2]>(), b in any::<[u32; 2]>()) {
        let [a, b] = [a, b].map(|[to_server, to_client]| Delta { to_server, to_client });
        let t = Translation::default();
        prop_assert_eq!(t.beyond(&a).beyond(&b), t.beyond(&a.and(&b)));
        prop_assert_eq!(t.beyond(&Delta::default()), t);
    }

    /// The wire has other numbers. Everything else is the same.
    #[test]
    fn what_it_has_left_is_translated_on_the_wire(n in any::<[u32; 6]>()) {
        let t = Translation::default().beyond(&Delta { to_server: n[0], to_client: n[1] });
        let s = Session { snd_max: n[2], rcv_max: n[3], snd_ack: n[4], rcv_ack: n[5], ..left(t) };
        let wire = s.on_wire();
        prop_assert_eq!((s.alias(), wire.key), (None, s.key));
        let out = t.outgoing(&segment(s.snd_max, s.rcv_max), &s.path);
        prop_assert_eq!((out.seq, out.ack), (wire.snd_max, wire.rcv_max));
        prop_assert_eq!((wire.local.flags, wire.local_wscale()), (s.local.flags, s.local_wscale()));
        prop_assert_eq!(s.reach(), Reach { sent: wire.snd_max, heard: wire.rcv_max });
        prop_assert_eq!(s.carried(), t);
        // A change that failed may have left a translation in a session that takes no chain.
        let direct = Session { state: State::Tracked as u32, two: Two::default(), ..s };
        prop_assert_eq!((direct.on_wire().snd_max, direct.carried()), (s.snd_max, Translation::default()));
    }

    /// At no moment do the visible numbers contradict the true delta. Once nothing is under way
    /// they contradict every other delta.
    #[test]
    fn numbers_bear_the_truth_out(first in any::<u32>(), delta in -50i32..50, steps in prop::collection::vec((0u8..3, 1u32..3000), 1..60), wrong in 1i32..1000, sign in any::<bool>()) {
        let delta = delta as u32;
        let [mut came, mut went, mut acked] = [first; 3];
        let seen = |came: u32, went: u32, acked: u32| Passed { acked, went: went.wrapping_add(delta), came };
        let up_to = |at: u32, most: u32, n: u32| at.wrapping_add(n.min(most.wrapping_sub(at)));
        for (what, n) in steps {
            match what {
                0 => came = came.wrapping_add(n),
                1 => went = up_to(went, came, n),
                _ => acked = up_to(acked, went, n),
            }
            let fit = seen(came, went, acked).fits(delta);
            prop_assert_eq!(fit == Fit::Exact, came == went);
            prop_assert!(fit != Fit::Contradicted);
        }
        let off = if sign { wrong } else { -wrong };
        let wrong = delta.wrapping_add(off as u32);
        prop_assert_eq!(seen(came, came, came).fits(wrong), Fit::Contradicted);
    }
}

/// Neither end has received data that the other has not sent.
#[test]
fn the_two_ends_bear_it_out() {
    let at = |sent: u32, heard: u32| Reach { sent, heard };
    let delta = |up: i32, down: i32| Delta {
        to_server: up as u32,
        to_client: down as u32,
    };
    let (client, server) = (at(u32::MAX, 5000), at(4900, 19));
    // 20 bytes were added towards the server, and 100 towards the client.
    for (d, fits) in [
        (delta(20, 100), true),
        (delta(19, 100), false),
        (delta(20, 99), false),
        (delta(0, 0), false),
        // More data may be under way.
        (delta(21, 101), true),
    ] {
        assert_eq!(is_consistent(&client, &server, &client, &d), fits, "{d:?}");
    }
    // Data that the client has sent after the server's answer does not contradict the delta.
    let later = at(7, 6000);
    assert!(is_consistent(&client, &server, &later, &delta(12, 100)));
}

/// A middlebox that adds 20 bytes, and holds more than these all the time.
#[test]
fn a_delta_behind_held_bytes_is_doubtful_while_bytes_pass() {
    let passed = |came: u32, went: u32| Passed {
        acked: went,
        went,
        came,
    };
    let mut busy = Watched::default();
    for came in (1_000..9_000).step_by(1_000) {
        busy.look(&passed(came, came - 500 + 20), 0);
    }
    assert!(busy.is_doubtful() && !busy.is_exact());
    // A firewall that drops everything has not changed anything either.
    let mut stuck = Watched::default();
    for came in (1_000..9_000).step_by(1_000) {
        stuck.look(&passed(came, 1_000 - 500), 0);
    }
    assert!(!stuck.is_doubtful() && !stuck.is_exact());
    let mut idle_once = busy;
    idle_once.look(&passed(9_000, 9_000), 0);
    assert!(idle_once.is_exact() && !idle_once.is_doubtful());
}
