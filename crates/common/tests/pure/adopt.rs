//! Adoption: an entry made from a socket equals the one that its SYNs would have made.

use dysco_common::adopt::{NotAdopted, Socket, tcp_state};
use dysco_common::rule::{Rule, wanted};
use dysco_common::session::{Session, life, offer};
use dysco_common::{Addr, FlowKey, State};
use proptest::prelude::*;

/// A FIN on the session's own five-tuple.
const CLOSED: u8 = life::SEEN | life::OLD_PATH;

fn key() -> FlowKey {
    FlowKey::new(
        "10.0.0.1:40000".parse().unwrap(),
        "10.0.0.2:80".parse().unwrap(),
    )
}

/// The life of a session, and the counts that the kernel would keep of it.
#[derive(Clone, Copy, Debug)]
struct Life {
    opened_here: bool,
    isns: [u32; 2],
    /// Bytes written, sent, acknowledged and retransmitted.
    written: u64,
    sent: u64,
    acked: u64,
    again: u64,
    received: u64,
    /// Received bytes that are not acknowledged yet.
    unacked: u32,
    fin: Fin,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fin {
    None,
    Queued,
    Sent,
    Acked,
    Received,
}

fn socket(l: &Life) -> Socket {
    let (fin_written, fin_sent, fin_acked) = match l.fin {
        Fin::None | Fin::Received => (0, 0, 0),
        Fin::Queued => (1, 0, 0),
        Fin::Sent => (1, 1, 0),
        Fin::Acked => (1, 1, 1),
    };
    let number = |isn: u32, bytes: u64| isn.wrapping_add(1).wrapping_add(bytes as u32);
    let received = l.received + u64::from(l.fin == Fin::Received);
    Socket {
        key: key(),
        state: match l.fin {
            Fin::None => tcp_state::ESTABLISHED,
            Fin::Queued | Fin::Sent => tcp_state::FIN_WAIT1,
            Fin::Acked => tcp_state::FIN_WAIT2,
            Fin::Received => tcp_state::CLOSE_WAIT,
        },
        snd_una: number(l.isns[0], l.acked + fin_acked),
        snd_nxt: number(l.isns[0], l.sent + fin_sent),
        write_seq: number(l.isns[0], l.written + fin_written),
        rcv_nxt: number(l.isns[1], received),
        rcv_wup: number(l.isns[1], received).wrapping_sub(l.unacked),
        bytes_acked: l.acked + fin_acked + u64::from(l.opened_here),
        bytes_received: received,
        bytes_sent: l.sent + l.again,
        bytes_retrans: l.again,
        ..Socket::default()
    }
}

prop_compose! {
    fn any_life()(
        opened_here in any::<bool>(),
        isns in any::<[u32; 2]>(),
        // Beyond 32 bits, too: the numbers wrap around, and the counts do not.
        bytes in [0..1u64 << 40, 0..1u64 << 40, 0..1u64 << 40],
        window in (0..1u64 << 30, 0..1u64 << 30),
        unacked in 0..1u32 << 30,
        kind in 0..5,
    ) -> Life {
        let [acked, received, again] = bytes;
        // A FIN is sent after all written data, and acknowledged after it.
        let fin = [Fin::None, Fin::Queued, Fin::Sent, Fin::Acked, Fin::Received][kind as usize];
        let unsent = match fin { Fin::Sent | Fin::Acked => 0, _ => 1 + window.1 };
        let flying = if fin == Fin::Acked { 0 } else { window.0 };
        let sent = acked + flying;
        Life { opened_here, isns, acked, sent, written: sent + unsent, again, received, unacked, fin }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn numbers_come_back(l in any_life()) {
        let k = socket(&l);
        let s = k.session(7, !l.opened_here).unwrap();
        prop_assert_eq!([s.local.isn, s.remote.isn], l.isns);
        prop_assert_eq!(s.life.opened_here != 0, l.opened_here);
        prop_assert_eq!([s.snd_max, s.rcv_ack, s.rcv_max, s.snd_ack], [k.snd_nxt, k.snd_una, k.rcv_nxt, k.rcv_wup]);
        prop_assert_eq!(s.snd_seen, s.snd_max);
        let fin_out = matches!(l.fin, Fin::Sent | Fin::Acked);
        prop_assert_eq!((s.life.fin_out, s.life.fin_in), (CLOSED * u8::from(fin_out), CLOSED * u8::from(l.fin == Fin::Received)));
        // As the programs count: a FIN is a byte.
        prop_assert_eq!(s.bytes_out, l.sent + u64::from(fin_out));
        prop_assert_eq!(s.bytes_in, l.received + u64::from(l.fin == Fin::Received));
        prop_assert_eq!((s.created_ns, s.state), (7, State::Adopted as u32));
        prop_assert!(s.is_adopted());
    }
}

fn idle(opened_here: bool) -> Socket {
    socket(&Life {
        opened_here,
        isns: [u32::MAX, 5000],
        written: 100,
        sent: 100,
        acked: 90,
        again: 20,
        received: 7,
        unacked: 3,
        fin: Fin::None,
    })
}

fn offers(k: Socket) -> (dysco_common::Offer, dysco_common::Offer) {
    let Session { local, remote, .. } = k.session(1, false).unwrap();
    (local, remote)
}

#[test]
fn both_ends_are_said_to_have_offered_what_was_agreed_on() {
    let k = Socket {
        advmss: 1448,
        mss_clamp: 1400,
        wscale_ok: true,
        snd_wscale: 7,
        rcv_wscale: 9,
        sack_ok: true,
        tstamp_ok: true,
        ts_clock: 11,
        ts_recent: 12,
        ecn_ok: true,
        ..idle(true)
    };
    let (local, remote) = offers(k);
    let all = offer::SEEN | offer::WSCALE | offer::SACK | offer::TIMESTAMPS | offer::ECN;
    assert_eq!((local.mss, local.wscale, local.flags), (1460, 9, all));
    assert_eq!((remote.mss, remote.wscale, remote.flags), (1400, 7, all));
    let s = k.session(1, false).unwrap();
    assert_eq!((s.tsval_out, s.tsval_in), (11, 12));

    // An option that was not agreed on has no effect.
    let plain = Socket {
        wscale_ok: false,
        sack_ok: false,
        tstamp_ok: false,
        ecn_ok: false,
        ..k
    };
    let (local, remote) = offers(plain);
    assert_eq!(
        (local.mss, local.wscale, local.flags),
        (1448, 0, offer::SEEN)
    );
    assert_eq!((remote.wscale, remote.flags), (0, offer::SEEN));
    let s = plain.session(1, false).unwrap();
    assert_eq!((s.tsval_out, s.tsval_in), (0, 0));
    let (local, remote) = offers(Socket { foreign: true, ..k });
    assert!(local.flags & remote.flags & offer::FOREIGN != 0);
}

#[test]
fn who_opened_it_is_known_by_the_count_of_its_syn() {
    let opener = |k: Socket, listened| k.session(1, listened).map(|s| s.life.opened_here);
    assert_eq!(opener(idle(true), true), Ok(1));
    assert_eq!(opener(idle(false), false), Ok(0));
    // A segment that never left was counted. Only a listener shows the opener then.
    let odd = |opened| Socket {
        bytes_sent: idle(opened).bytes_sent + 900,
        ..idle(opened)
    };
    assert_eq!(opener(odd(false), true), Ok(0));
    assert_eq!(opener(odd(false), false), Err(NotAdopted::Opener));
    let bound = Socket {
        bound: true,
        ..odd(true)
    };
    assert_eq!(opener(bound, true), Ok(1));
    assert_eq!(bound.session(1, true).unwrap().local.isn, u32::MAX);
}

#[test]
fn what_cannot_be_removed_is_left() {
    let why = |k: Socket| k.session(1, true).unwrap_err();
    for state in [2, 3, 6, 7, 9, 10, 11, 12] {
        let k = Socket {
            state,
            ..idle(true)
        };
        assert_eq!(why(k), NotAdopted::State, "{state}");
    }
    let k = Socket {
        repair: true,
        ..idle(true)
    };
    assert_eq!(why(k), NotAdopted::Repair);
    let k = Socket {
        syn_data: true,
        state: tcp_state::CLOSE_WAIT,
        ..idle(false)
    };
    assert_eq!(why(k), NotAdopted::Opening);
}

#[test]
fn rules_are_held_against_the_end_that_was_opened_to() {
    let rule = Rule {
        prefix: Addr::v4([10, 0, 0, 2]),
        mask: Addr::new([0xff; 16]),
        first_port: 80,
        last_port: 80,
    };
    assert!(wanted(&[], &key(), true) && wanted(&[], &key(), false));
    assert!(wanted(&[rule], &key(), true));
    assert!(!wanted(&[rule], &key(), false));
    let other = Rule {
        first_port: 81,
        last_port: 90,
        ..rule
    };
    assert!(!wanted(&[other], &key(), true));
    assert!(wanted(&[other, rule], &key(), true));
}
