//! Relayed sessions end, and the programs of their host do.

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Close, Group, Plan, Reading, Side, all_intact};
use dysco_netns::{Family, Lab, Role, wait};

use super::{LIMIT, alone, relayed, remove};
use crate::world::World;
use crate::world::fates::Ends;

/// All ways in which a session ends.
const WAYS: [Close; 5] = [
    Close::First(Side::Client),
    Close::First(Side::Server),
    Close::Together,
    Close::Reset(Side::Client),
    Close::Reset(Side::Server),
];

fn end_all(w: &World, groups: Vec<Group>, ways: &[Close]) -> Result<()> {
    for group in &groups {
        group.stop();
        group.set_reading(Side::Server, Reading::Fast);
        group.set_reading(Side::Client, Reading::Fast);
    }
    for (group, way) in groups.into_iter().zip(ways) {
        let intact = group.finish().and_then(|o| all_intact(&o));
        intact.with_context(|| format!("{way:?}\n{}", w.state()))?;
    }
    wait::until("all changes to end", LIMIT, || {
        let counters = w.counters(Role::Proxy);
        let quiet = counters.is_ok_and(|c| c["changes_under_way"] == 0);
        quiet.then_some(())
    })
    .with_context(|| w.state())
}

#[test]
fn they_end_in_each_way_afterwards() -> Result<()> {
    let mut w = alone(Lab::builder("localend"), Family::V4)?;
    let groups = w.open_to_end(&WAYS)?;
    remove(&w, WAYS.len())?;
    for group in &groups {
        group.wait_progress(200_000)?;
    }
    drop(w.haproxy.take());
    end_all(&w, groups, &WAYS)?;
    // The log reports each end once.
    let log = w.daemon(Role::Proxy)?.log();
    let told = log.matches("has ended").count() + log.matches("was reset").count();
    ensure!(told == WAYS.len(), "{told} ends are told\n{log}");
    w.finish()
}

#[test]
fn they_end_in_each_way_while_draining() -> Result<()> {
    let mut w = alone(Lab::builder("localdrain"), Family::V4)?;
    for paused in [Side::Server, Side::Client] {
        let groups = w.open_to_end(&WAYS)?;
        for group in &groups {
            group.set_reading(paused, Reading::Paused);
        }
        let before = w.daemon(Role::Proxy)?.log().matches("Cut { change").count();
        for group in &groups {
            w.begin(&w.ends(group)?[0])?;
        }
        let daemon = w.daemon(Role::Proxy)?;
        wait::until("the cuts", LIMIT, || {
            let cuts = daemon.log().matches("Cut { change").count();
            (cuts >= before + WAYS.len()).then_some(())
        })?;
        end_all(&w, groups, &WAYS).with_context(|| format!("draining to {paused:?}"))?;
    }
    w.finish()
}

/// Results of sessions whose removal may have been interrupted. Both entries must have the same
/// result.
fn settled(w: &World, ends: &[Ends]) -> Result<Vec<bool>> {
    let mut seen = String::new();
    wait::until("the changes to end", LIMIT, || {
        let counters = w.counters(Role::Proxy).ok()?;
        let sessions = w.sessions(Role::Proxy).ok()?;
        let state = |local: &str, remote: &str| {
            let found = sessions
                .iter()
                .find(|s| s["local"] == local && s["remote"] == remote);
            found.and_then(|s| s["state"].as_str()).unwrap_or("gone")
        };
        let of = |e: &Ends| match (state(&e.listen, &e.client), state(&e.proxy, &e.server)) {
            ("relayed", "relayed") => Some(true),
            ("tracked", "tracked") => Some(false),
            _ => None,
        };
        seen = format!("{sessions:#?}");
        let fates = ends.iter().map(of).collect::<Option<Vec<bool>>>()?;
        (counters["changes_under_way"] == 0).then_some(fates)
    })
    .with_context(|| seen)
}

/// The daemon is killed before each of its steps in turn, in removals of one session each, and
/// restarted.
#[test]
fn the_daemon_dies() -> Result<()> {
    let before = [
        "Measure",
        "LockPair",
        "Measure:2",
        "Persist",
        "Join",
        "Persist:2",
        "Cut",
        "Persist:3",
        "Complete",
        "Close",
        "Unlock",
        "Erase",
    ];
    let mut w = alone(Lab::builder("localdies"), Family::V4)?;
    let plan = Plan {
        rate: Some(500_000),
        ..Plan::default()
    };
    let group = w.open(before.len(), &plan)?;
    group.run();
    group.wait_progress(50_000)?;
    let ends = w.ends(&group)?;
    for (name, own) in before.iter().zip(&ends) {
        w.wait_removable(std::slice::from_ref(own))?;
        w.fault(Role::Proxy, &format!("die:{name}"))?;
        w.begin(own)?;
        let daemon = w.daemon(Role::Proxy)?;
        wait::until("death", LIMIT, || (!daemon.runs()).then_some(()))
            .with_context(|| format!("it does not come to {name}"))?;
        group.wait_progress(20_000)?;
        w.fault(Role::Proxy, "")?;
        w.restart(Role::Proxy)?;
        let after = format!("died before {name}");
        group.wait_progress(20_000).context(after.clone())?;
        settled(&w, std::slice::from_ref(own)).context(after)?;
    }
    let fates = settled(&w, &ends)?;
    let named: Vec<_> = before.iter().zip(&fates).collect();
    println!("{named:?}");
    let cut = before.iter().position(|name| *name == "Cut");
    for (i, out) in fates.iter().enumerate() {
        ensure!(*out == (Some(i) >= cut), "{named:?}");
    }
    let left = ends.iter().zip(&fates).filter(|(_, out)| !**out);
    let left: Vec<_> = left.map(|(ends, _)| ends.clone()).collect();
    w.wait_removable(&left)?;
    w.remove_these(&left)?;
    drop(w.haproxy.take());
    group.wait_progress(50_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// The relaying continues without the daemon, and a reload of the proxy leaves no process behind.
#[test]
fn daemons_and_proxies_come_and_go() -> Result<()> {
    let mut w = alone(Lab::builder("localgo"), Family::V4)?;
    let group = w.open(3, &Plan::paced(2_000_000, Close::First(Side::Client)))?;
    group.run();
    group.wait_progress(200_000)?;
    w.wait_removable(&w.ends(&group)?)?;
    remove(&w, 3)?;

    let mut old = w.haproxy.take().context("there is one")?;
    let pid = old.id().to_string();
    let new = w.proxy("reloaded", crate::world::PROXY_PORT, |c| c.reloading(&pid))?;
    w.haproxy = Some(new);
    wait::until("the old proxy to end", LIMIT, || {
        (!old.runs()).then_some(())
    })?;
    group.wait_progress(200_000)?;

    for kill in [true, false] {
        let daemon = w.daemon(Role::Proxy)?;
        match kill {
            true => drop(daemon.kill()?),
            false => daemon.stop()?,
        }
        group.wait_progress(200_000)?;
        w.restart(Role::Proxy)?;
        relayed(&w, &group)?;
        group.wait_progress(200_000)?;
    }
    // New sessions pass the new proxy, and lose it too.
    let later = w.open(2, &Plan::paced(2_000_000, Close::First(Side::Server)))?;
    later.run();
    later.wait_progress(200_000)?;
    w.wait_removable(&w.ends(&later)?)?;
    remove(&w, 2)?;
    for group in [group, later] {
        group.wait_progress(200_000)?;
        all_intact(&group.finish()?)?;
    }
    w.finish()
}
