//! Settings that other tests leave at their defaults: the attachment of programs, and removals
//! without a request.

use std::time::Duration;

use crate::world::{DECLARED, World};
use anyhow::Result;
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Lab, Role, wait};

const LIMIT: Duration = Duration::from_secs(60);
const ALL: [Role; 3] = [Role::Client, Role::Proxy, Role::Server];

/// Waits until the proxy of the only session has left.
fn wait_removed(w: &World) -> Result<()> {
    wait::until("a removed session", LIMIT, || {
        let status = w.fleet.json(&w.lab.client, &["status"]).ok()?;
        (status["sessions"]["removed"] == 1).then_some(())
    })
}

#[test]
fn clsact_does_as_well_and_is_replaced_under_traffic() -> Result<()> {
    let config = format!("[data_plane]\nattach = \"clsact\"\n\n{DECLARED}");
    let mut w = World::with(Lab::builder("clsact"), Family::V4, &ALL, &config, |c| c)?;
    let group = w.open(2, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    w.remove_all_of(2)?;
    for (role, daemon) in &mut w.daemons {
        daemon.process.kill()?;
        let file = w.fleet.prepare(&w.lab, *role, &config)?;
        *daemon = w.fleet.restart(&w.lab, *role, &file)?;
        group.wait_progress(1 << 20)?;
    }
    let filters = w
        .lab
        .client
        .output("tc", &["filter", "show", "dev", "eth0", "egress"])?;
    assert_eq!(filters.matches("name dysco_egress").count(), 1, "{filters}");
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn an_automatic_removal_needs_no_request() -> Result<()> {
    let config = format!("[removal]\nautomatic = true\n\n{DECLARED}");
    let w = World::with(Lab::builder("automatic"), Family::V4, &ALL, &config, |c| c)?;
    let group = w.open(1, &Plan::default())?;
    group.run();
    wait_removed(&w)?;
    wait::until("the removal to be counted", LIMIT, || {
        let counters = w.counters(Role::Proxy).ok()?;
        (counters["changes_done"] == 1).then_some(())
    })?;
    group.wait_progress(4 << 20)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// The server's host has no daemon at the first time at which the session could lose its proxy.
#[test]
fn an_automatic_removal_is_tried_again() -> Result<()> {
    let config = format!("[removal]\nautomatic = true\nmode = \"bypass\"\n\n{DECLARED}");
    let mut w = World::with(Lab::builder("again"), Family::V4, &ALL, &config, |c| c)?;
    w.daemon(Role::Server)?.kill()?;
    let mut monitor = w.fleet.monitor(&w.lab.proxy)?;
    let group = w.open(1, &Plan::default())?;
    group.run();
    wait::until("a refusal", LIMIT, || {
        let log = monitor.log();
        (log.contains("\"refused\"") || log.contains("\"rolled_back\"")).then_some(())
    })?;
    monitor.stop()?;
    w.restart(Role::Server)?;
    wait_removed(&w)?;
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// Openings are reported only if someone watches.
#[test]
fn who_watches_hears_of_what_opens() -> Result<()> {
    let w = World::with(Lab::builder("watch"), Family::V4, &ALL, DECLARED, |c| c)?;
    let mut monitor = w.fleet.monitor(&w.lab.client)?;
    // Once the first opening is reported, the following ones are reported too.
    let mut opened = 0;
    wait::until("word of a session that opens", LIMIT, || {
        let group = w.open(1, &Plan::default()).ok()?;
        all_intact(&group.finish().ok()?).ok()?;
        opened += 1;
        monitor.log().contains("\"opened\"").then_some(())
    })?;
    let heard = monitor.log().matches("\"opened\"").count();
    assert!(heard <= opened, "{heard} of {opened}:\n{}", monitor.log());
    monitor.stop()?;
    w.finish()
}

#[test]
fn a_listener_that_shall_keep_its_proxy_does() -> Result<()> {
    let config =
        "[removal]\nautomatic = true\n\n[[listener]]\naddress = \":8080\"\ntransparent = false\n";
    let w = World::with(Lab::builder("kept"), Family::V4, &ALL, config, |c| c)?;
    let group = w.open(1, &Plan::default())?;
    group.run();
    group.wait_progress(8 << 20)?;
    let done = w.remove_all()?;
    assert_eq!(done["summary"]["refused"], 1, "{done:#}");
    let reason = done["removals"][0]["reason"].to_string();
    assert!(reason.contains("transparent = false"), "{done:#}");
    group.rest()?;
    all_intact(&group.finish()?)?;
    w.finish()
}
