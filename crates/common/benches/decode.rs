//! Benchmarks of the data that a host must decode before it knows the sender: the options of a SYN,
//! and the payload of a chain's SYN.

#![allow(missing_docs, reason = "the macros make functions without docs")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use dysco_common::chain::{Chain, Payload, WireElement};
use dysco_common::tcp::Header;
use dysco_common::{Element, FlowKey, Offer};

const KEY: [u64; 2] = [1, 2];
/// MSS, SACK permitted, timestamps, no operation, window scale: the options of Linux.
const OPTIONS: [u8; 20] = [
    2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7,
];

fn syn() -> Header {
    let mut header = Header::zeroed();
    header.0[12] = ((20 + OPTIONS.len() as u8) / 4) << 4;
    header.0[13] = 2;
    header.0[20..40].copy_from_slice(&OPTIONS);
    header
}

fn payload() -> Payload {
    let key =
        |local: [u8; 4], remote: [u8; 4]| FlowKey::new((local, 4000).into(), (remote, 80).into());
    let hosts = [[10, 0, 0, 2], [10, 0, 0, 3], [10, 0, 0, 4], [10, 0, 0, 5]];
    let mut payload = Payload::default();
    let session = key([10, 0, 0, 1], [10, 0, 0, 9]);
    payload.fill(7, &session, &session, &key([10, 0, 0, 1], hosts[0]), 0);
    if let Some(chain) = Chain::of(&hosts.map(|host| Element::Host(host.into()))) {
        payload.set_rest(&chain, &WireElement::default());
    }
    payload.mac = payload.proof(KEY);
    payload
}

fn decode(c: &mut Criterion) {
    c.bench_function("options of a SYN", |b| {
        let mut header = syn();
        let mut offer = Offer::default();
        b.iter(|| black_box(&mut header).offer(536, &mut offer));
    });
    c.bench_function("a chain's payload, read and proven", |b| {
        let bytes = payload().to_bytes();
        b.iter(|| {
            let payload = Payload::from_bytes(black_box(&bytes));
            payload.check_layout().and_then(|()| payload.check(KEY))
        });
    });
}

criterion_group!(benches, decode);
criterion_main!(benches);
