//! The machine's commands, carried out. What needs the kernel's or the proxy's
//! patience runs in a task of its own and answers later.

use std::net::IpAddr;
use std::time::Instant;

use dysco_agent::{AgentError, NewPath};
use dysco_common::{FlowKey, Session, State, Translation};

use super::probe::Probe;
use super::{Answer, Engine};
use crate::protocol::{ChangeId, Command, Facts, HostEvent, Measurement, Reason, Side, Subsession};
use crate::proxy::{Care, Pair};

/// Window that the old path may announce from the lock on: what the proxy
/// holds shrinks while the new path is set up. The paper's value.
const CLAMP: u32 = 64 * 1024;

/// What this host holds for a change.
#[derive(Default)]
pub(super) struct Held {
    /// The slot of the session, and when its session began.
    pub slot: Option<(u32, u64)>,
    /// That session's subsession.
    pub own: Option<Subsession>,
    /// The five-tuple of the new path, from this host's side.
    pub new: Option<FlowKey>,
    /// The pair of the proxy, at the middle.
    pub pair: Option<Pair>,
    /// A cutoff is set and `Drained` not yet told.
    pub draining: bool,
    /// The new path has answered a SYN.
    pub opened: bool,
    /// It was sent one, and has not.
    pub probe: Option<Probe>,
    /// What waits for a route.
    waiting: Option<Waiting>,
}

enum Waiting {
    Reserve { new: Subsession },
    Prepare { translation: Translation },
}

/// What a route look-up brought.
pub(super) type Routed = Result<u32, AgentError>;

impl Engine {
    pub(super) fn execute(&mut self, command: Command) {
        tracing::debug!(?command, "execute");
        match command {
            Command::Measure { change, subsession } => self.measure(change, subsession),
            Command::Lock { change, subsession } => {
                let result = self.lock(change, &subsession);
                self.tell_machine(HostEvent::Locked { change, result });
            }
            Command::Unlock { change, .. } => self.unlock(change),
            Command::Reserve {
                change,
                subsession_a,
                subsession_b,
            } => {
                self.reserve(change, &subsession_a, &subsession_b);
            }
            Command::Release { change } => {
                if let Some(held) = self.held.get_mut(&change) {
                    held.new = None;
                }
            }
            Command::Prepare {
                change,
                side,
                own,
                new,
                translation,
            } => {
                let flags = translation.flags | self.faults.spoilt();
                let translation = Translation {
                    flags,
                    ..translation
                };
                self.prepare(change, side, &own, &new, translation);
            }
            Command::Unprepare { change } => {
                if let Some(slot) = self.slot_of(change)
                    && self.agent.session(slot).state == State::TwoPaths as u32
                {
                    self.agent.unprepare(slot);
                }
            }
            Command::Cut { change } => self.cut(change),
            Command::SetCutIn { change, cutoff } => self.set_cut_in(change, cutoff),
            Command::Complete { change } => self.complete(change),
            Command::Close {
                change,
                subsession_a,
                subsession_b,
            } => {
                self.close(change, &subsession_a, &subsession_b);
            }
            Command::Persist { change, record } => {
                if let Err(error) = self.state.write(change, &record) {
                    let error = error.to_string();
                    let now = self.now();
                    self.machine
                        .handle_event(now, HostEvent::PersistFailed { change, error });
                }
            }
            Command::Erase { change } => {
                self.state.erase(change);
                self.held.remove(&change);
            }
        }
    }

    /// The slot of a change's session, if that session still has it.
    pub(super) fn slot_of(&self, change: ChangeId) -> Option<u32> {
        let (slot, created) = self.held.get(&change)?.slot?;
        let s = self.agent.session(slot);
        (s.created_ns == created && s.state != State::Free as u32).then_some(slot)
    }

    /// The slot of a session, by whichever of its ends is here, and whether
    /// this host opened it.
    pub(super) fn find(&self, sub: &Subsession) -> Option<u32> {
        let opened = FlowKey::new(sub.left, sub.right);
        let accepted = FlowKey::new(sub.right, sub.left);
        self.agent
            .find(&opened)
            .or_else(|| self.agent.find(&accepted))
    }

