//! In the middle of a change of a chain a daemon dies, or the new path dies: every byte arrives,
//! and the session can be given a chain as before.

use std::time::Duration;

use crate::steered::{At, DEATHS, Steered};
use anyhow::{Context, Result, anyhow, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, strict, wait};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// Points at which the daemon of the host that opened the session may die, from the request to the
/// end: before each of its own steps, and before each message that the others have not received
/// yet.
const OPENER: [&str; 13] = [
    "Hold",
    "Persist",
    "Enlist",
    "AskDelta",
    "Extend",
    "MoveState",
    "Open",
    "SetCutIn",
    "Splice",
    "Persist:2",
    "Done",
    "Dismiss",
    "Erase",
];

/// The corresponding points on the server's host.
const SERVER: [&str; 6] = [
    "Hold", "Persist", "Extend", "SetCutIn", "Complete", "DoneAck",
];

/// The corresponding points on the firewalls' hosts: the first firewall enters, and the second
/// leaves.
const FIREWALLS: [(At, &str); 4] = [
    (At::Fw1, "Enlist"),
    (At::Fw1, "Expecting"),
    (At::Fw2, "TellDelta"),
    (At::Fw2, "Forget"),
];

/// The corresponding points on all hosts while a change is rolled back because its path is dead.
const TAKING_BACK: [(At, &str); 8] = [
    (At::Client, "Abandon"),
    (At::Client, "Cancel"),
    (At::Client, "Dismiss"),
    (At::Client, "Erase"),
    (At::Server, "CancelAck"),
    (At::Server, "Abandon"),
    (At::Server, "Erase"),
    (At::Fw1, "Forget"),
];

fn busy(world: &Steered, plan: &Plan) -> Result<(Group, String)> {
    let group = world.open(1, plan)?;
    group.run();
    get_on(world, &group, 1 << 18)?;
    let session = world.name(group.locals()[0]);
    Ok((group, session))
}

/// Waits until each end has received this many more bytes.
fn get_on(world: &Steered, group: &Group, bytes: u64) -> Result<()> {
    group.wait_progress(bytes).with_context(|| world.logs())
}

