//! A session: its two sockets, its services, and the bytes between them.

mod effects;
mod frames;
mod halves;
mod link;
mod own;
mod partial;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;

use dysco_explain::Cause;
use dysco_service::{Event, Flow, FlowId, LayerId, Service, Stack};
use rustix::event::epoll::EventFlags;

use crate::host::{Host, Place};
use crate::protocol::{End, Moved, Pair, PairName, Reason, Report, State};
use crate::registry::Half;
use halves::Halves;
use link::{HARD, Input, Link};
use own::Own;

/// Greatest number of times that a session reads each of its sockets before others have a turn.
const READS: usize = 4;

/// Greatest number of times in a turn that services are told of full sockets.
const TELLINGS: usize = 8;

/// Greatest number of calls without an answer.
const CALLS: usize = 64;

/// A session.
pub(crate) struct Session {
    id: u64,
    stack: Stack,
    /// The sockets towards the opener and towards the other end.
    links: [Link; 2],
    /// Connections of services.
    own: BTreeMap<(LayerId, FlowId), Own>,
    /// Connections that failed, which their services do not know yet.
    failed: VecDeque<(LayerId, FlowId)>,
    /// Services, in order.
    services: Vec<(LayerId, String)>,
    pair: Option<PairName>,
    /// The halves of services at both ends, if there are any.
    halves: Option<Halves>,
    delta: [i64; 2],
    taken: bool,
    read: [u64; 2],
    written: [u64; 2],
    calls: VecDeque<(LayerId, u64)>,
    /// True while a service handles a call.
    calling: bool,
    /// True if the services were idle at the last look.
    idle: bool,
    /// True if a turn ended before the services were told everything.
    unsettled: bool,
    /// True if the session waits for a turn.
    pub scheduled: bool,
}

impl Session {
    /// Puts services into a session. Nothing is read or written before its first turn.
    pub(crate) fn new(
        id: u64,
        session: dysco_service::Session,
        services: Vec<Box<dyn Service>>,
        sockets: [OwnedFd; 2],
        pair: Option<&Pair>,
        host: &mut Host,
    ) -> Result<Session, Cause> {
        let mut stack = Stack::new(session);
        stack.set_now(host.now());
        let mut named = Vec::new();
        for service in services {
            let name = service.name().to_owned();
            named.push((stack.put(named.len(), service)?, name));
        }
        for socket in &sockets {
            let refused = |error| Cause::new(format!("a descriptor is no TCP socket: {error}"));
            Link::set_options(socket).map_err(refused)?;
        }
        let [opener, other] = sockets;
        let cause = |error| Cause::new(format!("a socket cannot be watched: {error}"));
        let token = host.watch(&opener, id, Place::Session(0)).map_err(cause)?;
        let opener = Link::new(opener, token);
        let token = host.watch(&other, id, Place::Session(1)).map_err(|error| {
            host.unwatch(&opener.socket, opener.token);
            cause(error)
        })?;
        let mut links = [opener, Link::new(other, token)];
        if let Some(pair) = pair {
            links[place(pair.beyond)].frame();
        }
        links.iter().for_each(Link::resets_on_death);
        Ok(Session {
            id,
            stack,
            links,
            pair: pair.map(|pair| PairName {
                id: pair.id,
                peer: pair.peer,
            }),
            halves: pair.map(|pair| Halves::new(Half::of(pair).outward)),
            own: BTreeMap::new(),
            failed: VecDeque::new(),
            services: named,
            delta: [0; 2],
            taken: false,
            read: [0; 2],
            written: [0; 2],
            calls: VecDeque::new(),
            calling: false,
            idle: false,
            unsettled: false,
            scheduled: false,
        })
    }

    /// Records events of a socket.
    pub(crate) fn ready(&mut self, place: Place, flags: EventFlags) {
        match place {
            Place::Session(end) => self.links[end].ready(flags),
            Place::Own(layer, flow) => {
                if let Some(own) = self.own.get_mut(&(layer, flow)) {
                    own.link.ready(flags);
                }
            }
        }
    }

