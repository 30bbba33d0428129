//! The services of one session, composed.

mod gate;
mod halves;
mod layer;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use dysco_explain::Cause;

use crate::out::Action;
use crate::{Ends, Event, Flow, FlowId, Out, Service, Session, TimerId};
use layer::{Layer, Leaving};

/// Name of a service in a stack. Names are not reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LayerId(pub u32);

/// The services of one session, in order from the end that opened it. Bytes come in by
/// [`Stack::event`] and go out by [`Stack::effect`]; in between they pass every service, in the
/// order of their direction.
pub struct Stack {
    session: Session,
    layers: Vec<Layer>,
    /// True if the element behind the stack wants no bytes, by direction.
    full: [bool; 2],
    effects: VecDeque<Effect>,
    next: u32,
    now: Duration,
}

/// A step that the host of a stack has to take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send these bytes behind the stack, or on a service's own flow.
    Send(Option<LayerId>, Flow, Bytes),
    /// End this flow in order.
    Fin(Option<LayerId>, Flow),
    /// Stop to give bytes of this flow (true), or give them again.
    Hold(Option<LayerId>, Flow, bool),
    /// Call [`Stack::to`] with [`Event::Timer`] after this time.
    Timer(LayerId, TimerId, Duration),
    /// Open a connection for a service.
    Open(LayerId, FlowId, SocketAddr),
    /// Close a connection, since its service has left.
    Close(LayerId, FlowId),
    /// Show this to the operator.
    Notify(LayerId, String),
    /// Answer the call.
    Answer(LayerId, Bytes),
    /// Refuse the call.
    Refuse(LayerId, Cause),
    /// Tell the other host the byte at which a half comes in or leaves ([`Stack::told`]), before any
    /// byte that this stack sends from now on.
    Cut(LayerId, Change, u64),
    /// A service has left.
    Left(Left),
    /// A service broke a rule. The action was ignored.
    Fault(LayerId, Fault),
    /// Reset both ends of the session, for this reason.
    Fail(LayerId, String),
}

/// A service that has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    /// The service.
    pub layer: LayerId,
    /// Number of bytes that it added to each direction, less those that it took out.
    pub delta: [i64; 2],
}

/// A change of one half of a service at both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// It comes in.
    Enters,
    /// It leaves.
    Leaves,
}

/// Broken rule of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It acted after it had left.
    AfterLeave,
    /// It sent on a flow that it had ended, or ended the flow again.
    AfterFin,
    /// It left after it had ended a flow by itself: bytes of the flow would follow the end.
    LeftEnded,
}

impl Stack {
    /// Creates a stack without services: everything passes.
    pub fn new(session: Session) -> Stack {
        Stack {
            session,
            layers: Vec::new(),
            full: [false; 2],
            effects: VecDeque::new(),
            next: 0,
            now: Duration::ZERO,
        }
    }

    /// Checks that a service can work in this session.
    ///
    /// # Errors
    /// The reason against it.
    pub fn check(&self, service: &dyn Service) -> Result<(), Cause> {
        let needs = service.needs(&self.session)?;
        if needs.ends == Ends::Pair && !self.session.both_ends {
            let name = service.name();
            return Err(Cause::new(format!(
                "the other end has no dyscod, and {name} needs both"
            ))
            .hint("run dyscod on the host of the other end"));
        }
        Ok(())
    }

    /// Puts a service into the session, behind `at` others. Its first byte of each direction is
    /// the next that reaches its place.
    ///
    /// # Errors
    /// If the service cannot work in this session, which then stays as it is.
    pub fn put(&mut self, at: usize, service: Box<dyn Service>) -> Result<LayerId, Cause> {
        self.check(&*service)?;
        let at = at.min(self.layers.len());
        let id = self.insert(at, service);
        self.run();
        Ok(id)
    }

    /// Inserts a service. It gets [`Event::Open`] once the stack runs.
    fn insert(&mut self, at: usize, service: Box<dyn Service>) -> LayerId {
        let id = LayerId(self.next);
        self.next += 1;
        let needs = service.needs(&self.session);
        let is_half = needs.is_ok_and(|needs| needs.ends == Ends::Pair);
        self.layers.insert(at, Layer::new(id, service, is_half));
        self.layers[at].events.push_back(Event::Open);
        for flow in Flow::SESSION {
            if self.is_full(next(at, flow), flow) {
                self.layers[at].events.push_back(Event::Full(flow));
                self.tell(previous(at, flow), flow, false);
            }
        }
        id
    }

