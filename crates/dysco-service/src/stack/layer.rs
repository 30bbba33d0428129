//! One service of a stack, and what waits in front of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{Event, Flow, FlowId, LayerId, Service};

use super::index;

pub(super) struct Layer {
    pub id: LayerId,
    pub service: Box<dyn Service>,
    /// Events that no hold delays.
    pub events: VecDeque<Event>,
    /// Bytes and ends, by flow.
    waiting: BTreeMap<Flow, VecDeque<Event>>,
    held: BTreeSet<Flow>,
    /// Flows whose end has come.
    finished: BTreeSet<Flow>,
    /// Flows that the service has ended.
    pub ended: BTreeSet<Flow>,
    /// Connections that the service has opened.
    pub flows: BTreeSet<FlowId>,
    /// Name of the next connection.
    pub next_flow: u32,
    /// Number of bytes that the service sent, less those that it was given, by direction.
    pub moved: [i64; 2],
}

impl Layer {
    pub fn new(id: LayerId, service: Box<dyn Service>) -> Layer {
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
        }
    }

    /// Queues an event.
    pub fn take(&mut self, event: Event) {
        match event {
            Event::Data { flow, .. } | Event::Fin(flow) => {
                self.waiting.entry(flow).or_default().push_back(event);
            }
            _ => self.events.push_back(event),
        }
    }

    /// Returns the next event that the service wants.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        let held = &self.held;
        self.events.pop_front().or_else(|| {
            let queues = self.waiting.iter_mut();
            let mut wanted = queues.filter(|(flow, _)| !held.contains(flow));
            wanted.find_map(|(_, queue)| queue.pop_front())
        })
    }

    /// Records what the service is given: numbers of bytes, ends, and connections that failed.
    pub fn record(&mut self, event: &Event) {
        match event {
            Event::Data { flow, bytes } if flow.is_session() => {
                self.moved[index(*flow)] -= bytes.len() as i64;
            }
            Event::Fin(flow) => drop(self.finished.insert(*flow)),
            Event::Failed(flow) => drop(self.flows.remove(flow)),
            _ => {}
        }
    }

    /// Holds a flow or releases it. Returns true if that changes something.
    pub fn hold(&mut self, flow: Flow, on: bool) -> bool {
        match on {
            true => self.held.insert(flow),
            false => self.held.remove(&flow),
        }
    }

    pub fn holds(&self, flow: Flow) -> bool {
        self.held.contains(&flow)
    }

    pub fn has_ended(&self, flow: Flow) -> bool {
        self.ended.contains(&flow)
    }

    /// True if the service has ended a direction of the session whose end has not come.
    pub(crate) fn ended_by_itself(&self) -> bool {
        let mut ended = self.ended.iter().filter(|flow| flow.is_session());
        ended.any(|flow| !self.finished.contains(flow))
    }

    /// Returns what waits in front of the service, each flow in order.
    pub(crate) fn into_waiting(self) -> impl Iterator<Item = Event> {
        self.waiting.into_values().flatten()
    }
}
