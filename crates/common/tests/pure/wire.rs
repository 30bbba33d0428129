//! A session as on the wire, against the translation of its segments.

use dysco_common::flow::{Addr, FlowKey};
use dysco_common::session::translation::STRIP_TIMESTAMPS;
use dysco_common::session::{Alias, Offer, Two, offer};
use dysco_common::tcp::Segment;
use dysco_common::{Session, State, Translation};
use proptest::prelude::*;

fn key(last: u8) -> FlowKey {
    FlowKey {
        local: Addr::v4([10, 0, 0, 1]),
        remote: Addr::v4([10, 0, 0, last]),
        local_port: 40_000u16.to_be(),
        remote_port: 80u16.to_be(),
    }
}

/// Returns the offers of two ends that agree on these options.
fn agreed(flags: u8, scales: [u8; 2]) -> [Offer; 2] {
    scales.map(|wscale| Offer {
        wscale,
        flags: flags | offer::SEEN,
        ..Offer::default()
    })
}

prop_compose! {
    /// Returns a session that a middlebox has left, with the scales of its ends.
    fn left()(n in any::<[u32; 10]>(), own in [0u8..=14, 0u8..=14], peer in [0u8..=14, 0u8..=14]) -> Session {
        let [local, remote] = agreed(offer::WSCALE | offer::SACK | offer::TIMESTAMPS, own);
        Session {
            state: State::NewPath as u32,
            key: key(2),
            path: key(3),
            snd_max: n[0], snd_ack: n[1], rcv_max: n[2], rcv_ack: n[3],
            tsval_out: n[4], tsval_in: n[5],
            local, remote,
            translation: Translation {
                seq_out: n[6], seq_in: n[7], ts_out: n[8], ts_in: n[9],
                wscale_local: own[0], wscale_local_at_peer: peer[0],
                wscale_remote_at_peer: peer[1], wscale_remote: own[1],
                flags: 0,
            },
            ..Session::default()
        }
    }
}

/// Returns a segment without data. Only its numbers matter.
pub(crate) fn segment(seq: u32, ack: u32) -> Segment {
    Segment {
        seq,
        ack,
        len: 0,
        window: 1,
        flags: 0,
    }
}

proptest! {
    /// The next segment of the session's own end continues the numbers that a host on the path has
    /// seen.
    #[test]
    fn numbers_are_those_of_its_segments(s in left()) {
        let (t, wire) = (s.translation, s.on_wire());
        let out = t.outgoing(&segment(s.snd_max, s.rcv_max), &s.path);
        prop_assert_eq!((out.seq, out.ack), (wire.snd_max, wire.rcv_max));
        prop_assert_eq!(out.tsval_add.wrapping_add(s.tsval_out), wire.tsval_out);
        prop_assert_eq!(out.tsecr_add.wrapping_add(s.tsval_in), wire.tsval_in);
        // A segment from the wire has the numbers of the session's own end.
        let back = t.incoming(&segment(wire.rcv_max, wire.rcv_ack), &s.key);
        prop_assert_eq!((back.seq, back.ack), (s.rcv_max, s.rcv_ack));
        let acked = t.outgoing(&segment(s.local.isn, s.snd_ack), &s.path);
        prop_assert_eq!((acked.seq, acked.ack), (wire.local.isn, wire.snd_ack));
        prop_assert_eq!(t.incoming(&segment(wire.remote.isn, 0), &s.key).seq, s.remote.isn);
    }

    /// Each number is converted to the wire and back.
    #[test]
    fn each_number_has_its_way_back(s in left(), number in any::<u32>()) {
        let wire = s.on_wire();
        prop_assert_eq!(s.sent_on_wire(s.snd_max), wire.snd_max);
        prop_assert_eq!(s.acked_off_wire(s.sent_on_wire(number)), number);
        prop_assert_eq!(s.received_off_wire(wire.rcv_max), s.rcv_max);
    }

    /// A window has the same number of bytes on the wire.
    #[test]
    fn scales_are_those_of_the_wire(s in left()) {
        let wire = s.on_wire();
        prop_assert_eq!(wire.local_wscale(), s.translation.wscale_local_at_peer);
        prop_assert_eq!(wire.remote_wscale(), s.translation.wscale_remote_at_peer);
    }

    /// A host that does not translate has its own scales on the wire.
    #[test]
    fn who_does_not_translate_is_as_the_wire(s in left()) {
        let s = Session { translation: Translation::default(), ..s };
        let wire = s.on_wire();
        prop_assert_eq!((wire.snd_max, wire.rcv_max), (s.snd_max, s.rcv_max));
        prop_assert_eq!((wire.local_wscale(), wire.remote_wscale()), (s.local_wscale(), s.remote_wscale()));
        prop_assert_eq!(wire.key, s.path);
    }
}

