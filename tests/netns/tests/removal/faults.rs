//! Messages are lost and daemons die in the middle of removals: every byte
//! arrives, and no session is left half removed.

use std::time::Duration;

use crate::world::World;
use crate::world::fates::Fate;
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Lab, Role, wait};

use Role::{Client, Proxy, Server};

/// Returns a plan for many sessions that leaves the processor to the daemons.
fn gentle() -> Plan {
    Plan {
        rate: Some(500_000),
        ..Plan::default()
    }
}

/// Messages of a removal and their senders. The left anchor sends `Switched` and `Done` first to
/// the right anchor, then to the proxy's host.
const SAID: [(Role, &str); 15] = [
    (Proxy, "Leave"),
    (Proxy, "Introduce"),
    (Client, "RequestLock"),
    (Server, "Introduced"),
    (Client, "SetUp"),
    (Proxy, "AckLock"),
    (Server, "SetUpAck"),
    (Client, "Switched"),
    (Client, "Switched:2"),
    (Server, "Switched"),
    (Server, "Drained"),
    (Client, "Done"),
    (Server, "DoneAck"),
    (Client, "Done:2"),
    (Proxy, "DoneAck"),
];

#[test]
fn every_message_lost_once() -> Result<()> {
    let w = World::new(Lab::builder("lost"), Family::V4)?;
    let group = w.open(SAID.len() + 2, &gentle())?;
    group.run();
    group.wait_progress(50_000)?;
    let ends = w.ends(&group)?;
    for ((role, message), ends) in SAID.iter().zip(&ends) {
        let name = message.split(':').next().unwrap_or_default();
        let before = w.lost(*role, name)?;
        w.fault(*role, &format!("drop:{message}"))?;
        removed(&w, &ends.name()).with_context(|| format!("{message} of {role:?} was lost"))?;
        w.fault(*role, "")?;
        let lost = w.lost(*role, name)? - before;
        ensure!(lost == 1, "{message} of {role:?} was lost {lost} times");
    }
    // All messages are lost in one removal.
    for role in Role::ALL {
        let own = SAID.iter().filter(|(r, _)| *r == role);
        let words: Vec<_> = own.map(|(_, m)| format!("drop:{m}")).collect();
        w.fault(role, &words.join(","))?;
    }
    removed(&w, &ends[SAID.len()].name()).context("everything was lost once")?;
    // The messages of a neighbour's request are lost too.
    w.fault(Client, "drop:Ask")?;
    w.fault(Proxy, "drop:Asked")?;
    w.fault(Server, "")?;
    let last = &ends[SAID.len() + 1];
    let name = format!("{}>{}", last.client, last.listen);
    let done = w.remove_from(Client, "10.0.2.1", &["--session", &name])?;
    ensure!(done["summary"]["removed"] == 1, "{done:#}");
    group.wait_progress(100_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

fn removed(w: &World, session: &str) -> Result<()> {
    let done = w.remove(&["--session", session])?;
    ensure!(done["summary"]["removed"] == 1, "{done:#}\n{}", w.state());
    Ok(())
}

#[test]
fn a_new_path_that_is_never_set_up_is_taken_back() -> Result<()> {
    let w = World::new(Lab::builder("nosetup"), Family::V4)?;
    let group = w.open(2, &gentle())?;
    group.run();
    group.wait_progress(50_000)?;
    let ends = w.ends(&group)?;
    w.fault(Client, "lose:SetUp,drop:Cancel,drop:Cancel:2")?;
    w.fault(Proxy, "drop:CancelAck")?;
    w.fault(Server, "drop:CancelAck")?;
    let done = w.remove_all()?;
    ensure!(done["summary"]["rolled_back"] == 2, "{done:#}");
    let reason = done["removals"][0]["reason"].to_string();
    ensure!(
        reason.contains("no answer in time while setting up the new path"),
        "{reason}"
    );
    let fates = w.settle(&ends)?;
    ensure!(fates.iter().all(|f| *f == Fate::Tracked), "{fates:?}");
    group.wait_progress(100_000)?;
    w.fault(Client, "")?;
    w.remove_all_of(2)?;
    group.wait_progress(100_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// The message that the right anchor has locked never arrives, and the message that the left
/// anchor's lock was in vain arrives late.
#[test]
fn a_lock_that_is_not_granted_is_released() -> Result<()> {
    let w = World::new(Lab::builder("nolock"), Family::V6)?;
    let group = w.open(1, &gentle())?;
    group.run();
    group.wait_progress(50_000)?;
    let ends = w.ends(&group)?;
    w.fault(Server, "lose:Introduced")?;
    w.fault(Proxy, "drop:NackLock")?;
    let done = w.remove_all()?;
    ensure!(done["summary"]["removed"] == 0, "{done:#}");
    let lost = w.lost(Proxy, "NackLock")?;
    ensure!(lost == 1, "NackLock was lost {lost} times\n{}", w.state());
    let fates = w.settle(&ends)?;
    ensure!(fates.iter().all(|f| *f == Fate::Tracked), "{fates:?}");
    group.wait_progress(100_000)?;
    w.fault(Server, "")?;
    w.remove_all_of(1)?;
    group.wait_progress(100_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// The daemon of a host is killed before each of these points in turn, in removals of one session
/// each, and restarted.
fn dies(role: Role, before: &[&str]) -> Result<()> {
    let mut w = World::new(Lab::builder("dies"), Family::V4)?;
    let group = w.open(before.len(), &gentle())?;
    group.run();
    group.wait_progress(50_000)?;
    let ends = w.ends(&group)?;
    for (name, own) in before.iter().zip(&ends) {
        w.wait_removable(std::slice::from_ref(own))?;
        w.fault(role, &format!("die:{name}"))?;
        w.begin(own)?;
        let daemon = w.daemon(role)?;
        let limit = Duration::from_secs(30);
        wait::until("death", limit, || (!daemon.runs()).then_some(()))
            .with_context(|| format!("{role:?} does not come to {name}"))?;
        group.wait_progress(20_000)?;
        w.fault(role, "")?;
        w.restart(role)?;
        let after = format!("{role:?} died before {name}");
        group.wait_progress(20_000).context(after.clone())?;
        w.settle(std::slice::from_ref(own)).context(after)?;
    }
    let fates = w.settle(&ends)?;
    let named: Vec<_> = before.iter().zip(&fates).collect();
    println!("{role:?}: {named:?}");
    let left = ends.iter().zip(&fates);
    let left: Vec<_> = left
        .filter(|(_, fate)| **fate == Fate::Tracked)
        .map(|(ends, _)| ends.clone())
        .collect();
    w.wait_removable(&left)?;
    w.remove_these(&left)?;
    let fates = w.settle(&ends)?;
    ensure!(fates.iter().all(|f| *f == Fate::Removed), "{fates:?}");
    group.wait_progress(50_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn the_left_anchors_daemon_dies() -> Result<()> {
    dies(
        Client,
        &[
            "Lock",
            "RequestLock",
            "Persist",
            "Reserve",
            "SetUp",
            "Persist:2",
            "Prepare",
            "Try",
            "Persist:3",
            "Cut",
            "Switched",
            "SetCutIn",
            "Persist:4",
            "Complete",
            "Done",
            "Done:2",
            "Unlock",
            "Erase",
        ],
    )
}

#[test]
fn the_proxys_daemon_dies() -> Result<()> {
    dies(
        Proxy,
        &[
            "Measure",
            "Leave",
            "Introduce",
            "Measure:2",
            "Persist",
            "AckLock",
            "Close",
            "Erase",
            "DoneAck",
        ],
    )
}

#[test]
fn the_right_anchors_daemon_dies() -> Result<()> {
    dies(
        Server,
        &[
            "Lock",
            "Introduced",
            "Persist",
            "Prepare",
            "SetUpAck",
            "Persist:2",
            "SetCutIn",
            "Cut",
            "Switched",
            "Drained",
            "Complete",
            "Unlock",
            "Erase",
            "DoneAck",
        ],
    )
}

/// The remains of a removal whose session has ended are not attributed to the next session with the
/// same five-tuple: the client's daemon was down in the meantime, and has a record of the removal.
#[test]
fn a_record_that_outlives_its_session_is_no_other_ones() -> Result<()> {
    let mut w = World::new(Lab::builder("outlived"), Family::V4)?;
    // Both sessions have the same port, in quick succession.
    for (name, value) in [
        ("ip_local_port_range", "50000 50000"),
        ("tcp_tw_reuse", "1"),
    ] {
        w.lab.client.sysctl(&format!("net.ipv4.{name}"), value)?;
    }
    let group = w.open(1, &gentle())?;
    group.run();
    group.wait_progress(50_000)?;
    let first = w.ends(&group)?;
    w.wait_removable(&first)?;
    // The daemon continues to send that it is done, and dies at this point.
    w.fault(Proxy, "lose:DoneAck")?;
    w.fault(Client, "die:Done:3")?;
    w.begin(&first[0])?;
    let limit = Duration::from_secs(30);
    let daemon = w.daemon(Client)?;
    wait::until("death", limit, || (!daemon.runs()).then_some(()))?;
    group.wait_progress(50_000)?;
    all_intact(&group.finish()?)?;

    let next = wait::until("the port", limit, || w.open(1, &gentle()).ok())?;
    next.run();
    next.wait_progress(20_000)?;
    w.fault(Client, "")?;
    w.restart(Client)?;
    w.fault(Proxy, "")?;
    let second = w.ends(&next)?;
    ensure!(second[0].client == first[0].client, "{second:?}");
    ensure!(w.settle(&second)? == [Fate::Tracked]);
    for session in w.sessions(Client)? {
        let mine = session["local"] == second[0].client && session["ended"] == false;
        let told = session["history"].as_array().is_some_and(|h| !h.is_empty());
        ensure!(!mine || !told, "it is told of another's: {session:#}");
    }
    next.wait_progress(200_000)?;
    all_intact(&next.finish()?)?;
    w.finish()
}
