//! Chains change around hosts that stay in them, while data flows in both directions: the firewall
//! of such a host sees one connection all the time.

use std::time::Duration;

use crate::steered::{At, Steered};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, wait};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(60);

/// Opens a session that is busy in both directions. Returns the session and its name.
fn busy(world: &Steered) -> Result<(Group, String)> {
    let group = world.open(1, &Plan::gentle())?;
    group.run();
    get_on(world, &group)?;
    let session = world.name(group.locals()[0]);
    Ok((group, session))
}

/// Waits until both ends have received data.
fn get_on(world: &Steered, group: &Group) -> Result<()> {
    group.wait_progress(4 << 20).with_context(|| world.logs())
}

/// Returns a firewall's identifier of the connection.
fn connection(world: &Steered, fw: At) -> Result<String> {
    let words = ["-L", "-p", "tcp", "-o", "id"];
    let all = world.host(fw).output("conntrack", &words)?;
    let ours = all.lines().find(|line| line.contains("dport=9000"));
    let id = ours.and_then(|line| line.split("id=").last());
    Ok(id.context("no connection")?.trim().to_owned())
}

/// Gives the session this chain, and checks that all data takes it.
fn takes(world: &Steered, group: &Group, session: &str, chain: &[At]) -> Result<()> {
    world.update_chain(session, chain)?;
    let hosts: Vec<_> = chain.iter().map(|at| world.ip(*at)).collect();
    ensure!(world.chain_of(session)? == json!(hosts));
    world.wait_only_through(chain)?;
    get_on(world, group)
}

/// Makes the firewall drop SYNs and SYN-ACKs.
fn drop_syns(world: &Steered, fw: At) -> Result<()> {
    let rule = "insert rule inet fw forward tcp flags & syn == syn counter name dropped drop";
    let words: Vec<_> = rule.split(' ').collect();
    world.host(fw).output("nft", &words).map(drop)
}

fn nothing_refused(world: &Steered) -> Result<()> {
    for fw in At::FIREWALLS {
        let refused = world.refused(fw)?;
        ensure!(refused == 0, "{fw:?} refused {refused}\n{}", world.logs());
    }
    Ok(())
}