    /// Moves bytes, a bounded number. Returns true if there is more to do.
    ///
    /// # Errors
    /// The reason for which the session has ended.
    pub(crate) fn turn(&mut self, host: &mut Host) -> Result<bool, Reason> {
        self.unsettled = false;
        self.stack.set_now(host.now());
        for flow in Flow::SESSION {
            let [source, _] = ends(flow);
            if !self.can_read(flow)
                && let Some(error) = self.links[source].announced_error()
            {
                return Err(reset(source, &error));
            }
        }
        self.advance_own(host);
        self.settle(host)?;
        for _ in 0..READS {
            for flow in Flow::SESSION {
                self.read(flow, host)?;
            }
            self.read_own(host)?;
        }
        let ended = |link: &Link| link.ended && link.has_sent_fin();
        if self.links.iter().all(ended) {
            return Err(Reason::Fin);
        }
        let more = Flow::SESSION.iter().any(|flow| self.can_read(*flow));
        Ok(more || self.unsettled || !self.failed.is_empty() || self.can_read_own())
    }

    fn can_read(&self, flow: Flow) -> bool {
        let [source, sink] = ends(flow);
        self.links[source].wants_read() && self.links[sink].load() < HARD
    }

    /// Reads once from the source of a direction.
    fn read(&mut self, flow: Flow, host: &mut Host) -> Result<(), Reason> {
        if !self.can_read(flow) {
            return Ok(());
        }
        let [source, _] = ends(flow);
        match self.links[source].read(&mut host.scratch) {
            Ok(Input::Bytes(bytes)) => {
                self.read[direction(flow)] += bytes.len() as u64;
                self.stack.event(Event::Data { flow, bytes });
            }
            Ok(Input::Mark(mark)) => self.told(&mark, host)?,
            Ok(Input::End) => self.stack.event(Event::Fin(flow)),
            Ok(Input::Nothing) => return Ok(()),
            Err(error) => return Err(reset(source, &error)),
        }
        self.settle(host)
    }

    /// Carries out the effects that services request, and tells them which sockets are full, until
    /// nothing is left to do.
    pub(crate) fn settle(&mut self, host: &mut Host) -> Result<(), Reason> {
        for _ in 0..TELLINGS {
            while let Some(effect) = self.stack.effect() {
                self.apply(effect, host)?;
            }
            self.flush(host)?;
            if !self.tell_pressure() {
                self.tell_idle(host);
                self.tell_entered(host);
                return Ok(());
            }
        }
        self.unsettled = true;
        Ok(())
    }

    /// Reports that all services have become idle, or no longer are.
    fn tell_idle(&mut self, host: &mut Host) {
        let idle = self.stack.is_idle();
        if idle != self.idle {
            self.idle = idle;
            let session = self.id;
            host.report(Report::Idle { session, idle });
        }
    }

    fn flush(&mut self, host: &mut Host) -> Result<(), Reason> {
        for flow in Flow::SESSION {
            let [_, sink] = ends(flow);
            match self.links[sink].flush() {
                Ok(n) => self.written[direction(flow)] += n as u64,
                Err(error) => return Err(reset(sink, &error)),
            }
        }
        self.flush_own(host);
        Ok(())
    }

    /// Tells the services which sockets have become full or not full. Returns true if any has.
    fn tell_pressure(&mut self) -> bool {
        let mut told = false;
        for flow in Flow::SESSION {
            let [_, sink] = ends(flow);
            if let Some(full) = self.links[sink].pressure() {
                self.stack.event(pressure(flow, full));
                told = true;
            }
        }
        self.tell_pressure_own() || told
    }

    /// Begins to read from the other runner.
    pub(crate) fn open(&mut self) {
        self.links.iter_mut().for_each(Link::open);
    }

    /// Asks all services to leave.
    pub(crate) fn take(&mut self, host: &mut Host) -> Result<(), Reason> {
        self.taken = true;
        if self.stack.is_empty() {
            host.report(self.left());
            return Ok(());
        }
        self.stack.set_now(host.now());
        let layers: Vec<LayerId> = self.services.iter().map(|(layer, _)| *layer).collect();
        for layer in layers {
            self.stack.to(layer, Event::Leave);
        }
        self.settle(host)
    }

