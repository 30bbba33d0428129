//! A host that stays in a chain while its `dyscod` is down. The host that opened the session then
//! states by which of two paths the session passes; the host does not guess.

use std::fs;
use std::time::Duration;

use crate::steered::{At, Steered};
use anyhow::{Context, Result};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, wait};

const PATIENCE: Duration = Duration::from_secs(60);

fn get_on(world: &Steered, group: &Group) -> Result<()> {
    group.wait_progress(1 << 20).with_context(|| world.logs())
}

/// Waits until the session can be given this chain.
fn becomes(world: &Steered, session: &str, chain: &[At]) -> Result<()> {
    wait::until("the session to be free", PATIENCE, || {
        let done = world.reconfigure(session, chain, &[]).ok()?;
        (done["outcome"] == "changed").then_some(())
    })
    .with_context(|| world.logs())
}

/// Begins a change, and does not wait for its end.
fn begin(world: &Steered, session: &str, chain: &[At]) -> Result<()> {
    let hosts: Vec<_> = chain.iter().map(|at| world.ip(*at)).collect();
    let words = ["reconfigure", session, "--chain", &hosts.join(",")];
    world.ctl(At::Client, &words).map(drop)
}

/// Waits for the end of a change that is rolled back, according to the host that began it.
fn wait_taken_back(world: &Steered, times: usize) -> Result<()> {
    wait::until("the change to be taken back", PATIENCE, || {
        let known = world.sessions(At::Client).ok()?;
        let told = known.first()?["history"].to_string();
        (told.matches("rolled back").count() >= times).then_some(())
    })
    .with_context(|| world.logs())
}

/// Opens a session through the first firewall, whose `dyscod` has died when it was to give up a
/// path: the path through both firewalls, which both ends had taken and have left again. The
/// session has been idle since before that, so that no packet has passed that distinguishes the two
/// paths. The deciding host no longer waits for the firewall's host.
fn taken_back_meanwhile(world: &mut Steered, faults: &str) -> Result<(Group, String)> {
    let group = world.open(1, &Plan::gentle())?;
    group.run();
    get_on(world, &group)?;
    let session = world.name(group.locals()[0]);
    world.update_chain(&session, &[At::Fw1])?;
    world.set_faults(At::Server, "lose:Settled")?;
    world.set_faults(At::Fw1, faults)?;
    begin(world, &session, &[At::Fw1, At::Fw2])?;
    wait::until("the new path to be taken", PATIENCE, || {
        let passed = world.counted(At::Fw2, "passed").ok()?;
        (passed > 50).then_some(())
    })?;
    group.rest()?;
    world.wait_dead(At::Fw1)?;
    wait_taken_back(world, 1)?;
    Ok((group, session))
}

/// Its `dyscod` dies in the next change as well, which is also rolled back, and it cannot ask in
/// between.
#[test]
fn a_daemon_that_stays_is_away_in_two_changes_one_after_the_other() -> Result<()> {
    let mut world = Steered::new(Family::V4)?;
    let faults = "lose:WhichPath,die:Forget";
    let (group, session) = taken_back_meanwhile(&mut world, faults)?;
    world.restart(At::Fw1)?;
    begin(&world, &session, &[At::Fw2, At::Fw1])?;
    world.wait_dead(At::Fw1)?;
    world.set_faults(At::Server, "")?;
    world.set_faults(At::Fw1, "lose:WhichPath")?;
    world.restart(At::Fw1)?;
    wait_taken_back(&world, 2)?;
    group.run();
    get_on(&world, &group)?;
    world.wait_only_through(&[At::Fw1])?;
    becomes(&world, &session, &[At::Fw2, At::Fw1])?;
    get_on(&world, &group)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// No further change is requested: a daemon that starts again asks which path is in use, and gives
/// up the other one.
#[test]
fn a_daemon_that_begins_anew_asks_by_which_path_a_session_passes() -> Result<()> {
    let mut world = Steered::new(Family::V6)?;
    let (group, session) = taken_back_meanwhile(&mut world, "die:Forget")?;
    world.set_faults(At::Server, "")?;
    world.set_faults(At::Fw1, "")?;
    world.restart(At::Fw1)?;
    let said = "has reported the session's paths here";
    let log = world.host(At::Fw1).dir().join("dyscod.log");
    wait::until("the host to be told", PATIENCE, || {
        fs::read_to_string(&log).ok()?.contains(said).then_some(())
    })
    .with_context(|| world.logs())?;
    group.run();
    get_on(&world, &group)?;
    world.wait_only_through(&[At::Fw1])?;
    becomes(&world, &session, &[At::Fw1, At::Fw2])?;
    get_on(&world, &group)?;
    all_intact(&group.finish()?)?;
    world.finish()
}
