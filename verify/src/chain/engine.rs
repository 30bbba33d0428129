//! The machine's commands, carried out as the engine does it (`engine/rechain`).
//! What takes the kernel or other hosts some time is answered by an event.

use dysco_common::session::offer;
use dysco_common::{Delta, Offer};
use dysco_daemon::protocol::{ChangeId, Command, Facts, HostEvent, Reason, Scope, Subsession};

use super::config::{LEFT, RIGHT};
use super::host::{self, Held, Host, Later, Other, Route, Wrong};

/// Can this command fail on a sound host?
pub(super) fn can_fail(command: &Command) -> bool {
    matches!(
        command,
        Command::Hold { .. }
            | Command::Enlist { .. }
            | Command::AskDelta { .. }
            | Command::Extend { .. }
            | Command::MoveState { .. }
            | Command::Open { .. }
            | Command::Persist { .. }
    )
}

fn refused() -> Reason {
    Reason::Cancelled
}

impl Host {
    /// What an earlier change asks to be forgotten is late from now on.
    fn expect_passing(&mut self, change: ChangeId) {
        if self.forgotten.contains(&change) {
            return;
        }
        match self.passing.replace(change) {
            Some(former) if former != change => {
                self.forgotten.insert(former);
            }
            _ => {}
        }
    }

    /// A host of a chain has a path less, or none.
    fn forget(&mut self, change: ChangeId, scope: Scope) {
        let by_another = self.passing.is_some_and(|by| by != change);
        if by_another && scope != Scope::Session {
            return;
        }
        match scope {
            Scope::Session | Scope::Newcomer => self.knows.clear(),
            Scope::PathBefore => self.knows.retain(|route| *route == Some(change)),
            Scope::NewPath => self.knows.retain(|route| *route != Some(change)),
        }
    }

    /// It fails.
    pub(super) fn fail(&mut self, command: Command) {
        let change = command.change();
        let event = match command {
            Command::Hold { .. } => HostEvent::Locked {
                change,
                result: Err(refused()),
            },
            Command::Enlist { from, .. } => HostEvent::Enlisted {
                change,
                from,
                result: Err(refused()),
            },
            Command::AskDelta { from, .. } => HostEvent::DeltaKnown {
                change,
                from,
                result: Err(refused()),
            },
            Command::MoveState { to, .. } => HostEvent::StateMoved {
                change,
                to,
                result: Err(refused()),
            },
            Command::Extend { .. } | Command::Open { .. } => HostEvent::Prepared {
                change,
                result: Err(refused()),
            },
            Command::Persist { .. } => HostEvent::PersistFailed {
                change,
                error: String::new(),
            },
            _ => return,
        };
        self.tell(event);
    }

    /// It is carried out.
    pub(super) fn execute(&mut self, command: Command, wrong: &mut Option<Wrong>) {
        let change = command.change();
        match command {
            Command::Hold { session, .. } => {
                let result = self.hold(change, &session);
                self.tell(HostEvent::Locked { change, result });
            }
            Command::Enlist { from, .. } => {
                self.expect_passing(change);
                self.tell(HostEvent::Enlisted {
                    change,
                    from,
                    result: Ok(()),
                });
            }
            Command::AskDelta { from, .. } => self.tell(HostEvent::DeltaKnown {
                change,
                from,
                result: Ok(Delta::default()),
            }),
            Command::Extend { .. } => {
                let result = self.add_path(change, wrong);
                self.plane.awaits |= result.is_ok();
                self.tell(HostEvent::Prepared { change, result });
            }
            Command::MoveState { to, .. } => self.events.push(Later::State(change, to)),
            Command::Open { .. } => match self.add_path(change, wrong) {
                Ok(()) => self.events.push(Later::Open(change)),
                Err(reason) => self.tell(HostEvent::Prepared {
                    change,
                    result: Err(reason),
                }),
            },
            Command::Cut { .. } => self.cut(change),
            Command::SetCutIn { .. } => {
                if let Some(held) = self.held.get_mut(&change) {
                    held.far = true;
                }
            }
            Command::Complete { .. } => {
                if self.sound(change) && self.plane.current != Some(change) {
                    *wrong = Some(Wrong::CompletedElsewhere);
                }
                if let Some(held) = self.held.get_mut(&change) {
                    held.completed = true;
                }
            }
            Command::Abandon { .. } => self.abandon(change, wrong),
            Command::Release { .. } => self.release(change),
            Command::Forget { from, scope, .. } => {
                let later = Later::Forgotten(change, from);
                if !self.events.contains(&later) {
                    // Once: what comes again may be of a change long over.
                    if self.forgotten.insert(change) {
                        self.forget(change, scope);
                    }
                    self.events.push(later);
                }
            }
            Command::Persist { record, .. } => {
                let first = !self.records.contains_key(&change);
                if first || !self.forgets_records {
                    self.records.insert(change, record);
                }
            }
            Command::Erase { .. } => {
                self.records.remove(&change);
                match self.held.get_mut(&change) {
                    Some(held) if held.completed => held.erased = true,
                    _ => self.release(change),
                }
            }
            _ => *wrong = Some(Wrong::Unmodelled),
        }
    }