    /// Calls a service.
    pub(crate) fn call(
        &mut self,
        service: &str,
        id: u64,
        bytes: Vec<u8>,
        host: &mut Host,
    ) -> Result<(), Reason> {
        let found = self.services.iter().find(|(_, name)| name == service);
        let cause = match found {
            None => Cause::new(format!("no service {service} is in the session"))
                .hint("look with 'dyscoctl service list'"),
            Some(_) if self.calls.len() >= CALLS => Cause::new("too many calls have no answer"),
            Some((layer, _)) => {
                let layer = *layer;
                self.calls.push_back((layer, id));
                self.calling = true;
                self.stack.set_now(host.now());
                self.stack.to(layer, Event::Call(bytes.into()));
                let settled = self.settle(host);
                self.calling = false;
                return settled;
            }
        };
        host.report(Report::Answer {
            id,
            result: Err(cause),
        });
        Ok(())
    }

    /// Reports the expiry of a timer to its service.
    pub(crate) fn timer(
        &mut self,
        layer: LayerId,
        event: Event,
        host: &mut Host,
    ) -> Result<(), Reason> {
        self.stack.set_now(host.now());
        self.stack.to(layer, event);
        self.settle(host)
    }

    /// Resets both connections.
    pub(crate) fn reset(&self) {
        self.links.iter().for_each(Link::reset);
    }

    /// Closes the session's descriptors. `reason` decides whether its connections are reset.
    pub(crate) fn close(mut self, reason: Option<&Reason>, host: &mut Host) {
        if matches!(reason, Some(Reason::Reset { .. } | Reason::Failed { .. })) {
            self.links.iter().for_each(Link::reset);
        } else {
            self.links.iter().for_each(Link::ends_in_order);
        }
        for link in &self.links {
            host.unwatch(&link.socket, link.token);
        }
        for own in self.own.values() {
            host.unwatch(&own.link.socket, own.link.token);
        }
        host.timers.forget(self.id);
        for (_, id) in self.calls.drain(..) {
            host.report(Report::Answer {
                id,
                result: Err(Cause::new("the session has ended")),
            });
        }
    }

    fn left(&self) -> Report {
        Report::Left {
            session: self.id,
            delta: self.delta,
        }
    }

    /// Number of services.
    pub(crate) fn len(&self) -> usize {
        self.services.len()
    }

    /// Numbers of the session's bytes.
    pub(crate) fn moved(&self) -> Moved {
        let [opener, other] = &self.links;
        Moved {
            read: self.read,
            written: self.written,
            waiting: [other.waiting() as u64, opener.waiting() as u64],
        }
    }

    /// State of the session, for a list.
    pub(crate) fn state(&self) -> State {
        let [opener, other] = &self.links;
        State {
            session: self.id,
            services: self.services.iter().map(|(_, name)| name.clone()).collect(),
            pair: self.pair,
            delta: self.delta,
            taken: self.taken,
            ended: [other.has_sent_fin(), opener.has_sent_fin()],
            moved: self.moved(),
        }
    }
}

/// Source and sink of a direction, as places in the pair of sockets.
fn ends(flow: Flow) -> [usize; 2] {
    match flow {
        Flow::Back => [1, 0],
        _ => [0, 1],
    }
}

/// Place of the socket towards an end in the pair of sockets.
fn place(end: End) -> usize {
    match end {
        End::Opener => 0,
        End::Other => 1,
    }
}

/// Number of a direction.
fn direction(flow: Flow) -> usize {
    usize::from(flow == Flow::Back)
}

fn pressure(flow: Flow, full: bool) -> Event {
    match full {
        true => Event::Full(flow),
        false => Event::Writable(flow),
    }
}

fn reset(end: usize, error: &io::Error) -> Reason {
    Reason::Reset {
        end: [End::Opener, End::Other][end],
        error: error.to_string(),
    }
}
