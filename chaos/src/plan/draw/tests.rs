//! Plans of many seeds.

use super::*;
use crate::plan::ProxyPlan;

#[test]
fn a_seed_has_one_plan() {
    for seed in 0..200 {
        assert_eq!(draw(seed), draw(seed));
    }
    assert_ne!(draw(1).sessions, draw(2).sessions);
}

#[test]
fn a_plan_is_whole() {
    for seed in 0..2_000 {
        let plan = draw(seed);
        assert!((2..=8).contains(&plan.hosts.len()), "{plan:?}");
        assert!(
            !plan.sessions.is_empty() && !plan.operations.is_empty(),
            "{plan:?}"
        );
        let there = |n: u8| plan.host(n).is_some();
        for s in &plan.sessions {
            assert!(there(s.client) && there(s.server), "{plan:?}");
            assert!(s.proxy.is_none_or(|p| plan.proxy(p).is_some()), "{plan:?}");
        }
        // The operator never vouches for a proxy that rewrites.
        let lies = |p: &ProxyPlan| p.declared && !p.is_transparent();
        assert!(!plan.proxies.iter().any(lies), "{plan:?}");
    }
}

#[test]
fn a_plan_outlives_a_file() {
    for seed in 0..100 {
        let plan = draw(seed);
        let text = serde_json::to_string(&plan).expect("a plan can be written");
        let read: Plan = serde_json::from_str(&text).expect("and read");
        assert_eq!(plan, read);
    }
}

#[test]
fn paths_that_are_closed_are_not_used() {
    for seed in 0..2_000 {
        let plan = draw(seed);
        let closes = |b: &&BoxPlan| {
            use BoxKind::{DropSyns, RejectByIcmp, RejectByReset};
            matches!(b.kind, RejectByReset | RejectByIcmp | DropSyns)
        };
        for b in plan.boxes.iter().filter(closes) {
            let Place::Path { from, to } = b.place else {
                panic!("{plan:?}")
            };
            let on = |a: u8, b: u8| (a, b) == (from, to) || (b, a) == (from, to);
            let used = plan.sessions.iter().any(|s| match s.proxy {
                Some(p) => on(s.client, p) || on(p, s.server),
                None => on(s.client, s.server),
            });
            assert!(!used, "{plan:?}");
        }
    }
}
