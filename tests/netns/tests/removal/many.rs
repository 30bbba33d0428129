//! Many sessions at the same time, and all the ways to select them.

use anyhow::{Result, ensure};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Lab, Role};
use serde_json::Value;

use crate::world::World;
use crate::world::fates::{Ends, Fate};

const MANY: usize = 1000;

/// Address of the proxy's host.
const PROXY: &str = "10.0.2.1";

#[test]
fn a_thousand_sessions_at_once_under_load() -> Result<()> {
    let w = World::new(Lab::builder("many"), Family::V4)?;
    let plan = Plan {
        rate: Some(4_000),
        write: 1_000,
        after_close: 2_000,
        ..Plan::default()
    };
    let group = w.open(MANY, &plan)?;
    group.run();
    group.wait_progress(3_000)?;
    // A session is known once its proxy has spliced it.
    dysco_netns::wait::until("all pairs", std::time::Duration::from_secs(60), || {
        let status = w.fleet.json(&w.lab.proxy, &["status"]).ok()?;
        (status["pairs"] == MANY).then_some(())
    })?;
    w.remove_all_of(MANY)?;
    let before = w.lab.proxy_packets()?;
    group.wait_progress(4_000)?;
    let seen = w.lab.proxy_packets()? - before;
    ensure!(seen < 100, "the proxy still sees {seen} packets");
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn sessions_by_every_name_and_from_every_host() -> Result<()> {
    let w = World::new(Lab::builder("names"), Family::V4)?;
    let plan = Plan {
        rate: Some(1_000_000),
        ..Plan::default()
    };
    let group = w.open(8, &plan)?;
    group.run();
    group.wait_progress(100_000)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;

    let done = w.remove(&["--all", "--dry-run"])?;
    ensure!(done["summary"]["removable"] == 8, "{done:#}");
    let fates = w.settle(&ends)?;
    ensure!(fates.iter().all(|f| *f == Fate::Tracked), "{fates:?}");
    for role in Role::ALL {
        let translated = w.counters(role)?["packets_translated"].clone();
        ensure!(translated == 0, "{role:?} translated {translated} packets");
    }

    for (at, (role, host, name)) in ways(&w, &ends)?.iter().enumerate() {
        let done = w.remove_from(*role, host, &["--session", name])?;
        removed(&done, 1)?;
        let fates = w.settle(&ends)?;
        let gone = fates.iter().filter(|f| **f == Fate::Removed).count();
        ensure!(
            gone == at + 1 && fates[at] == Fate::Removed,
            "{at}: {fates:?}"
        );
    }
    removed(&w.remove_from(Role::Client, PROXY, &["--all"])?, 2)?;
    let later = w.open(2, &plan)?;
    later.run();
    later.wait_progress(100_000)?;
    w.wait_removable(&w.ends(&later)?)?;
    removed(&w.remove_from(Role::Server, PROXY, &["--all"])?, 2)?;

    for group in [group, later] {
        group.wait_progress(100_000)?;
        all_intact(&group.finish()?)?;
    }
    w.finish()
}

/// Returns the names of the first six sessions, each with the host that is asked, and the name of
/// the middlebox there.
fn ways(w: &World, e: &[Ends]) -> Result<[(Role, &'static str, String); 6]> {
    let id = |role: Role, local: &str, remote: &str| -> Result<String> {
        let all = w.sessions(role)?;
        let found = all
            .iter()
            .find(|s| s["local"] == local && s["remote"] == remote);
        let id = found.and_then(|s| s["id"].as_str());
        Ok(id.unwrap_or_default().to_owned())
    };
    Ok([
        (
            Role::Proxy,
            "self",
            id(Role::Proxy, &e[0].listen, &e[0].client)?,
        ),
        (Role::Proxy, PROXY, e[1].name()),
        (
            Role::Client,
            PROXY,
            id(Role::Client, &e[2].client, &e[2].listen)?,
        ),
        (
            Role::Client,
            PROXY,
            format!("{}>{}", e[3].client, e[3].listen),
        ),
        (
            Role::Server,
            PROXY,
            id(Role::Server, &e[4].server, &e[4].proxy)?,
        ),
        (
            Role::Server,
            PROXY,
            format!("{}>{}", e[5].server, e[5].proxy),
        ),
    ])
}

fn removed(done: &Value, count: usize) -> Result<()> {
    let summary = &done["summary"];
    let all = done["removals"].as_array().map_or(0, Vec::len);
    ensure!(summary["removed"] == count && all == count, "{done:#}");
    Ok(())
}
