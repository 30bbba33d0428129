//! The work of a host in a change of a chain, done as the engine does it (`engine/chain_updates`).
//! An event answers a command that takes the kernel or other hosts some time.

use dysco_common::chain::{Token, path_number};
use dysco_common::delta::{Reach, is_consistent};
use dysco_common::session::offer;
use dysco_common::two_paths::Cutoff;
use dysco_common::{Delta, Element, Offer};
use dysco_proto::{ChangeId, Facts, HostEvent, HostId, Reason, Scope, Subsession};

use super::configuration::{LEFT, RIGHT};
use super::host::{Held, Host, Later, Other, Route, Wrong};
use super::place::{LEFTWARDS, RIGHTWARDS};
use super::seed;

pub(super) fn refused() -> Reason {
    Reason::Cancelled
}

impl Host {
    /// Requests the path through the new chain.
    pub(super) fn open_path(
        &mut self,
        change: ChangeId,
        token: &Token,
        (delta, right): (&Delta, &Reach),
    ) {
        match self.open(change, delta, right) {
            Ok(()) => {
                self.numbers.insert(change, path_number(token));
                self.makes_up = Some((change, *delta));
                self.lead_beyond(change, delta);
                self.events.push(Later::Open(change));
            }
            Err(reason) => self.tell(HostEvent::Prepared {
                change,
                result: Err(reason),
            }),
        }
    }

    pub(super) fn extend(&mut self, change: ChangeId, token: &Token) {
        self.numbers.insert(change, path_number(token));
        let result = self.add_path(change);
        let side = self.side(change);
        self.planes[side].awaits |= result.is_ok();
        self.tell(HostEvent::Prepared { change, result });
    }

    pub(super) fn complete(&mut self, change: ChangeId) {
        let side = self.side(change);
        if self.sound(change) && self.planes[side].current != Some(change) {
            self.wrong = Some(Wrong::CompletedElsewhere);
        }
        if let Some(held) = self.held.get_mut(&change) {
            held.completed = true;
        }
    }

    pub(super) fn forget_once(
        &mut self,
        change: ChangeId,
        from: HostId,
        scope: Scope,
        paths: &[u32],
    ) {
        let later = Later::Forgotten(change, from);
        if !self.events.contains(&later) {
            // Only once: a repetition may belong to a change that is long over.
            if self.forgotten.insert(change) {
                self.forget(change, scope, paths);
            }
            self.events.push(later);
        }
    }

    /// Treats what an earlier change asks to be forgotten as late from now on.
    pub(super) fn expect_passing(&mut self, change: ChangeId) {
        if self.forgotten.contains(&change) {
            return;
        }
        let both = [Some(change), self.passing];
        self.passing = both.into_iter().flatten().max();
        let former = both.into_iter().flatten().min();
        self.forgotten
            .extend(former.filter(|c| self.passing != Some(*c)));
    }

    /// True if this change has ended, because the session passes by a later one.
    pub(super) fn is_late(&self, change: ChangeId) -> bool {
        self.passing.is_some_and(|by| by > change)
    }

    /// Makes the firewall forget the session, and refuse state of it from now on.
    pub(super) fn forget_state(&mut self, scope: Scope) {
        self.events.retain(|e| !matches!(e, Later::Install(..)));
        self.state &= seed::keeps_state(self.seed, scope);
    }

    pub(super) fn splice(
        &mut self,
        left: Option<HostId>,
        right: Option<HostId>,
        hosts: &[Element],
        number: u32,
    ) {
        let place = |host: HostId| self.chain.iter().position(|e| e.host() == host);
        let from = left.and_then(place).map_or(0, |at| at + 1);
        let to = right.and_then(place).unwrap_or(self.chain.len());
        self.chain.splice(from..to, hosts.iter().copied());
        let new = vec![number; hosts.len() + 1];
        self.links.splice(from..=to, new);
    }

    /// True if the session exists and the change holds it.
    pub(super) fn sound(&self, change: ChangeId) -> bool {
        !self.gone && self.held.contains_key(&change)
    }

    /// Side that a change holds.
    pub(super) fn side(&self, change: ChangeId) -> usize {
        self.held.get(&change).map_or(RIGHTWARDS, |held| held.side)
    }

    pub(super) fn hold(&mut self, change: ChangeId, session: &Subsession) -> Result<Facts, Reason> {
        let side = self.side_of(session);
        let passes = self.is_anchor() || self.planes[side].active || !self.knows.is_empty();
        if self.gone || !passes {
            return Err(Reason::NotTracked(*session));
        }
        if !self.is_anchor() {
            self.expect_passing(change);
        }
        if !self.is_anchor() && !self.planes[side].active {
            self.planes[side].current = self.knows.first().copied().flatten();
            self.planes[side].active = true;
            self.begin_entries(side);
        }
        let plane = self.planes[side];
        let (mut first, mut second_path) = (plane.current, None);
        match (plane.other, self.taking_up) {
            (Some(other), true) if other.before => {
                (first, second_path) = (other.route, plane.current);
            }
            (Some(other), true) => second_path = other.route,
            // The entry belongs to a change that has just ended.
            (Some(_), false) => self.forget_late(side),
            (None, _) => {}
        }
        let held = Held {
            side,
            first,
            second_path,
            reach: self.reach(side),
            ..Held::default()
        };
        let facts = Facts {
            reach: held.reach,
            ..facts(side)
        };
        self.held.insert(change, held);
        Ok(facts)
    }

    /// Ends at once a change that only waited for late packets.
    fn forget_late(&mut self, side: usize) {
        let plane = &mut self.planes[side];
        let current = plane.current;
        plane.other = plane.other.filter(|other| !other.before);
        let of = |h: &Held| h.side == side && h.second_path.is_some() && h.second_path == current;
        let change = self.held.iter().find(|(_, h)| of(h)).map(|(c, _)| *c);
        if let Some(change) = change {
            self.held.remove(&change);
        }
        self.tidy_entries();
    }