    fn measure(&mut self, change: ChangeId, sub: Subsession) {
        match self.measurable(&sub) {
            Ok((pair, a, b)) => {
                let before = self.held.entry(change).or_default().pair.replace(pair);
                // What counts is measured again, once both anchors are locked.
                let care = match before {
                    None => Care::Glance,
                    Some(_) => Care::Proof,
                };
                let proxy = self.proxy.clone();
                let answers = self.answers.clone();
                tokio::spawn(async move {
                    let result = match proxy.measure(&pair, care).await {
                        Ok(m) => Ok(Measurement {
                            delta_forward: m.delta_forward,
                            delta_reverse: m.delta_reverse,
                            a,
                            b,
                            clock_a: m.clock_a,
                            clock_b: m.clock_b,
                            subsession_a: accepted(&pair.a.key),
                            subsession_b: opened(&pair.b.key),
                        }),
                        Err(e) => Err(Reason::NotTransparent(e.to_string())),
                    };
                    let _ = answers.send(Answer::Event(HostEvent::Measured { change, result }));
                });
            }
            Err(reason) => self.tell_machine(HostEvent::Measured {
                change,
                result: Err(reason),
            }),
        }
    }

    /// The pair that relays the session, if all says that it may go.
    pub(super) fn measurable(&self, sub: &Subsession) -> Result<(Pair, Facts, Facts), Reason> {
        let of_a = FlowKey::new(sub.right, sub.left);
        let of_b = FlowKey::new(sub.left, sub.right);
        let pair = self
            .proxy
            .find(&of_a)
            .or_else(|| self.proxy.pairs().into_iter().find(|p| p.b.key == of_b))
            .ok_or_else(|| {
                Reason::NotTransparent("no shim has reported that a proxy relays it".into())
            })?;
        let listener = pair.a.key.local();
        let said = self.config.listener(listener);
        if said.is_some_and(|l| l.transparent == Some(false)) {
            return Err(Reason::NotTransparent(format!(
                "the configuration says `transparent = false` of the listener {listener}"
            )));
        }
        self.proxy
            .transparent(&pair)
            .map_err(|e| Reason::NotTransparent(e.to_string()))?;
        if !pair.b.opened_here {
            return Err(Reason::NotTransparent(
                "the proxy did not open its second session".into(),
            ));
        }
        let a = self.facts_of(&pair.a.key, &accepted(&pair.a.key))?;
        let b = self.facts_of(&pair.b.key, &opened(&pair.b.key))?;
        Ok((pair, a, b))
    }

    fn facts_of(&self, key: &FlowKey, sub: &Subsession) -> Result<Facts, Reason> {
        let slot = self.agent.find(key).ok_or(Reason::NotTracked(*sub))?;
        facts(&self.agent.session(slot), sub)
    }

    fn lock(&mut self, change: ChangeId, sub: &Subsession) -> Result<Facts, Reason> {
        let slot = self.find(sub).ok_or(Reason::NotTracked(*sub))?;
        let s = self.agent.session(slot);
        let facts = facts(&s, sub)?;
        let held = self.held.entry(change).or_default();
        held.slot = Some((slot, s.created_ns));
        held.own = Some(*sub);
        self.agent.clamp(slot, CLAMP);
        Ok(facts)
    }

    fn unlock(&mut self, change: ChangeId) {
        if let Some(slot) = self.slot_of(change) {
            self.agent.clamp(slot, 0);
        }
        self.held.remove(&change);
    }

    fn reserve(&mut self, change: ChangeId, a: &Subsession, b: &Subsession) {
        match self.free_path(a, b) {
            Ok(new) => {
                let held = self.held.entry(change).or_default();
                held.new = Some(FlowKey::new(new.left, new.right));
                held.waiting = Some(Waiting::Reserve { new });
                self.look_up(change, new.left.ip(), new.right.ip());
            }
            Err(reason) => {
                self.tell_machine(HostEvent::Reserved {
                    change,
                    result: Err(reason),
                });
            }
        }
    }

