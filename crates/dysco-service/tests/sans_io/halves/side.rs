//! The stack of one host, with one half of each service, and what it sends to the other host.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use dysco_explain::Cause;
use dysco_service::builtin::Crypt;
use dysco_service::{
    Change, Effect, Ends, Event, Flow, LayerId, Needs, Out, Service, Session, Stack,
};

use crate::index;

/// A half whose change of a byte depends on the number of bytes before it.
struct Rolling {
    outward: Flow,
    key: u8,
    at: [u8; 2],
}

impl Service for Rolling {
    fn name(&self) -> &'static str {
        "rolling"
    }

    fn needs(&self, _: &Session) -> Result<Needs, Cause> {
        Ok(Needs {
            ends: Ends::Pair,
            ..Needs::default()
        })
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        let Event::Data { flow, bytes } = event else {
            return event.pass_on(out);
        };
        let (key, at) = (self.key, &mut self.at[index(flow)]);
        let sign = if flow == self.outward { 1 } else { 255 };
        let change = |byte: &u8| {
            *at = at.wrapping_add(1);
            byte.wrapping_add(at.wrapping_add(key).wrapping_mul(sign))
        };
        out.send(flow, bytes.iter().map(change).collect::<Vec<u8>>());
    }
}

pub(super) fn half(key: u8, outward: Flow) -> Box<dyn Service> {
    if key.is_multiple_of(2) {
        let at = [0; 2];
        return Box::new(Rolling { outward, key, at });
    }
    let keys = match outward {
        Flow::Back => [[2; 32], [1; 32]],
        _ => [[1; 32], [2; 32]],
    };
    Box::new(Crypt::new(outward, keys).unwrap())
}

/// A part of the stream from one host to the other one.
pub(super) enum Item {
    Bytes(Bytes),
    Cut(u8, Change, u64),
    End,
}

/// The stack of one host.
pub(super) struct Side {
    pub stack: Stack,
    pub outward: Flow,
    pub halves: BTreeMap<u8, LayerId>,
    /// Bytes for the program, and the number of ends.
    pub out: Vec<u8>,
    pub ends: usize,
    /// True if the stack wants no bytes from the program, or from the other host.
    pub held: [bool; 2],
    /// The end of the program has come, or that of the other host.
    pub closes: bool,
    /// The end was sent to the other host.
    pub ended: bool,
    pub tunnel: VecDeque<Item>,
}

impl Side {
    pub(super) fn new(outward: Flow) -> Side {
        let mut side = Side {
            stack: Stack::new(crate::session()),
            outward,
            halves: BTreeMap::new(),
            out: Vec::new(),
            ends: 0,
            held: [false; 2],
            closes: false,
            ended: false,
            tunnel: VecDeque::new(),
        };
        // The keys of the tests begin with 1.
        let first = side.stack.put(0, half(0, outward)).unwrap();
        side.halves.insert(0, first);
        side
    }

    pub(super) fn enter(&mut self, key: u8, told: Option<u64>) {
        let half = half(key, self.outward);
        let layer = self.stack.enter(half, self.outward, told).unwrap();
        self.halves.insert(key, layer);
        self.collect();
    }

    pub(super) fn collect(&mut self) {
        while let Some(effect) = self.stack.effect() {
            let named = |layer: LayerId| {
                let mut halves = self.halves.iter();
                halves
                    .find(|(_, known)| **known == layer)
                    .map(|(key, _)| *key)
            };
            match effect {
                Effect::Send(None, flow, bytes) if flow == self.outward => {
                    self.tunnel.push_back(Item::Bytes(bytes));
                }
                Effect::Send(None, _, bytes) => self.out.extend_from_slice(&bytes),
                Effect::Fin(None, flow) if flow == self.outward => {
                    self.ended = true;
                    self.tunnel.push_back(Item::End);
                }
                Effect::Fin(None, _) => self.ends += 1,
                // Nothing follows the end.
                Effect::Cut(..) if self.ended => {}
                Effect::Cut(layer, change, at) => {
                    self.tunnel
                        .push_back(Item::Cut(named(layer).unwrap(), change, at));
                }
                Effect::Left(left) => {
                    assert_eq!(left.delta, [0; 2]);
                    let key = named(left.layer).unwrap();
                    self.halves.remove(&key);
                }
                Effect::Hold(None, flow, on) => self.held[index(flow)] = on,
                Effect::Answer(..) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub(super) fn event(&mut self, event: Event) {
        self.stack.event(event);
        self.collect();
    }

    pub(super) fn part(&mut self, key: u8) {
        if let Some(layer) = self.halves.get(&key) {
            self.stack.part(*layer, self.outward);
            self.collect();
        }
    }

    /// Takes what the other host has sent.
    pub(super) fn arrives(&mut self, item: Item) {
        let inward = self.outward.reverse();
        match item {
            Item::Bytes(bytes) => self.event(Event::Data {
                flow: inward,
                bytes,
            }),
            Item::End => {
                self.closes = true;
                self.event(Event::Fin(inward));
            }
            Item::Cut(key, change, at) => match (self.halves.get(&key), change) {
                (None, Change::Enters) => self.enter(key, Some(at)),
                (Some(layer), _) => {
                    self.stack.told(*layer, self.outward, change, at).unwrap();
                    self.collect();
                }
                (None, Change::Leaves) => panic!("{key} leaves twice"),
            },
        }
    }

    /// The program sends.
    pub(super) fn sends(&mut self, bytes: &[u8]) {
        let (flow, bytes) = (self.outward, Bytes::copy_from_slice(bytes));
        self.event(Event::Data { flow, bytes });
    }

    /// The program ends its direction.
    pub(super) fn ends(&mut self) {
        self.closes = true;
        self.event(Event::Fin(self.outward));
    }

    pub(super) fn is_settled(&self) -> bool {
        self.halves.values().all(|one| self.stack.has_entered(*one))
    }
}