    /// The session is there, and the change holds it.
    fn sound(&self, change: ChangeId) -> bool {
        !self.plane.gone && self.held.contains_key(&change)
    }

    fn hold(&mut self, change: ChangeId, session: &Subsession) -> Result<Facts, Reason> {
        if self.plane.gone {
            return Err(Reason::NotTracked(*session));
        }
        let (mut first, mut second) = (self.plane.current, None);
        match (self.plane.other, self.taking_up) {
            (Some(other), true) if other.before => {
                (first, second) = (other.route, self.plane.current);
            }
            (Some(other), true) => second = other.route,
            // Of a change that has just ended.
            (Some(_), false) => self.forget_late(),
            (None, _) => {}
        }
        let held = Held {
            first,
            second,
            ..Held::default()
        };
        self.held.insert(change, held);
        Ok(facts(self.place))
    }

    /// Ends a change at once that only waited for late packets.
    fn forget_late(&mut self) {
        let of = |h: &Held| h.second.is_some() && h.second == self.plane.current;
        let change = self.held.iter().find(|(_, h)| of(h)).map(|(c, _)| *c);
        if let Some(change) = change {
            self.held.remove(&change);
        }
        self.drop_before();
    }

    fn drop_before(&mut self) {
        self.plane.other = self.plane.other.filter(|other| !other.before);
    }

    fn add_path(&mut self, change: ChangeId, wrong: &mut Option<Wrong>) -> Result<(), Reason> {
        let gone = self.plane.gone;
        let held = self.held.get_mut(&change).filter(|_| !gone);
        let held = held.ok_or(Reason::Closing)?;
        if held.second.is_some() {
            return Ok(());
        }
        held.second = Some(change);
        if self.plane.other.is_some() {
            *wrong = Some(Wrong::ThreePaths);
        }
        self.plane.other = Some(Other {
            route: Some(change),
            before: false,
            joined: false,
        });
        Ok(())
    }

    fn cut(&mut self, change: ChangeId) {
        let held = self.held.get(&change).copied();
        let Some((held, second)) = held.and_then(|h| Some((h, h.second?))) else {
            return self.tell_gone();
        };
        // The agent takes no path that no SYN has come by.
        let closed = |o: Other| !o.before && !o.joined && self.place == RIGHT;
        if self.plane.gone || self.plane.other.is_some_and(closed) {
            return self.tell_gone();
        }
        self.take(Some(second), held.first);
        if let Some(held) = self.held.get_mut(&change) {
            held.cut = true;
        }
        let cutoff = 7;
        self.tell(HostEvent::CutDone { change, cutoff });
    }

    /// Takes a path that is heard, and hears the one before.
    pub(super) fn take(&mut self, second: Route, first: Route) {
        if self.plane.current != second {
            self.plane.current = second;
            self.plane.other = Some(Other {
                route: first,
                before: true,
                joined: true,
            });
        }
    }

    fn abandon(&mut self, change: ChangeId, wrong: &mut Option<Wrong>) {
        self.plane.awaits = false;
        self.events.retain(|later| *later != Later::Open(change));
        let Some(held) = self.held.get_mut(&change) else {
            return;
        };
        held.cut = false;
        if held.completed {
            *wrong = Some(Wrong::BackAfterCompletion);
        }
        let taken = held.second.is_some() && held.second == self.plane.current;
        if let Some(other) = self.plane.other.filter(|o| o.before && taken) {
            let second = self.plane.current;
            self.plane.current = other.route;
            self.plane.other = Some(Other {
                route: second,
                before: false,
                joined: true,
            });
        }
    }

    fn release(&mut self, change: ChangeId) {
        let Some(held) = self.held.remove(&change) else {
            return;
        };
        let next = |other: &Other| !other.before && other.route == held.second;
        if held.second.is_some() && self.plane.other.as_ref().is_some_and(next) {
            self.plane.other = None;
        }
        self.plane.awaits = false;
    }

    /// Has the new path carried all that it has to? Then the machine hears of it.
    pub(super) fn settled(&mut self, change: ChangeId) {
        if let Some(held) = self.held.get_mut(&change) {
            held.settled = true;
        }
        self.tell(HostEvent::Drained { change });
    }

    /// Late packets of the path before are of no use any more.
    pub(super) fn late(&mut self, change: ChangeId) {
        self.held.remove(&change);
        // Or the change's own path, which was awaited once more after its end.
        self.plane.other = None;
        self.plane.awaits = false;
    }

    /// What the kernel still has of changes that no record names.
    pub(super) fn undo_unrecorded(&mut self) {
        if self.held.is_empty() {
            self.plane.other = None;
        }
    }

    fn tell_gone(&mut self) {
        let subsession = host::session();
        self.tell(HostEvent::SessionGone { subsession });
    }
}

fn facts(place: usize) -> Facts {
    let of = |host: usize| Offer {
        isn: 1000 * host as u32,
        mss: 1460,
        wscale: 7,
        flags: offer::SEEN | offer::WSCALE | offer::SACK,
    };
    Facts {
        local: of(place),
        remote: of(LEFT + RIGHT - place),
        ..Facts::default()
    }
}
