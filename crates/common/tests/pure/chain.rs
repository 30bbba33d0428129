//! The payload of a chain's SYN, its proof, and the choice of a chain.

use dysco_common::chain::{self, Chain, MAX_CHAIN, PAYLOAD, Payload, Unfit, WireElement};
use dysco_common::policy::{
    Contested, Families, InForce, MAX_GENERATION, MAX_RULES, MAX_RUNS, PolicyRule, holds,
    rule_name, run_name, run_of, unheld,
};
use dysco_common::siphash::{self, Key};
use dysco_common::{Addr, FlowKey};
use proptest::prelude::*;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

/// The published vectors of SipHash-2-4 (key 00 01 … 0f, input 00 01 …) whose input consists of
/// whole words.
#[test]
fn siphash_gives_the_published_vectors() {
    let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
    let vectors: [(usize, u64); 3] = [
        (0, 0x726f_db47_dd0e_0e31),
        (8, 0x93f5_f579_9a93_2462),
        (16, 0x3f2a_cc7f_57c2_9bdb),
    ];
    for (len, want) in vectors {
        let bytes: Vec<u8> = (0..len as u8).collect();
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|w| u64::from_le_bytes(w.try_into().unwrap()))
            .collect();
        assert_eq!(siphash::hash(key, &words), want, "{len} bytes");
    }
}

fn flow() -> impl Strategy<Value = FlowKey> {
    let v4 = any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b)));
    let v6 = any::<([u16; 8], [u16; 8])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b)));
    (prop_oneof![v4, v6], (1..=u16::MAX, 1..=u16::MAX)).prop_filter_map(
        "families",
        |((a, b), (p, q))| {
            let key = FlowKey::new(SocketAddr::new(a, p), SocketAddr::new(b, q));
            (key.local.is_v6() == key.remote.is_v6()).then_some(key)
        },
    )
}