    /// Sets the time of the services, since a fixed moment. It must not go back.
    pub fn set_now(&mut self, now: Duration) {
        self.now = now;
    }

    /// Gives the stack an event of the session: bytes or an end that arrived, or [`Event::Full`]
    /// and [`Event::Writable`] of the element behind the stack. Other events are for one service.
    pub fn event(&mut self, event: Event) {
        match event {
            Event::Data { flow, .. } | Event::Fin(flow) => {
                let [first, _] = self.ends(flow);
                self.deliver(first, flow, event);
            }
            Event::Full(flow) | Event::Writable(flow) => {
                let full = matches!(event, Event::Full(_));
                self.full[index(flow)] = full;
                let [_, last] = self.ends(flow);
                self.tell(last, flow, full);
            }
            _ => {}
        }
        self.run();
    }

    /// Gives an event to one service: a timer, a call, the request to leave, or an event of its own
    /// flows. A service that has left gets nothing.
    pub fn to(&mut self, layer: LayerId, event: Event) {
        if let Some(layer) = self.layers.iter_mut().find(|l| l.id == layer) {
            layer.take(event);
        }
        self.run();
    }

    /// Returns the next effect for the host to carry out.
    pub fn effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the number of services in front of one, in order from the end that opened the session.
    pub fn place_of(&self, layer: LayerId) -> Option<usize> {
        self.layers.iter().position(|one| one.id == layer)
    }

    /// Number of services.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// True if there is no service: the host can splice the two halves.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// True if there are services, and all of them are idle.
    pub fn is_idle(&self) -> bool {
        !self.layers.is_empty() && self.layers.iter().all(|layer| layer.service.is_idle())
    }

    /// Lets services handle waiting events until none is left.
    fn run(&mut self) {
        while let Some((at, event, served)) = self.next_event() {
            if !served {
                self.pass_by(at, event);
                continue;
            }
            let layer = &mut self.layers[at];
            let mut out = Out::new(layer.next_flow, self.now);
            layer.record(&event);
            layer.service.on(event, &mut out);
            layer.next_flow = out.next_flow;
            let mut actions = out.actions.into_iter();
            let leaves = actions.by_ref().any(|action| self.apply(at, action));
            let id = self.layers[at].id;
            if leaves {
                let late = actions.map(|_| Effect::Fault(id, Fault::AfterLeave));
                self.effects.extend(late);
                self.remove(at);
            } else {
                self.ask_to_leave(at);
            }
        }
    }

    /// Returns the place of the next event, and whether its service gets it.
    fn next_event(&mut self) -> Option<(usize, Event, bool)> {
        let mut layers = self.layers.iter_mut().enumerate();
        layers.find_map(|(at, layer)| {
            let (event, served) = layer.next_event()?;
            Some((at, event, served))
        })
    }

    /// Carries out one action of a service. Returns true if the service leaves.
    fn apply(&mut self, at: usize, action: Action) -> bool {
        let layer = &mut self.layers[at];
        let id = layer.id;
        match action {
            Action::Send(flow, _) | Action::Fin(flow) if layer.has_ended(flow) => {
                self.effects.push_back(Effect::Fault(id, Fault::AfterFin));
            }
            Action::Send(flow, _) if layer.has_left(flow) => {
                self.effects.push_back(Effect::Fault(id, Fault::AfterLeave));
            }
            Action::Send(flow @ Flow::Own(_), bytes) => {
                self.effects.push_back(Effect::Send(Some(id), flow, bytes));
            }
            Action::Send(flow, bytes) => {
                layer.moved[index(flow)] += bytes.len() as i64;
                layer.sent[index(flow)] += bytes.len() as u64;
                self.deliver(next(at, flow), flow, Event::Data { flow, bytes });
            }
            Action::Fin(flow) => {
                layer.ended.insert(flow);
                match flow {
                    Flow::Own(_) => self.effects.push_back(Effect::Fin(Some(id), flow)),
                    _ => self.deliver(next(at, flow), flow, Event::Fin(flow)),
                }
            }
            Action::Hold(flow, on) => {
                if layer.hold(flow, on) {
                    match flow {
                        Flow::Own(_) => self.effects.push_back(Effect::Hold(Some(id), flow, on)),
                        _ => self.tell(previous(at, flow), flow, on),
                    }
                }
            }
            Action::Timer(timer, after) => {
                self.effects.push_back(Effect::Timer(id, timer, after));
            }
            Action::Open(flow, to) => {
                layer.flows.insert(flow);
                self.effects.push_back(Effect::Open(id, flow, to));
            }
            Action::Notify(text) => self.effects.push_back(Effect::Notify(id, text)),
            Action::Answer(bytes) => self.effects.push_back(Effect::Answer(id, bytes)),
            Action::Refuse(cause) => self.effects.push_back(Effect::Refuse(id, cause)),
            Action::Fail(why) => self.effects.push_back(Effect::Fail(id, why)),
            Action::Leave if layer.ended_by_itself() => {
                self.effects.push_back(Effect::Fault(id, Fault::LeftEnded));
            }
            Action::Leave => return self.leaves(at),
        }
        false
    }

