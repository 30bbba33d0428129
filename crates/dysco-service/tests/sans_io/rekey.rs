//! `crypt` gives the two directions new keys while data flows.

use bytes::Bytes;
use dysco_service::builtin::Crypt;
use dysco_service::{Effect, Event, Flow, LayerId};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Bench, index};

const KEYS: [[u8; 32]; 2] = [[1; 32], [2; 32]];

/// A host, and the direction towards the other one.
struct Host {
    bench: Bench,
    crypt: LayerId,
    outward: Flow,
    /// Bytes for the other host that it has not got.
    wire: Vec<u8>,
}

impl Host {
    fn new(outward: Flow) -> Host {
        let keys = match outward {
            Flow::Forward => KEYS,
            _ => [KEYS[1], KEYS[0]],
        };
        let mut bench = Bench::new();
        let crypt = Crypt::new(outward, keys).unwrap();
        let crypt = bench.stack.put(0, Box::new(crypt)).unwrap();
        Host {
            bench,
            crypt,
            outward,
            wire: Vec::new(),
        }
    }

    fn both() -> [Host; 2] {
        [Flow::Forward, Flow::Back].map(Host::new)
    }

    fn call(&mut self, question: &'static [u8]) -> Value {
        let call = Event::Call(Bytes::from_static(question));
        self.bench.to(self.crypt, call);
        match self.bench.rest.pop() {
            Some(Effect::Answer(_, bytes)) => serde_json::from_slice(&bytes).unwrap(),
            Some(Effect::Refuse(_, cause)) => json!({"refused": cause.why}),
            other => panic!("{other:?}"),
        }
    }

    /// Takes the bytes for the other host, at most this number of them.
    fn sends(&mut self, most: usize) -> Vec<u8> {
        let out = std::mem::take(&mut self.bench.out[index(self.outward)]);
        self.wire.extend(out);
        let most = most.min(self.wire.len());
        self.wire.drain(..most).collect()
    }
}

/// Delivers all, until neither host has anything to send.
fn deliver(hosts: &mut [Host; 2]) {
    loop {
        let wires = hosts.each_mut().map(|host| host.sends(usize::MAX));
        if wires.iter().all(Vec::is_empty) {
            return;
        }
        let [from_left, from_right] = wires;
        hosts[1].bench.data(Flow::Forward, &from_left);
        hosts[0].bench.data(Flow::Back, &from_right);
    }
}

proptest! {
    /// Whoever asks for new keys, and however often, all bytes arrive.
    #[test]
    fn all_bytes_arrive_through_any_number_of_keys(
        steps in prop::collection::vec((0..2_usize, prop::collection::vec(any::<u8>(), 1..40), 0..4_u8, 0..60_usize), 1..40),
    ) {
        let mut hosts = Host::both();
        let mut sent = [Vec::new(), Vec::new()];
        for (at, bytes, action, most) in steps {
            let outward = hosts[at].outward;
            match action {
                0 => {
                    prop_assert_eq!(hosts[at].call(b"rekey"), json!({"rekeyed": true}));
                }
                1 => {
                    let wire = hosts[at].sends(most);
                    hosts[1 - at].bench.data(outward, &wire);
                }
                _ => {
                    sent[at].extend_from_slice(&bytes);
                    hosts[at].bench.data(outward, &bytes);
                }
            }
        }
        deliver(&mut hosts);
        for host in &hosts {
            prop_assert!(host.bench.rest.is_empty(), "{:?}", host.bench.rest);
        }
        prop_assert_eq!(&hosts[1].bench.out[0], &sent[0]);
        prop_assert_eq!(&hosts[0].bench.out[1], &sent[1]);
    }
}

#[test]
fn both_directions_get_a_key_that_the_earlier_one_does_not_open() {
    let mut hosts = Host::both();
    let keys = |host: &mut Host| {
        let read = host.call(b"read");
        ["sealed", "opened"].map(|way| read[way]["keys"].as_u64().unwrap())
    };
    assert_eq!(hosts[0].call(b"rekey"), json!({"rekeyed": true}));
    deliver(&mut hosts);
    for host in &mut hosts {
        assert_eq!(keys(host), [1, 1]);
    }
    hosts[0].bench.data(Flow::Forward, b"new");
    let wire = hosts[0].sends(usize::MAX);
    let mut earlier = Host::new(Flow::Back);
    earlier.bench.data(Flow::Forward, &wire);
    assert!(matches!(&earlier.bench.rest[..], [Effect::Fail(..)]));
    hosts[1].bench.data(Flow::Forward, &wire);
    assert_eq!(hosts[1].bench.out[0], b"new");
}

#[test]
fn a_forged_next_key_ends_the_session() {
    let [_, mut right] = Host::both();
    let record = [&[0x80, 0][..], &[0; 16]].concat();
    right.bench.data(Flow::Forward, &record);
    assert!(matches!(&right.bench.rest[..], [Effect::Fail(..)]));
}

#[test]
fn a_direction_that_has_ended_gets_no_key() {
    let mut hosts = Host::both();
    hosts[1].bench.event(Event::Fin(Flow::Back));
    assert_eq!(hosts[1].call(b"rekey"), json!({"rekeyed": false}));
    assert_eq!(hosts[0].call(b"rekey"), json!({"rekeyed": true}));
    deliver(&mut hosts);
    hosts[0].bench.data(Flow::Forward, b"goes on");
    deliver(&mut hosts);
    assert_eq!(hosts[1].bench.out[0], b"goes on");
    assert_eq!(hosts[1].bench.ends[1], 1);
    assert!(hosts[1].call(b"sing")["refused"].is_string());
}
