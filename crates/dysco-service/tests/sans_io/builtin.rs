//! The built-in services.

use std::net::SocketAddr;

use bytes::Bytes;
use dysco_service::builtin::{Compress, Count, Crypt, Socks};
use dysco_service::{Effect, Event, Flow, Session};
use proptest::prelude::*;

use super::{Bench, session};

/// Keys of the two directions.
const KEYS: [[u8; 32]; 2] = [[1; 32], [2; 32]];

/// Returns the two hosts of an encrypted session.
fn pair() -> [Bench; 2] {
    let [forward, back] = KEYS;
    let ends = [
        (Flow::Forward, [forward, back]),
        (Flow::Back, [back, forward]),
    ];
    ends.map(|(outward, keys)| {
        let mut bench = Bench::new();
        bench
            .stack
            .put(0, Box::new(Crypt::new(outward, keys).unwrap()))
            .unwrap();
        bench
    })
}

/// Returns the two hosts of a compressed session.
fn compressed() -> [Bench; 2] {
    [Flow::Forward, Flow::Back].map(|outward| {
        let mut bench = Bench::new();
        let compress = Compress::new(outward, Compress::LEVEL).unwrap();
        bench.stack.put(0, Box::new(compress)).unwrap();
        bench
    })
}

#[test]
fn what_does_not_become_smaller_passes_as_it_is() {
    let [mut left, mut right] = compressed();
    // Bytes without a pattern, and then text.
    let noise = noise(1_000_000);
    let text = b"one line is like the next\n".repeat(400_000);
    left.data(Flow::Forward, &noise);
    let plain = left.out[0].len();
    assert!(plain >= noise.len() && plain < noise.len() + noise.len() / 100);
    for part in text.chunks(10_000) {
        left.data(Flow::Forward, part);
    }
    let wire = std::mem::take(&mut left.out[0]);
    assert!(wire.len() - plain < text.len() * 2 / 3, "it tries again");
    for part in wire.chunks(70_000) {
        right.data(Flow::Forward, part);
    }
    assert!(right.finish()[0] == [noise, text].concat());
}

/// Few bytes restore to very many: the next element gets them as it wants them.
#[test]
fn what_restores_to_very_much_comes_in_turns() {
    const LEN: usize = 64 << 20;
    let [mut left, mut right] = compressed();
    left.data(Flow::Forward, &vec![0; LEN]);
    let wire = std::mem::take(&mut left.out[0]);
    assert!(wire.len() < LEN / 1000);
    right.data(Flow::Forward, &wire);
    assert!(right.out[0].len() <= 1 << 20 && right.held[0]);
    // Nothing comes while the next element is full.
    right.event(Event::Full(Flow::Forward));
    let before = right.out[0].len();
    right.fire();
    assert!(right.out[0].len() == before && right.timers.is_empty() && right.held[0]);
    right.event(Event::Writable(Flow::Forward));
    right.settle();
    assert!(right.out[0].len() == LEN && !right.held[0]);
    assert!(right.finish()[0].iter().all(|byte| *byte == 0));
}

/// Blocks of four bytes each restore to 128 KiB.
#[test]
fn a_record_that_restores_to_too_much_ends_the_session() {
    let [_, mut right] = compressed();
    let mut record = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58];
    record.extend([0x02, 0x00, 0x10, 0x00].repeat(1000));
    let header = (record.len() as u32).to_be_bytes();
    right.data(Flow::Forward, &[&header[..], &record].concat());
    assert!(right.out[0].len() <= 1 << 20);
    let failed =
        |effect: &Effect| matches!(effect, Effect::Fail(_, why) if why.contains("too many bytes"));
    assert!(right.rest.iter().any(failed), "{:?}", right.rest);
}

/// It is idle as long as no direction is known to gain something, and one is known not to.
#[test]
fn compress_is_idle_where_nothing_is_gained() {
    let [mut left, mut right] = compressed();
    let pass = |from: &mut Bench, to: &mut Bench, flow: Flow, bytes: &[u8]| {
        for part in bytes.chunks(50_000) {
            from.data(flow, part);
        }
        let wire = std::mem::take(&mut from.out[super::index(flow)]);
        to.data(flow, &wire);
        to.settle();
    };
    let noise = noise(1_000_000);
    let text = b"one line is like the next\n".repeat(400_000);
    assert!(!left.stack.is_idle() && !right.stack.is_idle());
    // A question is too short to show a gain.
    pass(&mut right, &mut left, Flow::Back, &text[..1000]);
    assert!(!left.stack.is_idle() && !right.stack.is_idle());
    pass(&mut left, &mut right, Flow::Forward, &noise);
    assert!(left.stack.is_idle() && right.stack.is_idle());
    pass(&mut left, &mut right, Flow::Forward, &text);
    assert!(!left.stack.is_idle(), "it compresses again");
    pass(&mut left, &mut right, Flow::Forward, &noise);
    assert!(left.stack.is_idle());
    pass(&mut right, &mut left, Flow::Back, &text);
    assert!(!right.stack.is_idle(), "the other direction gains");
    // Beside a service that is never idle, the stack is not.
    left.stack.put(0, Box::new(Count::default())).unwrap();
    pass(&mut left, &mut right, Flow::Forward, &noise);
    assert!(!left.stack.is_idle());
}

/// Returns bytes without a pattern.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