/// A daemon dies in the middle of a change from this chain to the first firewall, on any of its
/// hosts. Once the daemon runs again, data flows, and the session can be given a chain.
fn daemons_die(family: Family, before: &[At]) -> Result<()> {
    let mut world = Steered::new(family)?;
    let (group, session) = busy(&world, &Plan::gentle())?;
    for (at, fault) in DEATHS {
        if !before.is_empty() {
            world.update_chain(&session, before)?;
        }
        world.set_faults(at, fault)?;
        let fw = world.ip(At::Fw1);
        // The daemon that serves the command may die.
        let _ = world.try_ctl(At::Client, &["reconfigure", &session, "--chain", &fw])?;
        world.wait_dead(at)?;
        // Firewalls on the old path may first have to be shown how far both ends have sent.
        if before.is_empty() {
            get_on(&world, &group, 1 << 20).with_context(|| fault.to_owned())?;
        }
        world.set_faults(at, "")?;
        world.restart(at)?;
        get_on(&world, &group, 1 << 20).with_context(|| fault.to_owned())?;
        // The change in progress ends, and both ends agree.
        wait::until("the session to be free", PATIENCE, || {
            let both = [At::Fw2, At::Fw1];
            let done = world.reconfigure(&session, &both, &[]).ok()?;
            (done["outcome"] == "changed").then_some(())
        })
        .with_context(|| format!("{fault}\n{}", world.logs()))?;
        get_on(&world, &group, 1 << 20).with_context(|| fault.to_owned())?;
        world.update_chain(&session, &[])?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn a_daemon_dies_in_the_middle() -> Result<()> {
    daemons_die(Family::V4, &[])
}

/// Each of the firewalls has not seen what the other has seen.
#[test]
fn a_daemon_dies_between_two_firewalls() -> Result<()> {
    daemons_die(Family::V6, &[At::Fw2])
}

/// A daemon dies at each of these points while the first firewall replaces the second, with its
/// state.
fn dies_at_each(
    family: Family,
    deaths: impl IntoIterator<Item = (At, &'static str)>,
    dead: bool,
) -> Result<()> {
    let mut world = Steered::new(family)?;
    let (group, session) = busy(&world, &Plan::gentle())?;
    world.update_chain(&session, &[At::Fw2])?;
    let [new, old] = At::FIREWALLS.map(|fw| world.ip(fw));
    let replace = [
        "replace-middlebox",
        &old,
        "--with",
        &new,
        "--state",
        "conntrack",
    ];
    for (at, step) in deaths {
        let told = || format!("{at:?} died at {step}");
        if dead {
            world.lets_no_syn_through(At::Fw1)?;
        }
        world.set_faults(at, &format!("die:{step}"))?;
        // The daemon that serves the command may die.
        let _ = world.try_ctl(At::Client, &replace)?;
        world.wait_dead(at).with_context(told)?;
        world.set_faults(at, "")?;
        world.restart(at)?;
        get_on(&world, &group, 1 << 18).with_context(told)?;
        world
            .wait_forgotten_elsewhere(&session)
            .with_context(told)?;
        if dead {
            world.lets_syns_through(At::Fw1)?;
        }
        // The change in progress ends, and both ends agree.
        wait::until("the session to be free", PATIENCE, || {
            let both = [At::Fw2, At::Fw1];
            let done = world.reconfigure(&session, &both, &[]).ok()?;
            (done["outcome"] == "changed").then_some(())
        })
        .with_context(|| format!("{}\n{}", told(), world.logs()))?;
        world
            .update_chain(&session, &[At::Fw2])
            .with_context(told)?;
        get_on(&world, &group, 1 << 18).with_context(told)?;
    }
    world.wait_only_through(&[At::Fw2])?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn the_host_that_opened_it_dies_at_each_step() -> Result<()> {
    dies_at_each(Family::V4, OPENER.map(|step| (At::Client, step)), false)
}

#[test]
fn the_servers_host_dies_at_each_step() -> Result<()> {
    dies_at_each(Family::V6, SERVER.map(|step| (At::Server, step)), false)
}

#[test]
fn a_firewalls_host_dies_at_each_step() -> Result<()> {
    dies_at_each(Family::V6, FIREWALLS, false)
}

#[test]
fn a_daemon_dies_while_a_change_is_taken_back() -> Result<()> {
    dies_at_each(Family::V6, TAKING_BACK, true)
}

/// The first firewall's daemon dies at each of these points while the third firewall replaces the
/// second after it, with its state.
fn inner_anchor_dies(family: Family, steps: &[&str], dead: bool) -> Result<()> {
    let mut world = Steered::of_four(family)?;
    let (group, session) = busy(&world, &Plan::gentle())?;
    let [old, new] = [At::Fw2, At::Fw3].map(|fw| world.ip(fw));
    let before = [At::Fw1, At::Fw2];
    world.update_chain(&session, &before)?;
    for step in steps {
        let told = || format!("it died at {step}");
        if dead {
            world.lets_no_syn_through(At::Fw3)?;
        }
        world.set_faults(At::Fw1, &format!("die:{step}"))?;
        let replace = ["replace-middlebox", &old, "--with", &new];
        let _ = world.try_ctl(
            At::Client,
            &[&replace[..], &["--state", "conntrack"]].concat(),
        )?;
        world.wait_dead(At::Fw1).with_context(told)?;
        world.set_faults(At::Fw1, "")?;
        world.restart(At::Fw1)?;
        get_on(&world, &group, 1 << 18).with_context(told)?;
        world
            .wait_forgotten_elsewhere(&session)
            .with_context(told)?;
        if dead {
            world.lets_syns_through(At::Fw3)?;
        }
        wait::until("the session to be free", PATIENCE, || {
            let other = [At::Fw1, At::Fw4];
            let done = world.reconfigure(&session, &other, &[]).ok()?;
            (done["outcome"] == "changed").then_some(())
        })
        .with_context(|| format!("{}\n{}", told(), world.logs()))?;
        world.update_chain(&session, &before).with_context(told)?;
        get_on(&world, &group, 1 << 18).with_context(told)?;
    }
    world.wait_only_through(&before)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn an_inner_left_anchors_host_dies_while_it_gets_ready() -> Result<()> {
    inner_anchor_dies(Family::V4, &["Hold", "Persist", "Extended"], false)
}

#[test]
fn an_inner_left_anchors_host_dies_while_it_opens_the_path() -> Result<()> {
    inner_anchor_dies(Family::V6, &["Open", "Opened", "Cut"], false)
}

#[test]
fn an_inner_left_anchors_host_dies_while_it_takes_the_path() -> Result<()> {
    inner_anchor_dies(Family::V4, &["Switched", "SetCutIn", "Settled"], false)
}

#[test]
fn an_inner_left_anchors_host_dies_when_it_has_taken_the_path() -> Result<()> {
    inner_anchor_dies(Family::V6, &["Complete", "Erase", "DoneAck"], false)
}

#[test]
fn an_inner_left_anchors_host_dies_while_a_change_is_taken_back() -> Result<()> {
    inner_anchor_dies(Family::V6, &["Abandon", "Released"], true)
}

/// All packets of a path through the first firewall are lost after both ends have taken it. The
/// message that one end has taken it is lost too, so that neither end leaves the old path for good.
fn a_path_dies(family: Family) -> Result<()> {
    let world = Steered::new(family)?;
    let (group, session) = busy(&world, &Plan::default())?;
    world.set_faults(At::Server, "lose:Switched")?;
    dies(&world, &group, &session, &[])?;
    world.set_faults(At::Server, "")?;
    world.update_chain(&session, &[At::Fw2])?;
    world.set_faults(At::Server, "lose:Switched")?;
    dies(&world, &group, &session, &[At::Fw2])?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Checks that the session is on its old path after the new path has died.
fn dies(world: &Steered, group: &Group, session: &str, before: &[At]) -> Result<()> {
    let lost = world.lost(At::Server, "Switched")?;
    let passed = world.counted(At::Fw1, "passed")?;
    let done = std::thread::scope(|scope| -> Result<Value> {
        let asked = scope.spawn(|| world.reconfigure(session, &[At::Fw1], &[]));
        wait::until("data on the new path", PATIENCE, || {
            let taken = world.lost(At::Server, "Switched").ok()? > lost;
            (taken && world.counted(At::Fw1, "passed").ok()? > passed + 100).then_some(())
        })
        .with_context(|| world.logs())?;
        world.lose_all_of(At::Fw1)?;
        asked.join().map_err(|_| anyhow!("a thread panicked"))?
    })?;
    let why = done["reason"].to_string();
    let told = why.contains("did not deliver the data in flight");
    ensure!(done["outcome"] == "rolled_back" && told, "{done:#}");
    ensure!(world.lost_of_all()? > 0, "nothing was lost");
    // The path stays dead.
    get_on(world, group, 4 << 20)?;
    let hosts: Vec<_> = before.iter().map(|at| world.ip(*at)).collect();
    ensure!(world.chain_of(session)? == json!(hosts));
    world.wait_only_through(before)?;
    world.wait_forgotten(At::Fw1)?;
    world.lose_no_more()
}

#[test]
fn a_new_path_dies_after_both_ends_have_taken_it() -> Result<()> {
    a_path_dies(Family::V4)
}

#[test]
fn a_new_path_dies_after_both_ends_have_taken_it_v6() -> Result<()> {
    a_path_dies(Family::V6)
}

/// An unannounced strict firewall on the direct path sees acknowledgements of data that it never
/// saw. It is first shown how far both ends have sent.
fn back_past_a_firewall(family: Family) -> Result<()> {
    let world = Steered::new(family)?;
    strict::guard(&world.router)?;
    let (group, session) = busy(&world, &Plan::default())?;
    world.set_faults(At::Server, "lose:Switched")?;
    dies(&world, &group, &session, &[])?;
    world.set_faults(At::Server, "")?;
    world.update_chain(&session, &[At::Fw2])?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn back_past_a_strict_firewall_that_nobody_knows() -> Result<()> {
    back_past_a_firewall(Family::V4)
}

#[test]
fn back_past_a_strict_firewall_that_nobody_knows_v6() -> Result<()> {
    back_past_a_firewall(Family::V6)
}
