//! Makes a failing plan smaller, as long as it still fails.

use crate::plan::{Place, Plan, Victim};

/// Makes a plan smaller. `fails` returns true if a plan still fails, and is called at most `tries`
/// times.
pub(crate) fn shrink(plan: Plan, tries: usize, mut fails: impl FnMut(&Plan) -> bool) -> Plan {
    let mut best = plan;
    let mut left = tries;
    loop {
        let before = best.clone();
        for smaller in PARTS {
            best = without(best, smaller, &mut left, &mut fails);
        }
        if best == before || left == 0 {
            return best;
        }
    }
}

/// A list in a plan from which elements can be left out.
#[derive(Clone, Copy)]
enum Part {
    Operations,
    Kills,
    Boxes,
    Sessions,
    Sysctls,
}

/// Lists in this order: an element that is left out early may make later ones unnecessary.
const PARTS: [Part; 5] = [
    Part::Sessions,
    Part::Operations,
    Part::Kills,
    Part::Boxes,
    Part::Sysctls,
];

impl Part {
    fn len(self, plan: &Plan) -> usize {
        match self {
            Part::Operations => plan.operations.len(),
            Part::Kills => plan.kills.len(),
            Part::Boxes => plan.boxes.len(),
            Part::Sessions => plan.sessions.len(),
            Part::Sysctls => plan.hosts.iter().map(|h| h.sysctls.len()).sum(),
        }
    }

    /// Returns the plan without a range of the list's elements.
    fn cut(self, plan: &Plan, from: usize, to: usize) -> Plan {
        let mut plan = plan.clone();
        let kept = |at: &mut usize| {
            *at += 1;
            *at <= from || *at > to
        };
        let mut at = 0;
        match self {
            Part::Operations => plan.operations.retain(|_| kept(&mut at)),
            Part::Kills => plan.kills.retain(|_| kept(&mut at)),
            Part::Boxes => plan.boxes.retain(|_| kept(&mut at)),
            Part::Sessions => plan.sessions.retain(|_| kept(&mut at)),
            Part::Sysctls => {
                let hosts = plan.hosts.iter_mut();
                hosts.for_each(|h| h.sysctls.retain(|_| kept(&mut at)));
            }
        }
        tidy(plan)
    }
}

/// Leaves out as many elements of a list as possible: halves first, then ever fewer at once.
fn without(
    mut best: Plan,
    part: Part,
    left: &mut usize,
    fails: &mut impl FnMut(&Plan) -> bool,
) -> Plan {
    let mut step = part.len(&best).div_ceil(2);
    while step > 0 {
        let mut from = 0;
        while from < part.len(&best) && *left > 0 {
            let to = (from + step).min(part.len(&best));
            let smaller = part.cut(&best, from, to);
            let usable = !smaller.sessions.is_empty() && smaller != best;
            *left -= usize::from(usable);
            if usable && fails(&smaller) {
                best = smaller;
            } else {
                from = to;
            }
        }
        step /= 2;
    }
    best
}

/// Leaves out proxies and hosts that nothing in the plan refers to.
fn tidy(mut plan: Plan) -> Plan {
    let uses = |plan: &Plan, host: u8| {
        use crate::plan::Ask::{Drain, Insert, Look, Put, Reconfigure, Remove, Replace, Take};
        let session = plan
            .sessions
            .iter()
            .any(|s| s.client == host || s.server == host || s.proxy == Some(host));
        let operation = plan.operations.iter().any(|o| {
            o.host == host
                || match &o.ask {
                    Insert { host: h } => *h == host,
                    Reconfigure { chain } => chain.contains(&host),
                    Replace { old, new, .. } => *old == host || *new == host,
                    Remove { .. } | Drain | Put { .. } | Take { .. } | Look => false,
                }
        });
        let kill = plan.kills.iter().any(|k| match &k.victim {
            Victim::Daemon { host: h, .. }
            | Victim::DaemonAt { host: h, .. }
            | Victim::Proxy { host: h }
            | Victim::Host { host: h }
            | Victim::Handlers { host: h }
            | Victim::Link { host: h, .. } => *h == host,
        });
        let placed = plan.boxes.iter().any(|b| match b.place {
            Place::Path { from, to } => from == host || to == host,
            Place::Host { host: h } => h == host,
        });
        session || operation || kill || placed
    };
    let all = plan.clone();
    plan.hosts.retain(|h| uses(&all, h.number));
    let there = |host: u8| plan.hosts.iter().any(|h| h.number == host);
    plan.proxies.retain(|p| there(p.host) && there(p.server));
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::draw;

    #[test]
    fn what_a_failure_does_not_need_goes() {
        let shrunk = (0..300).filter_map(|seed| {
            let plan = draw(seed);
            let (kill, session) = (plan.kills.last()?.clone(), plan.sessions.last()?.clone());
            let fails = |p: &Plan| p.kills.contains(&kill) && p.sessions.contains(&session);
            let small = shrink(plan, 10_000, fails);
            assert!(fails(&small));
            assert_eq!(
                (
                    small.sessions.len(),
                    small.boxes.len(),
                    small.operations.len()
                ),
                (1, 0, 0)
            );
            assert!(small.kills.iter().all(|k| *k == kill));
            assert!(small.hosts.iter().all(|h| h.sysctls.is_empty()));
            // The remaining plan refers only to hosts that exist.
            assert!(small.host(session.client).is_some() && small.host(session.server).is_some());
            Some(())
        });
        assert!(shrunk.count() > 100);
    }

    #[test]
    fn it_asks_no_more_often_than_it_may() {
        let mut asked = 0;
        shrink(draw(3), 7, |_| {
            asked += 1;
            true
        });
        assert!(asked <= 7);
    }
}