    /// A five-tuple from this host's end of A to the server's end of B.
    fn free_path(&mut self, a: &Subsession, b: &Subsession) -> Result<Subsession, Reason> {
        let mut new = Subsession {
            left: a.left,
            right: b.right,
        };
        if new.left.is_ipv4() != new.right.is_ipv4() {
            return Err(Reason::NoRoute(new.right.ip()));
        }
        let ports = self.config.removal.ports;
        for _ in 0..ports.count() {
            new.left.set_port(self.state.next_port(ports));
            let key = FlowKey::new(new.left, new.right);
            let held = self.held.values().any(|h| h.new == Some(key));
            if !held && !self.agent.in_use(&key) {
                return Ok(new);
            }
        }
        Err(Reason::PortsExhausted)
    }

    fn look_up(&mut self, change: ChangeId, from: IpAddr, to: IpAddr) {
        if let Some(ifindex) = self.state.route(from, to) {
            return self.routed(change, Ok(ifindex));
        }
        let routes = self.routes.clone();
        let answers = self.answers.clone();
        tokio::spawn(async move {
            let found = routes.get(from, to).await.map(|r| r.ifindex);
            let _ = answers.send(Answer::Route(change, found));
        });
    }

    /// Goes on with what waited for the route.
    pub(super) fn routed(&mut self, change: ChangeId, found: Routed) {
        let Some(held) = self.held.get_mut(&change) else {
            return;
        };
        let (Some(waiting), Some(new)) = (held.waiting.take(), held.new) else {
            return;
        };
        let usable = found
            .map_err(|_| Reason::NoRoute(new.remote().ip()))
            .and_then(|ifindex| {
                let ours = self
                    .config
                    .host
                    .interfaces
                    .iter()
                    .any(|i| i.index == ifindex);
                if ours {
                    self.state.keep_route(
                        new.local().ip(),
                        new.remote().ip(),
                        ifindex,
                        Instant::now(),
                    );
                    Ok(ifindex)
                } else {
                    let why = format!(
                        "the route to {} leaves by an interface that dyscod is not configured for",
                        new.remote().ip()
                    );
                    Err(Reason::NewPathUnusable(why))
                }
            });
        let event = match waiting {
            Waiting::Reserve { new } => HostEvent::Reserved {
                change,
                result: usable.map(|_| new),
            },
            Waiting::Prepare { translation } => {
                let path = usable.map(|ifindex| NewPath {
                    key: new,
                    ifindex,
                    translation,
                });
                let result = path.and_then(|path| self.prepare_path(change, &path));
                HostEvent::Prepared { change, result }
            }
        };
        self.tell_machine(event);
    }

    fn prepare(
        &mut self,
        change: ChangeId,
        side: Side,
        own: &Subsession,
        new: &Subsession,
        translation: Translation,
    ) {
        let key = match side {
            Side::Left => FlowKey::new(new.left, new.right),
            Side::Right => FlowKey::new(new.right, new.left),
        };
        let slot = self.find(own);
        let held = self.held.entry(change).or_default();
        held.new = Some(key);
        if held.slot.is_none() {
            held.slot = slot.map(|slot| (slot, self.agent.session(slot).created_ns));
        }
        held.waiting = Some(Waiting::Prepare { translation });
        self.look_up(change, key.local().ip(), key.remote().ip());
    }

    fn prepare_path(&mut self, change: ChangeId, path: &NewPath) -> Result<(), Reason> {
        let slot = self.slot_of(change).ok_or(Reason::Closing)?;
        let s = self.agent.session(slot);
        match State::from_word(s.state) {
            Some(State::TwoPaths | State::NewPath) => Ok(()),
            Some(State::Tracked) if s.life.reset != 0 => Err(Reason::Closing),
            Some(State::Tracked) => self
                .agent
                .prepare(slot, path)
                .map_err(|e| Reason::NewPathUnusable(e.to_string())),
            _ => Err(Reason::Closing),
        }
    }

    fn cut(&mut self, change: ChangeId) {
        match self.slot_of(change) {
            Some(slot) => {
                let cutoff = self.agent.cut(slot);
                self.tell_machine(HostEvent::CutDone { change, cutoff });
            }
            None => self.tell_gone(change),
        }
    }

