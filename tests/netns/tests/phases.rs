//! Sessions end in each way while their removal is held in each phase.

mod world;

use std::time::Duration;

use anyhow::{Context, Result};
use dysco_netns::stream::{Close, Group, Plan, Reading, Side, all_intact};
use dysco_netns::{Family, Lab, Role, wait};
use world::{DECLARED, World};

const LIMIT: Duration = Duration::from_secs(60);

/// Each way to end, but for a close of both sides at once.
const WAYS: [Close; 4] = [
    Close::First(Side::Client),
    Close::First(Side::Server),
    Close::Reset(Side::Client),
    Close::Reset(Side::Server),
];

/// All that the daemons do is in their logs: so phases are seen.
fn world(name: &str) -> Result<World> {
    let config = format!("{DECLARED}[log]\nfilter = \"dysco_daemon::engine=debug\"\n");
    let lab = Lab::builder(name);
    World::with(lab, Family::V4, &Role::ALL, &config, |c| c)
}

fn groups(w: &World, ways: &[Close]) -> Result<Vec<Group>> {
    let of = |close: &Close| {
        let plan = Plan {
            rate: Some(2_000_000),
            close: *close,
            ..Plan::default()
        };
        let group = w.open(1, &plan)?;
        group.run();
        Ok(group)
    };
    let groups: Vec<Group> = ways.iter().map(of).collect::<Result<_>>()?;
    for group in &groups {
        group.wait_progress(200_000)?;
        w.wait_removable(&w.ends(group)?)?;
    }
    Ok(groups)
}

/// Begins the removal of all and waits until the daemon of `role` has done
/// `command` for each.
fn hold(w: &mut World, groups: &[Group], role: Role, command: &str) -> Result<()> {
    let word = format!("{command} {{ change");
    let before = w.daemon(role)?.log().matches(&word).count();
    for group in groups {
        w.begin(&w.ends(group)?[0])?;
    }
    let daemon = w.daemon(role)?;
    wait::until("the phase", LIMIT, || {
        let done = daemon.log().matches(&word).count();
        (done >= before + groups.len()).then_some(())
    })
    .with_context(|| format!("{command} on {role:?}"))
}

/// They end, and then the removal may go on: in the end no host has anything
/// left to do.
fn end(w: &World, groups: Vec<Group>, role: Role, ways: &[Close]) -> Result<()> {
    for group in &groups {
        group.stop();
        group.set_reading(Side::Server, Reading::Fast);
        group.set_reading(Side::Client, Reading::Fast);
    }
    for (group, way) in groups.into_iter().zip(ways) {
        let intact = group.finish().and_then(|o| all_intact(&o));
        intact.with_context(|| format!("{way:?}\n{}", w.state()))?;
    }
    w.fault(role, "")?;
    let quiet = |role: &Role| {
        let counters = w.counters(*role);
        counters.is_ok_and(|c| c["changes_under_way"] == 0)
    };
    wait::until("all changes to end", LIMIT, || {
        Role::ALL.iter().all(quiet).then_some(())
    })
    .with_context(|| w.state())
}

#[test]
fn before_the_cut_and_with_one_cut_only() -> Result<()> {
    let mut w = world("cut")?;
    let held = groups(&w, &WAYS)?;
    w.fault(Role::Client, "lose:SetUp")?;
    hold(&mut w, &held, Role::Client, "Prepare")?;
    end(&w, held, Role::Client, &WAYS).context("before the cut")?;

    let ways = [&WAYS[..], &[Close::Together]].concat();
    let held = groups(&w, &ways)?;
    w.fault(Role::Client, "lose:Switched")?;
    hold(&mut w, &held, Role::Client, "Cut")?;
    end(&w, held, Role::Client, &ways).context("with one cut only")?;
    w.finish()
}

#[test]
fn while_draining_and_before_done() -> Result<()> {
    let mut w = world("drain")?;
    let ways = [&WAYS[..], &[Close::Together]].concat();
    for paused in [Side::Server, Side::Client] {
        let held = groups(&w, &ways)?;
        for group in &held {
            group.set_reading(paused, Reading::Paused);
        }
        hold(&mut w, &held, Role::Client, "SetCutIn")?;
        end(&w, held, Role::Client, &ways).with_context(|| format!("draining to {paused:?}"))?;
    }

    let held = groups(&w, &ways)?;
    w.fault(Role::Client, "lose:Done")?;
    hold(&mut w, &held, Role::Client, "Complete")?;
    end(&w, held, Role::Client, &ways).context("before Done")?;
    w.finish()
}