proptest! {
    /// A name that differs in one address, or in ports alone, is found from either side. A name
    /// that differs in both addresses is not stored.
    #[test]
    fn a_session_behind_a_nat_keeps_its_name(ends in any::<[[u8; 4]; 2]>(), which in 0u8..4, ports in any::<[u16; 4]>()) {
        let [local, remote] = ends.map(Addr::v4);
        let other = |end: [u8; 4]| Addr::v4([end[0] ^ 1, end[1], end[2], end[3]]);
        let name = FlowKey { local, remote, local_port: ports[0] | 1, remote_port: ports[1] | 1 };
        let key = FlowKey {
            local: if which & 1 != 0 { other(ends[0]) } else { local },
            remote: if which & 2 != 0 { other(ends[1]) } else { remote },
            local_port: ports[2],
            remote_port: ports[3],
        };
        let alias = Alias::behind_nat(&key, &name);
        let s = Session { key, alias, ..Session::default() };
        let differs = which != 3 && key != name;
        prop_assert_eq!(s.is_behind_nat(), differs);
        prop_assert_eq!(s.name(), if differs { name } else { key });
        // The session's wire has the numbers and the five-tuple of its stack.
        prop_assert_eq!((s.on_wire().key, s.was_bypassed()), (key, false));
        let mut other_side = [FlowKey::default(); 2];
        key.mirror_to(&mut other_side[0]);
        name.mirror_to(&mut other_side[1]);
        let there = Session { key: other_side[0], alias: alias.mirrored(), ..s };
        prop_assert_eq!(there.name(), if differs { other_side[1] } else { other_side[0] });
    }
}

#[test]
fn the_name_stays_when_the_path_changes() {
    let s = Session {
        state: State::NewPath as u32,
        key: key(2),
        path: key(3),
        ..Session::default()
    };
    assert_eq!((s.alias(), s.name()), (Some(key(3)), key(3)));
    let chained = Two {
        chained: 2,
        ..Two::default()
    };
    let given = Session {
        path: key(4),
        alias: Alias::of(&key(3)),
        two: chained,
        ..s
    };
    assert_eq!(given.name(), key(3));
    assert_eq!(given.on_wire().key, key(3));
    // A session that was steered from its SYN on, or that has a proxy, has its own name.
    let steered = Session { two: chained, ..s };
    let tracked = Session {
        state: State::Tracked as u32,
        ..s
    };
    for s in [steered, tracked] {
        assert_eq!((s.alias(), s.name()), (None, key(2)));
        assert_eq!(s.on_wire().key, key(2));
    }
}

/// The options of the wire are those of the other session, if one session lacks an option.
#[test]
fn one_side_alone_has_an_option() {
    let session = |flags, scale, t| {
        let [local, remote] = agreed(flags, [scale; 2]);
        Session {
            state: State::NewPath as u32,
            key: key(2),
            path: key(3),
            local,
            remote,
            translation: t,
            ..Session::default()
        }
    };
    let strip = Translation {
        flags: STRIP_TIMESTAMPS,
        ..Translation::default()
    };
    let has = |s: Session, flag| s.local.flags & s.remote.flags & flag != 0;
    let here = session(offer::TIMESTAMPS, 0, strip).on_wire();
    assert!(!has(here, offer::TIMESTAMPS));
    let there = session(offer::SACK, 0, strip).on_wire();
    assert!(has(there, offer::TIMESTAMPS) && has(there, offer::SACK));
    // No scale is the same as scale 0.
    let none = session(offer::SACK, 0, Translation::default());
    assert!(!has(none, offer::WSCALE) && has(none.on_wire(), offer::WSCALE));
    assert_eq!(none.on_wire().local_wscale(), 0);
    let scaled_there = Translation {
        wscale_local_at_peer: 9,
        ..Translation::default()
    };
    let wire = session(0, 5, scaled_there).on_wire();
    assert_eq!(wire.local_wscale(), 9);
}