    /// Gives bytes or an end to the service at a place, or sends them if there is none.
    fn deliver(&mut self, at: usize, flow: Flow, event: Event) {
        match (self.layers.get_mut(at), event) {
            (Some(layer), event) => layer.take(event),
            (None, Event::Data { bytes, .. }) => {
                self.effects.push_back(Effect::Send(None, flow, bytes));
            }
            (None, _) => self.effects.push_back(Effect::Fin(None, flow)),
        }
    }

    /// Tells the service at a place, or the host, whether the next element wants bytes.
    fn tell(&mut self, at: usize, flow: Flow, full: bool) {
        match self.layers.get_mut(at) {
            Some(layer) if full => layer.events.push_back(Event::Full(flow)),
            Some(layer) => layer.events.push_back(Event::Writable(flow)),
            None => self.effects.push_back(Effect::Hold(None, flow, full)),
        }
    }

    /// Places of the first and the last service of a flow.
    fn ends(&self, flow: Flow) -> [usize; 2] {
        let last = self.layers.len().wrapping_sub(1);
        match flow {
            Flow::Back => [last, 0],
            _ => [0, last],
        }
    }

    /// True if the element at a place wants no bytes.
    fn is_full(&self, at: usize, flow: Flow) -> bool {
        match self.layers.get(at) {
            Some(layer) => layer.holds(flow),
            None => self.full[index(flow)],
        }
    }

    /// Removes a service. Bytes and ends that wait in front of it pass by it.
    fn remove(&mut self, at: usize) {
        for flow in Flow::SESSION {
            let full = self.is_full(next(at, flow), flow);
            if self.layers[at].holds(flow) != full {
                self.tell(previous(at, flow), flow, full);
            }
        }
        let layer = self.layers.remove(at);
        let (id, flows) = (layer.id, layer.flows.clone());
        // The other half has taken out the bytes that this half has added.
        let delta = match layer.leaving {
            Some(Leaving::Last(_)) => [0; 2],
            _ => layer.moved,
        };
        for event in layer.into_waiting() {
            if let Event::Data { flow, .. } | Event::Fin(flow) = event {
                // The services behind this one have moved up by one place.
                let next = if flow == Flow::Back {
                    next(at, flow)
                } else {
                    at
                };
                self.deliver(next, flow, event);
            }
        }
        self.effects
            .extend(flows.into_iter().map(|flow| Effect::Close(id, flow)));
        self.effects
            .push_back(Effect::Left(Left { layer: id, delta }));
    }
}

/// Place of the next element of a flow. No service has the place that this returns for the last.
fn next(at: usize, flow: Flow) -> usize {
    match flow {
        Flow::Back => at.wrapping_sub(1),
        _ => at.wrapping_add(1),
    }
}

/// Place of the previous element of a flow. No service has the place that this returns for the
/// first.
fn previous(at: usize, flow: Flow) -> usize {
    match flow {
        Flow::Back => at.wrapping_add(1),
        _ => at.wrapping_sub(1),
    }
}

fn index(flow: Flow) -> usize {
    usize::from(flow == Flow::Back)
}