prop_compose! {
    fn payload()(
        session in flow(),
        origin in flow(),
        subsession in flow(),
        hosts in proptest::collection::vec(any::<[u8; 4]>(), 1..=MAX_CHAIN),
        key in any::<Key>(),
        key_id in any::<u64>(),
        sent in any::<u32>(),
    ) -> (Payload, Key, Vec<Addr>) {
        let hosts: Vec<Addr> = hosts
            .into_iter()
            .map(|h| if session.is_v6() {
                Addr::new([0x20, 1, h[0], h[1], h[2], h[3], 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
            } else {
                Addr::v4(h)
            })
            .collect();
        // A NAT does not change the family.
        let origin = if origin.is_v6() == session.is_v6() { origin } else { session };
        let mut payload = Payload::default();
        payload.fill(key_id, &session, &origin, &subsession, sent);
        payload.set_rest(&Chain::of(&hosts).unwrap(), &WireElement::default());
        payload.mac = payload.proof(key);
        (payload, key, hosts)
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read((payload, key, hosts) in payload()) {
        let read = Payload::from_bytes(&payload.to_bytes());
        prop_assert_eq!(read, payload);
        prop_assert_eq!(read.check_layout(), Ok(()));
        prop_assert_eq!(read.check(key), Ok(()));
        let mut chain = Chain::default();
        read.chain(&mut chain);
        let rest: Vec<Addr> = chain.elements().iter().map(|e| e.host).collect();
        prop_assert_eq!(&rest[..], &hosts[1..]);
    }

    /// A payload with one changed bit, or another key, is refused.
    #[test]
    fn what_is_altered_is_found((payload, key, _) in payload(), at in 0..PAYLOAD, bit in 0u8..8) {
        let mut bytes = payload.to_bytes();
        bytes[at] ^= 1 << bit;
        let altered = Payload::from_bytes(&bytes);
        let layout = altered.check_layout();
        let proof = altered.check(key);
        prop_assert!(layout == Err(Unfit::Layout) || proof == Err(Unfit::Proof));
        prop_assert_eq!(payload.check([key[0] ^ 1, key[1]]), Err(Unfit::Proof));
    }

    /// Noise of any kind is refused, and does no harm.
    #[test]
    fn noise_is_refused(bytes in proptest::collection::vec(any::<u8>(), PAYLOAD), key in any::<Key>()) {
        let bytes: [u8; PAYLOAD] = bytes.try_into().unwrap();
        let payload = Payload::from_bytes(&bytes);
        prop_assert!(payload.check_layout().is_err() || payload.check(key).is_err());
    }

    /// A rule against an obvious reference that uses bits and strings.
    #[test]
    fn a_rule_matches_as_its_prefixes_say(
        session in flow(),
        from in flow(),
        lens in (0u32..=128, 0u32..=128),
        near in any::<bool>(),
        ports in any::<(u16, u16)>(),
        families in 0u8..3,
    ) {
        let base = if near { session } else { from };
        let rule = PolicyRule {
            source: base.local.masked(&mask(lens.0)),
            source_mask: mask(lens.0),
            destination: base.remote.masked(&mask(lens.1)),
            destination_mask: mask(lens.1),
            first_port: ports.0,
            last_port: ports.1,
            families,
            ..PolicyRule::default()
        };
        let port = session.remote().port();
        let family = match families {
            f if f == Families::V4 as u8 => !session.is_v6(),
            f if f == Families::V6 as u8 => session.is_v6(),
            _ => true,
        };
        let want = bits(&session.local)[..lens.0 as usize] == bits(&base.local)[..lens.0 as usize]
            && bits(&session.remote)[..lens.1 as usize] == bits(&base.remote)[..lens.1 as usize]
            && (ports.0..=ports.1).contains(&port)
            && family;
        prop_assert_eq!(rule.matches(&session), want);
    }
}

fn mask(len: u32) -> Addr {
    let bits = u128::MAX.checked_shl(128 - len).unwrap_or(0);
    Addr::new(bits.to_be_bytes())
}

fn bits(addr: &Addr) -> String {
    addr.octets().iter().map(|b| format!("{b:08b}")).collect()
}

#[test]
fn no_two_slots_share_their_ports() {
    let mut seen = HashSet::new();
    for slot in 0..50_000 {
        let (source, destination) = chain::ports(slot, 61_000, 1_000, 80);
        assert!((61_000..62_000).contains(&source));
        assert!(seen.insert((source, destination)), "slot {slot}");
        assert!(slot >= 1_000 || destination == 80);
    }
}

#[test]
fn a_chain_has_a_limit_and_the_word_in_force_its_halves() {
    let host = Addr::v4([10, 0, 0, 1]);
    assert!(Chain::of(&[host; MAX_CHAIN]).is_some());
    assert!(Chain::of(&[host; MAX_CHAIN + 1]).is_none());
    let now = InForce {
        generation: 77,
        first: 256,
    };
    assert_eq!(InForce::of(now.word()), now);
}

/// Also a rule of the previous policy, which a program may have found a moment ago.
#[test]
fn a_rule_is_found_by_its_name() {
    for first in [0, MAX_RULES as u32] {
        let now = InForce {
            generation: 77,
            first,
        };
        for index in [0, 255] {
            assert_eq!(now.place(rule_name(77, index)), first + index);
            let before = now.place(rule_name(76, index));
            assert_eq!(before, MAX_RULES as u32 - first + index);
        }
        let rule = PolicyRule {
            generation: 77,
            ..PolicyRule::default()
        };
        assert!(rule.is_named(rule_name(77, 5)) && !rule.is_named(rule_name(76, 5)));
        assert!(!PolicyRule::default().is_named(0));
        // Whether sessions wait does not change the rule that the name leads to.
        let name = unheld(rule_name(77, 5));
        assert!(rule.is_named(name) && now.place(name) == first + 5);
        assert!(holds(rule_name(77, 5)) && !holds(name) && !holds(0));
    }
}

#[test]
fn a_run_has_its_number_whether_its_sessions_wait_or_not() {
    for run in [0, 1, MAX_RUNS - 1] {
        let name = run_name(run);
        assert!(holds(name) && !holds(unheld(name)));
        assert_eq!([name, unheld(name)].map(run_of), [Some(run); 2]);
    }
    // The last policies whose names are not those of runs.
    for name in [rule_name(MAX_GENERATION - 4, 255), rule_name(1, 0)] {
        assert_eq!([name, unheld(name)].map(run_of), [None; 2]);
    }
}

#[test]
fn a_word_names_a_run_and_the_rule_that_it_contends_with() {
    for run in [0, 1, MAX_RUNS - 1] {
        for name in [run_name(run), unheld(run_name(run))] {
            let of = |rule| Contested::of(Contested::word(name, rule));
            assert_eq!(of(0), Contested { run, rule: None });
            for (generation, index) in [(1, 0), (0x2001, 255), (MAX_GENERATION, 7)] {
                let rule = Some((index, generation & Contested::GENERATION));
                assert_eq!(of(rule_name(generation, index)), Contested { run, rule });
            }
        }
    }
}

proptest! {
    /// If both ends open a session at once, each host decides alike about both SYNs.
    #[test]
    fn of_two_openings_at_once_one_stays(key in flow()) {
        let mirrored = FlowKey::new(key.remote(), key.local());
        let (here, there) = (key.local(), key.remote());
        prop_assert_eq!(key.prevails(), here < there);
        prop_assert_eq!(mirrored.prevails(), there < here);
    }
}
