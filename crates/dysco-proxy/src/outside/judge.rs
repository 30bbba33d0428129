//! Assignment of partners, given the fit of each direction. A fit alone is not sufficient:
//! sessions in step fit each other now and then, and a mirror fits twice. A source must therefore
//! fit far better than any other, and bytes that may go to another sink as well must be explained
//! by another source.

use std::collections::HashMap;

use super::pairing::{Best, Found, MAX_DELTA, Rules, Series, Way};
use super::unpaired::Unpaired;

/// The verdict on each accepted socket.
pub(super) type Verdicts = Vec<(usize, Result<Found, Unpaired>)>;

/// Judges a whole series.
pub(super) fn judge(series: &Series, rules: &Rules) -> Verdicts {
    let all = 0..series.count();
    let mut best = HashMap::new();
    let mut sources = vec![Vec::new(); series.count()];
    for (from, to) in all.clone().flat_map(|f| all.clone().map(move |t| (f, t))) {
        let met = (from != to && series.moved(from).0 > 0).then(|| series.compare(from, to));
        // Of thousands of sockets, most pairs have no relation.
        if let Some(b) = met.flatten().filter(|b| b.fresh > 1) {
            best.insert((from, to), b);
            sources[to].push(from);
        }
    }
    let mut court = Court {
        series,
        rules,
        best,
        sources,
        partners: vec![Vec::new(); series.count()],
    };
    court.find_partners();
    let accepted = series.of_kind(true);
    accepted.map(|a| (a, court.judge(a))).collect()
}

struct Court<'a> {
    series: &'a Series,
    rules: &'a Rules,
    /// Fits of the directions that fitted more than once.
    best: HashMap<(usize, usize), Best>,
    /// Sources that fitted more than once, for each socket.
    sources: Vec<Vec<usize>>,
    /// Sockets of the other kind that fit in both directions, for each socket.
    partners: Vec<Vec<usize>>,
}