    /// The session of a change has been collected.
    pub(super) fn tell_gone(&mut self, change: ChangeId) {
        if let Some(subsession) = self.held.get(&change).and_then(|h| h.own) {
            self.tell_machine(HostEvent::SessionGone { subsession });
        }
    }

    fn set_cut_in(&mut self, change: ChangeId, cutoff: u32) {
        let Some(slot) = self.slot_of(change) else {
            return self.tell_gone(change);
        };
        if self.agent.set_cut_in(slot, cutoff) {
            self.tell_machine(HostEvent::Drained { change });
        } else if let Some(held) = self.held.get_mut(&change) {
            held.draining = true;
        }
    }

    /// The local end of a slot's session has acknowledged all of the old path.
    pub(super) fn drained(&mut self, slot: u32) {
        let change = self
            .held
            .iter()
            .find(|(_, h)| h.draining && h.slot.is_some_and(|(s, _)| s == slot));
        let Some(change) = change.map(|(change, _)| *change) else {
            return;
        };
        if let Some(held) = self.held.get_mut(&change) {
            held.draining = false;
        }
        self.tell_machine(HostEvent::Drained { change });
    }

    /// Looks at sessions that drain, in case the ring was full.
    pub(super) fn sweep_drains(&mut self) {
        let drained: Vec<u32> = self
            .held
            .values()
            .filter(|h| h.draining)
            .filter_map(|h| h.slot)
            .filter(|(slot, _)| self.agent.session(*slot).two.drained != 0)
            .map(|(slot, _)| slot)
            .collect();
        for slot in drained {
            self.drained(slot);
        }
    }

    fn complete(&mut self, change: ChangeId) {
        if let Some(slot) = self.slot_of(change) {
            self.agent.complete(slot);
            self.agent.clamp(slot, 0);
        }
    }

    fn close(&mut self, change: ChangeId, a: &Subsession, b: &Subsession) {
        for sub in [a, b] {
            if let Some(slot) = self.find(sub) {
                self.agent.tombstone(slot);
                self.collector.entombed(slot, &self.agent.session(slot));
            }
        }
        let known = self.held.get(&change).and_then(|h| h.pair);
        let pair = known.or_else(|| self.proxy.find(&FlowKey::new(a.right, a.left)));
        let Some(pair) = pair else {
            tracing::warn!(%change, "the proxy's sockets are not known any more; they end by its own time-out");
            return self.tell_machine(HostEvent::Closed {
                change,
                result: Ok(()),
            });
        };
        let proxy = self.proxy.clone();
        let answers = self.answers.clone();
        tokio::spawn(async move {
            let result = proxy.close_silently(&pair).await;
            let result = result
                .map(|_| ())
                .map_err(|e| Reason::Failed(e.to_string()));
            let _ = answers.send(Answer::Event(HostEvent::Closed { change, result }));
        });
    }
}

/// The subsession of a socket that this host accepted.
pub(super) fn accepted(key: &FlowKey) -> Subsession {
    Subsession {
        left: key.remote(),
        right: key.local(),
    }
}

/// The subsession of a socket that this host opened.
pub(super) fn opened(key: &FlowKey) -> Subsession {
    Subsession {
        left: key.local(),
        right: key.remote(),
    }
}

/// What is known of a session, if it can be changed.
fn facts(s: &Session, sub: &Subsession) -> Result<Facts, Reason> {
    match State::from_word(s.state) {
        Some(State::Tracked) => {}
        Some(State::Opening) => return Err(Reason::NotSeen),
        Some(State::TwoPaths | State::NewPath) => {
            return Err(Reason::Failed(
                "the session has been changed before, which this release does once only".into(),
            ));
        }
        Some(State::Tombstone | State::Closed) => return Err(Reason::Closing),
        Some(State::Free) | None => return Err(Reason::NotTracked(*sub)),
    }
    if s.life.reset != 0 || (s.life.fin_in != 0 && s.life.fin_out != 0) {
        return Err(Reason::Closing);
    }
    Ok(Facts {
        local: s.local,
        remote: s.remote,
        tsval_out: s.tsval_out,
        fin_out: s.life.fin_out != 0,
        fin_in: s.life.fin_in != 0,
        reset: false,
    })
}
