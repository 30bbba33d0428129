//! A host that a session passes: the paths that it has, as `engine/chain_updates/hosts` and
//! `in_use` keep them, and the questions of a new process about them.

use std::collections::BTreeSet;

use dysco_common::transit::{Keep, Stays};
use dysco_proto::{ChangeId, Order, Reason, Scope};

use super::configuration::{LEFT, RIGHT};
use super::host::{Host, Later, Route};
use super::place::element;
use super::seed;
use super::world::World;

/// Maximum number of paths by which a host forwards a session. The data plane has room for one path
/// in addition to another.
const MOST: usize = 2;

impl Host {
    /// At the host that opened the session: gives the path that is about to be set up its number.
    pub(super) fn number_path(&mut self, order: &mut Order) {
        self.highest += 1;
        order.number = self.highest;
        order.paths = order.segment_of(&self.links).to_vec();
    }

    /// Forwards the SYN of a path. Returns false if there is no room for the path.
    pub(super) fn passes_on(&mut self, change: ChangeId, number: u32) -> bool {
        let route = Some(change);
        if self.knows.len() >= MOST && !self.knows.contains(&route) {
            return false;
        }
        self.knows.insert(route);
        self.numbers.insert(change, number);
        true
    }

    fn number_of(&self, route: Route) -> u32 {
        let number = route.and_then(|change| self.numbers.get(&change));
        number.copied().unwrap_or(0)
    }

    /// Numbers of the paths that the host has, in order. If the host has been an anchor, these are
    /// the paths that it takes or hears there.
    fn all_numbers(&self) -> Vec<u32> {
        let mut routes = BTreeSet::new();
        for plane in &self.planes {
            match plane.active {
                true => routes.extend(
                    [plane.current]
                        .into_iter()
                        .chain(plane.other.map(|o| o.route)),
                ),
                false => routes.extend(&self.knows),
            }
        }
        let mut all: Vec<u32> = routes.into_iter().map(|r| self.number_of(r)).collect();
        all.sort_unstable();
        all
    }

    /// Keeps one of two paths, if it is known which.
    fn keep_one_path(&mut self, keep: Keep) {
        let mut known: Vec<u32> = self.knows.iter().map(|r| self.number_of(*r)).collect();
        known.sort_unstable();
        let [earlier, later] = known[..] else {
            return;
        };
        let known = match (keep, keep.of(earlier, later)) {
            (Keep::InUse { .. }, known) => seed::guesses(self.seed, known),
            (Keep::Without(_), known) => known,
        };
        let out = match known {
            Stays::Both => return,
            Stays::Earlier => later,
            Stays::Later => earlier,
        };
        let numbers = self.numbers.clone();
        let number = |route: &Route| route.map_or(Some(&0), |change| numbers.get(&change));
        self.knows.retain(|route| number(route) != Some(&out));
        self.numbers.retain(|_, number| *number != out);
    }

    /// Applies a bug put in on purpose: a new process collects the earlier path.
    pub(super) fn collect_first(&mut self) {
        if let (true, Some(first)) = (seed::collects_living(self.seed), self.all_numbers().first())
        {
            self.keep_one_path(Keep::Without(&[*first]));
        }
    }

    /// Removes the session from this host.
    fn leave(&mut self, scope: Scope) {
        self.planes = Default::default();
        self.passing = None;
        self.knows.clear();
        self.numbers.clear();
        self.forget_state(scope);
    }

    /// Prepares the host for another path of the session.
    pub(super) fn get_ready(
        &mut self,
        change: ChangeId,
        stays: bool,
        paths: &[u32],
        number: u32,
    ) -> Result<(), Reason> {
        let has = self.all_numbers();
        if has.iter().any(|has| *has > number) || self.is_late(change) {
            return Err(Reason::UnknownChange);
        }
        let reported = self.passing == Some(change) || self.forgotten.contains(&change);
        self.expect_passing(change);
        if reported || has.contains(&number) {
            return Ok(());
        }
        if !stays {
            if !has.is_empty() {
                self.leave(Scope::Session);
                self.passing = Some(change);
            }
            return Ok(());
        }
        let until = number;
        self.keep_one_path(Keep::InUse { paths, until });
        match self.knows.len() < MOST {
            true => Ok(()),
            false => Err(Reason::Cancelled),
        }
    }

    /// Handles the notice that the session, or one of its paths, has left this host.
    pub(super) fn forget(&mut self, change: ChangeId, scope: Scope, paths: &[u32]) {
        let is_late = match scope {
            Scope::Session => self.is_late(change),
            _ => self.passing.is_some_and(|by| by != change),
        };
        if is_late || scope == Scope::Unopened {
            return;
        }
        if scope == Scope::PathBefore {
            self.planes = Default::default();
        }
        self.keep_one_path(Keep::Without(paths));
        let stays = self.all_numbers().iter().any(|n| !paths.contains(n));
        if !stays && matches!(scope, Scope::Session | Scope::Newcomer) {
            self.leave(scope);
        }
    }

    /// Handles the answer of the host that opened the session: its paths that are in use.
    fn in_use_answered(&mut self, asked: &[u32], by: Option<ChangeId>, now: Option<&[u32]>) {
        if self.all_numbers() != asked || self.passing != by {
            return;
        }
        let until = u32::MAX;
        match now {
            Some(paths) => self.keep_one_path(Keep::InUse { paths, until }),
            None => self.leave(Scope::Session),
        }
    }
}

impl World {
    /// Hosts that a session passes by two paths, when no host will state any more which path is in
    /// use. These hosts may ask.
    pub(crate) fn uncertain(&self) -> impl Iterator<Item = usize> + '_ {
        let left = self.host(LEFT).machine.as_ref();
        let quiesce = left.is_some_and(|m| m.changes().next().is_none()) && !self.gone();
        let is_uncertain = |h: &&super::host::Host| {
            let asks = |e: &Later| matches!(e, Later::InUse { .. });
            let has_two = h.place > RIGHT && h.knows.len() == MOST;
            has_two && h.machine.is_some() && !h.events.iter().any(asks)
        };
        let all = self.hosts().filter(move |_| quiesce);
        all.filter(is_uncertain).map(|h| h.place)
    }

    /// Makes a host ask; the answer is then in flight.
    pub fn ask_in_use(&mut self, place: usize) {
        let left = self.host(LEFT);
        let passes = left.chain.contains(&element(place));
        let now = passes.then(|| left.links.clone());
        self.edit(place, |h| {
            let (asked, by) = (h.all_numbers(), h.passing);
            h.events.push(Later::InUse { asked, by, now });
        });
    }

    /// Delivers the answer.
    pub(super) fn in_use_answered(
        &mut self,
        place: usize,
        asked: &[u32],
        by: Option<ChangeId>,
        now: Option<&[u32]>,
    ) {
        self.edit(place, |h| h.in_use_answered(asked, by, now));
    }
}
