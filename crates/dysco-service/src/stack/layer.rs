//! One service of a stack, and the events that wait in front of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use crate::{Event, Flow, FlowId, LayerId, Service};

use super::gate::Gate;
use super::index;

pub(super) struct Layer {
    pub id: LayerId,
    pub service: Box<dyn Service>,
    /// Events that no hold delays.
    pub events: VecDeque<Event>,
    /// Bytes and ends, by flow.
    waiting: BTreeMap<Flow, VecDeque<Waiting>>,
    held: BTreeSet<Flow>,
    /// Flows whose end has arrived.
    finished: BTreeSet<Flow>,
    /// Flows that the service has ended.
    pub ended: BTreeSet<Flow>,
    /// Connections that the service has opened.
    pub flows: BTreeSet<FlowId>,
    /// Name of the next connection.
    pub next_flow: u32,
    /// Number of bytes that the service sent, less those that it was given, by direction.
    pub moved: [i64; 2],
    /// True if the service is one half of a service at both ends.
    pub is_half: bool,
    /// Gates of both directions.
    pub gates: [Gate; 2],
    /// Number of bytes that the service got, or that wait for it, by direction.
    pub served: [u64; 2],
    /// Number of bytes that the service sent, by direction.
    pub sent: [u64; 2],
    /// The step of a half that leaves.
    pub leaving: Option<Leaving>,
}

/// Bytes or an end in front of a service.
struct Waiting {
    event: Event,
    /// False if the bytes or the end pass by the service.
    served: bool,
}

/// A step of a half that leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leaving {
    /// It was asked to leave this direction, which is the direction towards the other host.
    Asked(Flow),
    /// It has left this direction. The last byte of the other direction is unknown yet, or has not
    /// reached the service.
    Half(Flow),
    /// It was asked to leave the other direction as well. It may still send its remaining bytes
    /// there.
    Last(Flow),
}

impl Layer {
    pub(super) fn new(id: LayerId, service: Box<dyn Service>, is_half: bool) -> Layer {
        Layer {
            id,
            service,
            events: VecDeque::new(),
            waiting: BTreeMap::new(),
            held: BTreeSet::new(),
            finished: BTreeSet::new(),
            ended: BTreeSet::new(),
            flows: BTreeSet::new(),
            next_flow: 0,
            moved: [0; 2],
            is_half,
            gates: [Gate::OPEN; 2],
            served: [0; 2],
            sent: [0; 2],
            leaving: None,
        }
    }

    /// Queues an event.
    pub(super) fn take(&mut self, event: Event) {
        match event {
            Event::Data { flow, bytes } if flow.is_session() => self.take_bytes(flow, bytes),
            Event::Data { flow, .. } => self.wait(flow, event, true),
            Event::Fin(flow) => {
                let served = !flow.is_session() || self.gates[index(flow)].gives_end();
                self.wait(flow, event, served);
            }
            _ => self.events.push_back(event),
        }
    }

    /// Divides bytes of the session into bytes that the service gets, and bytes that pass by it.
    fn take_bytes(&mut self, flow: Flow, mut bytes: Bytes) {
        while !bytes.is_empty() {
            let (taken, served) = self.gates[index(flow)].take(bytes.len());
            if served {
                self.served[index(flow)] += taken as u64;
            }
            let bytes = bytes.split_to(taken);
            self.wait(flow, Event::Data { flow, bytes }, served);
        }
    }

    fn wait(&mut self, flow: Flow, event: Event, served: bool) {
        let queue = self.waiting.entry(flow).or_default();
        queue.push_back(Waiting { event, served });
    }

    /// Returns the next event, and true if the service gets it. Other events pass by.
    pub(crate) fn next_event(&mut self) -> Option<(Event, bool)> {
        if let Some(event) = self.events.pop_front() {
            return Some((event, true));
        }
        let held = &self.held;
        let queues = self.waiting.iter_mut();
        let mut wanted = queues.filter(|(flow, _)| !held.contains(flow));
        let next = wanted.find_map(|(_, queue)| queue.pop_front())?;
        Some((next.event, next.served))
    }

    /// Lets a direction pass by the service from now on, waiting bytes included.
    pub(super) fn close(&mut self, flow: Flow) {
        self.gates[index(flow)] = Gate::CLOSED;
        let waiting = self.waiting.entry(flow).or_default();
        waiting.iter_mut().for_each(|one| one.served = false);
    }

    /// Returns the number of bytes of a direction that are still to pass by the service before its
    /// first byte.
    pub(super) fn to_pass(&self, flow: Flow) -> u64 {
        let waiting = self.waiting.get(&flow).into_iter().flatten();
        let waiting = waiting.filter(|one| !one.served);
        let waiting = waiting.map(|one| match &one.event {
            Event::Data { bytes, .. } => bytes.len() as u64,
            _ => 0,
        });
        self.gates[index(flow)].to_pass() + waiting.sum::<u64>()
    }

    /// Returns the direction that the service has left, if it has received the last byte of the
    /// other direction, and is now to be asked to leave that one as well.
    pub(super) fn has_done_its_half(&self) -> Option<Flow> {
        let Some(Leaving::Half(outward)) = self.leaving else {
            return None;
        };
        let inward = outward.reverse();
        let closed = self.gates[index(inward)].is_closed() || self.finished.contains(&inward);
        let mut waiting = self.waiting.get(&inward).into_iter().flatten();
        (closed && !waiting.any(|one| one.served)).then_some(outward)
    }

    /// Records an event that the service gets: numbers of bytes, ends, and failed connections.
    pub(super) fn record(&mut self, event: &Event) {
        match event {
            Event::Data { flow, bytes } if flow.is_session() => {
                self.moved[index(*flow)] -= bytes.len() as i64;
            }
            Event::Fin(flow) => drop(self.finished.insert(*flow)),
            Event::Failed(flow) => drop(self.flows.remove(flow)),
            _ => {}
        }
    }

    /// Records that the end of a flow has passed by the service.
    pub(super) fn pass_end(&mut self, flow: Flow) {
        self.finished.insert(flow);
        self.ended.insert(flow);
    }

    /// Holds a flow or releases it. Returns true if that changes something.
    pub(super) fn hold(&mut self, flow: Flow, on: bool) -> bool {
        match on {
            true => self.held.insert(flow),
            false => self.held.remove(&flow),
        }
    }

    pub(super) fn holds(&self, flow: Flow) -> bool {
        self.held.contains(&flow)
    }

    pub(super) fn has_ended(&self, flow: Flow) -> bool {
        self.ended.contains(&flow)
    }

    /// True if the service is a half that has left this direction.
    pub(super) fn has_left(&self, flow: Flow) -> bool {
        match self.leaving {
            Some(Leaving::Half(outward) | Leaving::Last(outward)) => flow == outward,
            Some(Leaving::Asked(_)) | None => false,
        }
    }

    /// True if the service has ended a direction of the session whose end has not arrived.
    pub(crate) fn ended_by_itself(&self) -> bool {
        let mut ended = self.ended.iter().filter(|flow| flow.is_session());
        ended.any(|flow| !self.finished.contains(flow))
    }

    /// Returns the bytes and ends that wait in front of the service, each flow in order.
    pub(crate) fn into_waiting(self) -> impl Iterator<Item = Event> {
        let waiting = self.waiting.into_values().flatten();
        waiting.map(|one| one.event)
    }
}