/// Another host enters after it and before it, leaves again, and changes places with it.
fn around(family: Family) -> Result<()> {
    let world = Steered::new(family)?;
    let (group, session) = busy(&world)?;
    takes(&world, &group, &session, &[At::Fw1])?;
    let first = connection(&world, At::Fw1)?;
    // It is not involved in handshakes of other paths.
    drop_syns(&world, At::Fw1)?;
    for chain in [
        &[At::Fw1, At::Fw2][..],
        &[At::Fw2, At::Fw1],
        &[At::Fw1],
        &[At::Fw2, At::Fw1],
    ] {
        takes(&world, &group, &session, chain)?;
        ensure!(connection(&world, At::Fw1)? == first, "{chain:?}: another");
        nothing_refused(&world)?;
        // The host lists one session, not two paths of it.
        let known = world.sessions(At::Fw1)?;
        ensure!(known.len() == 2, "{known:#?}");
    }
    takes(&world, &group, &session, &[At::Fw2])?;
    world.wait_forgotten(At::Fw1)?;
    takes(&world, &group, &session, &[])?;
    world.wait_forgotten(At::Fw2)?;
    nothing_refused(&world)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn another_comes_and_goes_around_a_firewall_that_stays() -> Result<()> {
    around(Family::V4)
}

#[test]
fn another_comes_and_goes_around_a_firewall_that_stays_v6() -> Result<()> {
    around(Family::V6)
}

/// All hosts, including the host that stays, forget the path that was tried.
#[test]
fn it_stays_as_it_was_where_the_new_path_is_dead() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let (group, session) = busy(&world)?;
    takes(&world, &group, &session, &[At::Fw1])?;
    drop_syns(&world, At::Fw2)?;
    for chain in [&[At::Fw1, At::Fw2], &[At::Fw2, At::Fw1]] {
        let tried = world.reconfigure(&session, chain, &[])?;
        ensure!(tried["outcome"] == "rolled_back", "{tried:#}");
        world
            .wait_only_through(&[At::Fw1])
            .with_context(|| format!("{chain:?}\n{}", world.logs()))?;
        get_on(&world, &group)?;
        let known = world.sessions(At::Fw1)?;
        ensure!(
            known.len() == 2 && known.iter().all(|s| s["state"] == "chained"),
            "{known:#?}"
        );
    }
    ensure!(world.refused(At::Fw1)? == 0);
    takes(&world, &group, &session, &[])?;
    world.wait_forgotten(At::Fw1)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Without marks, what the stacks have accepted identifies the path.
#[test]
fn a_firewall_that_clears_marks_may_stay() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let rule = "insert rule inet fw forward meta mark set 0";
    let words: Vec<_> = rule.split(' ').collect();
    world.host(At::Fw1).output("nft", &words)?;
    let (group, session) = busy(&world)?;
    for chain in [
        &[At::Fw1][..],
        &[At::Fw1, At::Fw2],
        &[At::Fw2, At::Fw1],
        &[At::Fw1],
    ] {
        takes(&world, &group, &session, chain)?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The daemon of the host that stays dies when it is to forget the old path. Once the daemon runs
/// again, it forgets the path.
#[test]
fn its_daemon_may_die_meanwhile() -> Result<()> {
    let mut world = Steered::new(Family::V4)?;
    let (group, session) = busy(&world)?;
    takes(&world, &group, &session, &[At::Fw1])?;
    let both = format!("{},{}", world.ip(At::Fw1), world.ip(At::Fw2));
    for fault in ["die:Enlist", "die:Enlisted", "die:Forget", "die:Dismissed"] {
        world.set_faults(At::Fw1, fault)?;
        let words = ["reconfigure", &session, "--chain", &both];
        world.ctl(At::Client, &words)?;
        world.wait_dead(At::Fw1)?;
        get_on(&world, &group).with_context(|| fault.to_owned())?;
        world.set_faults(At::Fw1, "")?;
        world.restart(At::Fw1)?;
        get_on(&world, &group).with_context(|| fault.to_owned())?;
        // The change in progress ends, and the session has one path again.
        wait::until("the session to be free", PATIENCE, || {
            let done = world.reconfigure(&session, &[At::Fw2, At::Fw1], &[]).ok()?;
            (done["outcome"] == "changed").then_some(())
        })
        .with_context(|| format!("{fault}\n{}", world.logs()))?;
        takes(&world, &group, &session, &[At::Fw1])?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

/// No host asks a daemon that starts again to forget the old path. The path does no harm, and no
/// later change takes it for its own.
#[test]
fn a_path_that_it_was_not_told_to_forget_is_not_taken_again() -> Result<()> {
    let mut world = Steered::new(Family::V4)?;
    let (group, session) = busy(&world)?;
    takes(&world, &group, &session, &[At::Fw1])?;
    let both = [At::Fw1, At::Fw2];
    world.set_faults(At::Fw1, "die:Forget")?;
    world.update_chain(&session, &both)?;
    world.wait_dead(At::Fw1)?;
    world.set_faults(At::Fw1, "")?;
    world.restart(At::Fw1)?;
    get_on(&world, &group).with_context(|| world.logs())?;

    // The host does not receive even the request of this change.
    world.set_faults(At::Client, "lose:Enlist")?;
    let tried = world.reconfigure(&session, &[At::Fw1], &[])?;
    ensure!(tried["outcome"] == "rolled_back", "{tried:#}");
    world.set_faults(At::Client, "")?;
    world.wait_only_through(&both)?;
    takes(&world, &group, &session, &[At::Fw2])?;
    world.wait_forgotten(At::Fw1)?;
    nothing_refused(&world)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The daemon of a host is down while the session leaves the host, and no host asks it later to
/// forget the session. The host enters the chain later as if it had forgotten.
#[test]
fn one_that_was_not_told_to_forget_a_session_takes_it_anew() -> Result<()> {
    let mut world = Steered::new(Family::V4)?;
    let (group, session) = busy(&world)?;
    takes(&world, &group, &session, &[At::Fw1])?;
    world.set_faults(At::Fw1, "die:Forget")?;
    world.update_chain(&session, &[At::Fw2])?;
    world.wait_dead(At::Fw1)?;
    world.set_faults(At::Fw1, "")?;
    world.restart(At::Fw1)?;
    get_on(&world, &group)?;
    for chain in [&[At::Fw1][..], &[At::Fw2, At::Fw1], &[]] {
        takes(&world, &group, &session, chain)?;
    }
    world.wait_forgotten(At::Fw1)?;
    all_intact(&group.finish()?)?;
    world.finish()
}