proptest! {
    #[test]
    fn what_is_compressed_is_restored(
        sent in prop::collection::vec(prop::collection::vec(0u8..4, 1..500), 1..20),
        cut in 1..40_usize,
    ) {
        for flow in Flow::SESSION {
            let [left, right] = compressed();
            let (mut from, mut to) = if flow == Flow::Forward { (left, right) } else { (right, left) };
            for bytes in &sent {
                from.data(flow, bytes);
            }
            let wire = std::mem::take(&mut from.out[super::index(flow)]);
            for part in wire.chunks(cut) {
                to.data(flow, part);
            }
            prop_assert_eq!(to.finish()[super::index(flow)].clone(), sent.concat());
        }
    }

    #[test]
    fn what_crypt_seals_its_peer_opens(
        sent in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 1..20),
        cut in 1..40_usize,
    ) {
        for flow in Flow::SESSION {
            let [left, right] = pair();
            let (mut from, mut to) = if flow == Flow::Forward { (left, right) } else { (right, left) };
            for bytes in &sent {
                from.data(flow, bytes);
            }
            let wire = std::mem::take(&mut from.out[super::index(flow)]);
            for part in wire.chunks(cut) {
                to.data(flow, part);
            }
            prop_assert_eq!(to.finish()[super::index(flow)].clone(), sent.concat());
        }
    }
}

#[test]
fn crypt_hides_the_bytes_and_a_changed_one_ends_the_session() {
    let [mut left, mut right] = pair();
    let secret = b"a password that nobody shall see";
    left.data(Flow::Forward, secret);
    let mut wire = left.out[0].clone();
    assert!(
        !wire
            .windows(8)
            .any(|part| secret.windows(8).any(|s| s == part))
    );
    wire[10] ^= 1;
    right.data(Flow::Forward, &wire);
    assert!(
        matches!(&right.rest[..], [Effect::Fail(..)]),
        "{:?}",
        right.rest
    );
    assert!(right.out[0].is_empty());
}

#[test]
fn crypt_seals_the_same_bytes_differently_each_time() {
    let [mut left, _] = pair();
    left.data(Flow::Forward, b"again");
    let first = std::mem::take(&mut left.out[0]);
    left.data(Flow::Forward, b"again");
    assert_ne!(first, left.out[0]);
}

#[test]
fn crypt_is_refused_where_the_other_end_has_no_dyscod() {
    let alone = Session {
        both_ends: false,
        ..session()
    };
    let mut bench = Bench::of(alone);
    let refused = bench
        .stack
        .put(0, Box::new(Crypt::new(Flow::Forward, KEYS).unwrap()));
    let cause = refused.unwrap_err();
    assert_eq!(
        cause.why,
        "the other end has no dyscod, and crypt needs both"
    );
    bench.data(Flow::Forward, b"goes on");
    assert_eq!(bench.out[0], b"goes on");
}

#[test]
fn count_answers_with_its_counts() {
    let mut bench = Bench::new();
    let count = bench.stack.put(0, Box::new(Count::default())).unwrap();
    bench.data(Flow::Forward, b"abc");
    bench.data(Flow::Back, b"12345");
    bench.to(count, Event::Call(Bytes::from_static(b"read")));
    let answer = Bytes::from_static(br#"{"forward":3,"back":5}"#);
    assert_eq!(bench.rest, [Effect::Answer(count, answer)]);
    bench.rest.clear();
    bench.to(count, Event::Call(Bytes::from_static(b"red")));
    let Some(Effect::Refuse(_, cause)) = bench.rest.pop() else {
        panic!("an operation that it does not have is answered");
    };
    assert_eq!(cause.to_string(), "count has no operation 'red'; use read");
}

/// Sends the proxy's answers, cut into parts of this size. Returns the session afterwards.
fn through_socks(size: usize, answers: &[&[u8]]) -> Bench {
    let mut bench = Bench::new();
    let to = SocketAddr::from(([192, 0, 2, 7], 443));
    bench.stack.put(0, Box::new(Socks::new(to))).unwrap();
    bench.collect();
    assert!(bench.held[0], "the program waits for the handshake");
    bench.data(Flow::Forward, b"hello");
    for answer in answers {
        for part in answer.chunks(size) {
            bench.data(Flow::Back, part);
        }
    }
    bench
}

#[test]
fn socks_shakes_hands_and_leaves() {
    let reply = [5, 0, 0, 1, 10, 0, 0, 9, 4, 56, b'w', b'e', b'l', b'l'];
    for size in [1, 2, 3, 100] {
        let mut bench = through_socks(size, &[&[5, 0], &reply]);
        let mut expected = vec![5, 1, 0, 5, 1, 0, 1, 192, 0, 2, 7, 1, 187];
        expected.extend(b"hello");
        assert_eq!(bench.out, [expected, b"well".to_vec()], "parts of {size}");
        assert!(bench.stack.is_empty() && !bench.held[0]);
        assert!(matches!(bench.rest.pop(), Some(Effect::Left(_))));
    }
}

#[test]
fn a_refusal_of_the_socks_proxy_ends_the_session() {
    let bench = through_socks(1, &[&[5, 0], &[5, 5, 0, 1, 0, 0, 0, 0, 0, 0]]);
    let [Effect::Fail(_, why)] = &bench.rest[..] else {
        panic!("{:?}", bench.rest);
    };
    assert_eq!(why, "the SOCKS proxy refused the connection: code 5");
    assert!(!bench.out[0].ends_with(b"hello"));
}