    /// Sends the SYN, unless the numbers contradict the deltas that the hosts that leave have
    /// reported.
    pub(super) fn open(
        &mut self,
        change: ChangeId,
        delta: &Delta,
        right: &Reach,
    ) -> Result<(), Reason> {
        let before = self.held.get(&change).map_or(Reach::default(), |h| h.reach);
        let now = self.reach(self.side(change));
        // Without streams there are no numbers.
        if !self.entries.is_empty() && !is_consistent(&before, right, &now, delta) {
            return Err(refused());
        }
        self.add_path(change)
    }

    pub(super) fn add_path(&mut self, change: ChangeId) -> Result<(), Reason> {
        let gone = self.gone;
        let held = self.held.get_mut(&change).filter(|_| !gone);
        let held = held.ok_or(Reason::Closing)?;
        if held.second_path.is_some() {
            return Ok(());
        }
        held.second_path = Some(change);
        let plane = &mut self.planes[held.side];
        if plane.other.is_some() {
            self.wrong = Some(Wrong::ThreePaths);
        }
        plane.other = Some(Other {
            route: Some(change),
            before: false,
            joined: false,
        });
        let side = held.side;
        self.add_entry(side, change);
        Ok(())
    }

    pub(super) fn cut(&mut self, change: ChangeId) {
        let held = self.held.get(&change).copied();
        let Some((held, second_path)) = held.and_then(|h| Some((h, h.second_path?))) else {
            return self.tell_gone(change);
        };
        // The agent takes no path on which no SYN has arrived.
        let closed = |o: Other| !o.before && !o.joined && held.side == LEFTWARDS;
        if self.gone || self.planes[held.side].other.is_some_and(closed) {
            return self.tell_gone(change);
        }
        self.take(held.side, Some(second_path), held.first, true);
        if let Some(held) = self.held.get_mut(&change) {
            held.cut = true;
        }
        let cutoff = self.cutoff(held.side, Some(second_path)).unwrap_or(7);
        let cutoff = Cutoff {
            at: cutoff,
            closes: false,
        };
        self.tell(HostEvent::CutDone { change, cutoff });
    }

    /// Takes a path on which the anchor already receives, and keeps receiving on the path before.
    /// Only the agent copies what has happened on the old path, such as FINs, into the new entry.
    pub(super) fn take(&mut self, side: usize, second_path: Route, first: Route, by_agent: bool) {
        let plane = &mut self.planes[side];
        if plane.current != second_path {
            plane.current = second_path;
            plane.other = Some(Other {
                route: first,
                before: true,
                joined: true,
            });
            self.switch_entry(side, second_path, first, by_agent);
        }
    }

    pub(super) fn abandon(&mut self, change: ChangeId) {
        self.events.retain(|later| *later != Later::Open(change));
        let Some(held) = self.held.get_mut(&change) else {
            return;
        };
        let plane = &mut self.planes[held.side];
        plane.awaits = false;
        held.cut = false;
        if held.completed {
            self.wrong = Some(Wrong::BackAfterCompletion);
        }
        let taken = held.second_path.is_some() && held.second_path == plane.current;
        if let Some(other) = plane.other.filter(|o| o.before && taken) {
            let second_path = plane.current;
            plane.current = other.route;
            plane.other = Some(Other {
                route: second_path,
                before: false,
                joined: true,
            });
            let side = held.side;
            self.switch_entry_back(side, second_path, other.route);
            self.announce_way_back(side, second_path);
        }
    }

    pub(super) fn release(&mut self, change: ChangeId) {
        let Some(held) = self.held.remove(&change) else {
            return;
        };
        let plane = &mut self.planes[held.side];
        let next = |other: &Other| !other.before && other.route == held.second_path;
        if held.second_path.is_some() && plane.other.as_ref().is_some_and(next) {
            plane.other = None;
        }
        plane.awaits = false;
        self.tidy_entries();
    }

    /// Notifies the machine that the new path has carried all that it has to.
    pub(super) fn settled(&mut self, change: ChangeId) {
        if let Some(held) = self.held.get_mut(&change) {
            held.settled = true;
        }
        self.tell(HostEvent::Drained { change });
    }

    /// Ends the wait for late packets of the path before.
    pub(super) fn late(&mut self, change: ChangeId) {
        let side = self.side(change);
        self.held.remove(&change);
        // It may also be the change's own path, which was awaited once more after the change's end.
        self.planes[side].other = None;
        self.planes[side].awaits = false;
        self.tidy_entries();
    }

    /// Removes what the kernel still has of changes that no record names.
    pub(super) fn undo_unrecorded(&mut self) {
        for side in [RIGHTWARDS, LEFTWARDS] {
            if !self.held.values().any(|held| held.side == side) {
                self.planes[side].other = None;
            }
        }
        self.tidy_entries();
        self.collect_first();
    }

    fn tell_gone(&mut self, change: ChangeId) {
        let subsession = self.called(self.side(change));
        self.tell(HostEvent::SessionGone { subsession });
    }
}

fn facts(side: usize) -> Facts {
    let of = |host: usize| Offer {
        isn: 1000 * host as u32,
        mss: 1460,
        wscale: 7,
        flags: offer::SEEN | offer::WSCALE | offer::SACK,
    };
    let (local, remote) = match side {
        RIGHTWARDS => (LEFT, RIGHT),
        _ => (RIGHT, LEFT),
    };
    Facts {
        local: of(local),
        remote: of(remote),
        ..Facts::default()
    }
}
