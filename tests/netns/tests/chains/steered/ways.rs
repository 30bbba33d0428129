//! Sessions with full segments in both directions, or in one direction.

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, Side, all_intact};
use dysco_netns::{Family, wait};
use serde_json::Value;

use super::{At, PATIENCE, Steered};

const MIB: u64 = 1 << 20;

/// Opens one session that leaves the processors to the daemons. Returns the session and its name.
pub(crate) fn gentle(world: &Steered) -> Result<(Group, String)> {
    let plan = Plan {
        rate: Some(2_000_000),
        ..Plan::default()
    };
    let group = world.open(1, &plan)?;
    group.run();
    group.wait_progress(100_000)?;
    let name = world.name(group.locals()[0]);
    Ok((group, name))
}

/// Opens a session in progress. Returns the session and its name.
pub(crate) fn busy(world: &Steered, plan: &Plan) -> Result<(Group, String)> {
    let group = world.open(1, plan)?;
    group.run();
    get_on(world, &group)?;
    let session = world.name(group.locals()[0]);
    Ok((group, session))
}

/// Waits until each end to which anything is sent has received more.
pub(crate) fn get_on(world: &Steered, group: &Group) -> Result<()> {
    let sides = [Side::Client, Side::Server];
    let now = || sides.map(|side| group.received(side));
    let before = now();
    let none_yet = before == [0, 0];
    wait::until("data", PATIENCE, || {
        let all = now();
        let more = |at: usize| all[at] - before[at] > 8 * MIB;
        let begun = |at: usize| before[at] > 0;
        let enough = match none_yet {
            true => more(0) || more(1),
            false => [0, 1].iter().all(|at| more(*at) || !begun(*at)),
        };
        enough.then_some(())
    })
    .with_context(|| world.logs())
}

/// Waits until data takes this chain and no other.
pub(crate) fn takes_only(world: &Steered, group: &Group, chain: &[At]) -> Result<()> {
    wait::until("the chain to carry it all", PATIENCE, || {
        let before = world.passed().ok()?;
        get_on(world, group).ok()?;
        let after = world.passed().ok()?;
        let mut each = At::FIREWALLS.iter().zip(before.iter().zip(&after));
        let right = each.all(|(fw, (before, after))| chain.contains(fw) == (before != after));
        right.then_some(())
    })
    .with_context(|| world.logs())
}

pub(crate) fn nothing_refused(world: &Steered) -> Result<()> {
    for fw in At::FIREWALLS {
        let refused = world.refused(fw)?;
        ensure!(refused == 0, "{fw:?} refused {refused}\n{}", world.logs());
    }
    Ok(())
}

/// Sessions that are busy in both directions, or in one direction.
pub(crate) struct Ways {
    pub world: Steered,
    pub groups: Vec<Group>,
}

impl Ways {
    pub(crate) fn new(family: Family) -> Result<Ways> {
        Ways::of(Steered::new(family)?)
    }

    pub(crate) fn of(world: Steered) -> Result<Ways> {
        let plans = [Plan::default()].into_iter().chain(Plan::one_way());
        let groups = plans.map(|plan| Ok(busy(&world, &plan)?.0));
        let groups = groups.collect::<Result<_>>()?;
        Ok(Ways { world, groups })
    }

    /// Requests a change of all sessions. Returns the result of each.
    pub(crate) fn asked(&self, words: &[&str]) -> Result<Vec<Value>> {
        let done = self
            .world
            .try_json(At::Client, &[words, &["--wait"]].concat())?;
        let all = done["changes"].as_array().cloned().unwrap_or_default();
        ensure!(all.len() == self.groups.len(), "{done:#}");
        Ok(all)
    }

    /// Checks that all continue by this chain, and that no firewall has refused anything.
    pub(crate) fn go_on(&self, chain: &[At]) -> Result<()> {
        let each = |group| takes_only(&self.world, group, chain);
        self.groups.iter().try_for_each(each)?;
        nothing_refused(&self.world)
    }

    /// Gives all sessions this chain.
    pub(crate) fn take(&self, words: &[&str], chain: &[At]) -> Result<()> {
        for done in self.asked(words)? {
            ensure!(
                done["outcome"] == "changed",
                "{done:#}\n{}",
                self.world.logs()
            );
        }
        self.go_on(chain)
    }

    pub(crate) fn finish(self) -> Result<()> {
        let each = |group: Group| all_intact(&group.finish()?).map(drop);
        self.groups.into_iter().try_for_each(each)?;
        self.world.finish()
    }
}