impl Court<'_> {
    fn find_partners(&mut self) {
        let follows = |way| matches!(way, Way::Follows { .. });
        for (from, to) in self.best.keys().copied() {
            let kinds = [from, to].map(|x| self.series.kind(x).accepted);
            if kinds[0] != kinds[1] && follows(self.way(from, to)) && follows(self.way(to, from)) {
                self.partners[to].push(from);
            }
        }
    }

    /// Returns true if `x` has a partner in both directions that is far above `this` in at least
    /// one. Sessions in step may look alike in one direction.
    fn taken(&self, x: usize, this: usize) -> bool {
        let above = |p: usize| {
            let (there, back) = (self.best(p, x), self.best(x, p));
            there.far_above(&self.best(this, x)) || back.far_above(&self.best(x, this))
        };
        self.partners[x].iter().any(|p| *p != this && above(*p))
    }

    fn way(&self, from: usize, to: usize) -> Way {
        let known = self.best.get(&(from, to)).copied();
        let best = known.or_else(|| self.series.compare(from, to));
        best.map_or(Way::Apart, |b| b.way(self.rules))
    }

    fn best(&self, from: usize, to: usize) -> Best {
        self.best.get(&(from, to)).copied().unwrap_or_default()
    }

    fn fresh(&self, from: usize, to: usize) -> usize {
        self.best(from, to).fresh
    }

    fn fit(&self, a: usize, b: usize) -> Option<Found> {
        use Way::{Follows, Quiet};
        if self.fresh(a, b) + self.fresh(b, a) == 0 {
            return None;
        }
        let (forward, reverse) = match (self.way(a, b), self.way(b, a)) {
            (Follows { delta: f, .. }, Follows { delta: r, .. } | Quiet { delta: r, .. })
            | (Quiet { delta: f, .. }, Follows { delta: r, .. }) => (f, r),
            _ => return None,
        };
        Some(Found {
            a,
            b,
            forward,
            reverse,
        })
    }

    fn judge(&self, a: usize) -> Result<Found, Unpaired> {
        let opened = self.series.of_kind(false);
        let fits = opened.filter_map(|b| self.fit(a, b));
        let found = fits.max_by_key(|f| self.fresh(f.a, f.b) + self.fresh(f.b, f.a));
        let Some(found) = found else {
            return Err(self.why_unpaired(a));
        };
        let port = self.series.kind(a).port;
        let listener = |x: &usize| self.series.kind(*x).port == port;
        let accepted = self.series.of_kind(true).filter(listener).count();
        let opened = self.series.of_kind(false).count();
        if accepted > opened {
            return Err(Unpaired::Pool { accepted, opened });
        }
        let others = self.rivals(&found);
        if !others.is_empty() {
            return Err(Unpaired::Ambiguous { others });
        }
        let born = |x| self.series.kind(x).born;
        let older = matches!((born(a), born(found.b)), (Some(a), Some(b)) if b < a);
        let deltas = [found.forward, found.reverse];
        let delta = deltas.into_iter().max_by_key(|d| d.abs()).unwrap_or(0);
        if older || delta.abs() > MAX_DELTA {
            let b = found.b;
            return Err(Unpaired::Reused { b, older, delta });
        }
        match self.may_be_full(a, found.b) {
            Some(forward) => Err(Unpaired::MayHold { forward }),
            None => Ok(found),
        }
    }

    /// Returns a direction in which the process was never seen empty: true for forward.
    fn may_be_full(&self, a: usize, b: usize) -> Option<bool> {
        let full = |from, to| {
            let (Way::Follows { empty, .. } | Way::Quiet { empty, .. }) = self.way(from, to) else {
                return true;
            };
            !empty
        };
        [(a, b), (b, a)]
            .into_iter()
            .find(|(from, to)| full(*from, *to))
            .map(|(from, _)| from == a)
    }

    /// Returns the partner and the other sockets that fit as well or may receive a copy of the
    /// bytes. Returns nothing if the partner is the only candidate.
    fn rivals(&self, found: &Found) -> Vec<usize> {
        let Found { a, b, .. } = *found;
        let mut rivals = Vec::new();
        for (from, to) in [(a, b), (b, a)] {
            let sinks = (0..self.series.count()).filter(|x| *x != a && *x != b);
            if !matches!(self.way(from, to), Way::Follows { .. }) {
                rivals.extend(sinks.filter(|x| self.may_get_the_little(from, *x)));
                continue;
            }
            let own = self.best(from, to);
            let other = |x: &&usize| {
                **x != from && !own.far_above(&self.best(**x, to)) && !self.taken(**x, to)
            };
            rivals.extend(self.sources[to].iter().filter(other));
            rivals.extend(sinks.filter(|x| {
                let may = self.series.alike(from, *x) && !self.explained(*x, from);
                (may || !own.far_above(&self.best(from, *x))) && !self.taken(*x, from)
            }));
        }
        rivals.sort_unstable();
        rivals.dedup();
        if !rivals.is_empty() {
            rivals.insert(0, b);
        }
        rivals
    }

    /// Returns true if the few bytes that were read from `from` may have been written to `x` as
    /// well. Returns false if the bytes read from `x` go to another socket, because `x` then
    /// belongs to another session.
    fn may_get_the_little(&self, from: usize, x: usize) -> bool {
        let fits = !matches!(self.way(from, x), Way::Open { .. } | Way::Apart);
        let follows = |p| p != from && matches!(self.way(x, p), Way::Follows { .. });
        fits && self.series.alike(from, x)
            && !self.explained(x, from)
            && !(0..self.series.count()).any(|p| p != x && follows(p))
    }

    /// Returns true if the bytes written to `x` far more likely came from another source. A
    /// source that fitted often, but only recently, may have done so by chance.
    fn explained(&self, x: usize, from: usize) -> bool {
        let this = self.best(from, x);
        self.sources[x].iter().any(|s| {
            let other = self.best(*s, x);
            let follows = matches!(other.way(self.rules), Way::Follows { .. });
            *s != from && follows && other.far_above(&this)
        })
    }

    /// Returns the reason why no socket fits.
    fn why_unpaired(&self, a: usize) -> Unpaired {
        let (read, written) = self.series.moved(a);
        if (read, written) == (0, 0) {
            return Unpaired::Silent;
        }
        let nearest = self.series.nearest(a, 1).first().copied();
        if let Some(b) = nearest {
            let ways = [self.way(a, b), self.way(b, a)];
            let held_up = |from, to| {
                let best = self.best.get(&(from, to)).copied();
                let best = best.or_else(|| self.series.compare(from, to));
                best.is_some_and(|b| b.is_held_up())
            };
            let open = ways.iter().find_map(|w| match w {
                Way::Open { moments, bytes } => Some((*moments, *bytes)),
                _ => None,
            });
            let quiet = ways.iter().all(|w| matches!(w, Way::Quiet { .. }));
            let seen = open.or(quiet.then_some((0, 0)));
            if let (Some((moments, bytes)), false) = (seen, ways.contains(&Way::Apart)) {
                for (from, to) in [(a, b), (b, a)] {
                    if held_up(from, to) {
                        return Unpaired::MayHold { forward: from == a };
                    }
                }
                return Unpaired::TooLittle { b, moments, bytes };
            }
        }
        let busy = |b: &usize| self.series.moved(*b).0 + self.series.moved(*b).1;
        let busiest = || self.series.of_kind(false).max_by_key(busy);
        let nearest = nearest.or_else(busiest).filter(|b| busy(b) > 0);
        Unpaired::NoPartner {
            read,
            written,
            nearest: nearest.map(|b| (b, self.series.moved(b).0, self.series.moved(b).1)),
        }
    }
}
