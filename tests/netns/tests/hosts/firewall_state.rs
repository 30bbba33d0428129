//! State of sessions moves between strict firewalls while data flows.

use std::time::Duration;

use crate::firewalls::{Firewalls, Fw};
use anyhow::{Context, Result, ensure};
use dysco_netns::Family;
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::wait;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

fn names(world: &Firewalls, group: &Group) -> Vec<String> {
    group.locals().iter().map(|l| world.name(*l)).collect()
}

/// Returns the document of a kind.
fn of_kind<'a>(documents: &'a Value, kind: &str) -> Result<&'a Value> {
    let mut all = documents.as_array().into_iter().flatten();
    all.find(|d| d["kind"] == kind)
        .with_context(|| format!("no {kind} in {documents:#}"))
}

/// Waits until the entry checks windows as any other does.
fn wait_settled(world: &Firewalls, fw: Fw, session: &str) -> Result<()> {
    wait::until("the entry to settle", PATIENCE, || {
        let documents = world.export(fw, session).ok()?;
        let tcp = &of_kind(&documents, "conntrack").ok()?["state"]["tcp"];
        judges(tcp).then_some(())
    })
}

/// True if the entry checks the windows of both ends.
fn judges(tcp: &Value) -> bool {
    let strict = |end: &str| tcp[end]["liberal"] == json!(false);
    strict("original") && strict("reply") && tcp.get("unsettled").is_none()
}

#[test]
fn without_its_state_a_session_is_dropped() -> Result<()> {
    let world = Firewalls::new(Family::V4)?;
    let group = world.open(1, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    world.route(Fw::Two)?;
    wait::until("packets to be dropped", PATIENCE, || {
        (world.refused(Fw::Two).ok()? >= 3).then_some(())
    })?;
    // No packet has passed the new firewall: the old one can still continue alone.
    world.route(Fw::One)?;
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Checks that both ends' addresses are translated, or neither.
fn is_translated(document: &Value, translates: bool) -> Result<()> {
    for end in ["source", "destination"] {
        let differs = document["session"][end] != document["translated"][end];
        ensure!(differs == translates, "{end}: {document:#}");
    }
    Ok(())
}

/// Rules that put all sessions into a zone of connection tracking.
const ZONE: &str = "table inet zones {
  chain pre {
    type filter hook prerouting priority -300
    meta l4proto tcp ct zone set 7
  }
}\n";

fn moves(family: Family, translates: bool, zone: u16) -> Result<()> {
    let world = Firewalls::with(family, translates, "")?;
    if zone != 0 {
        for fw in [Fw::One, Fw::Two] {
            world.host(fw).input("nft", &["-f", "-"], ZONE)?;
        }
    }
    let group = world.open(4, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    let sessions = names(&world, &group);
    let before = world.export(Fw::One, &sessions[0])?;
    world.move_all(&sessions, Fw::One)?;
    group.wait_progress(4 << 20)?;
    let after = world.export(Fw::Two, &sessions[0])?;
    let (before, after) = (
        of_kind(&before, "conntrack")?,
        of_kind(&after, "conntrack")?,
    );
    let kept = ["assured", "seen_reply", "mark", "labels", "zone"];
    let kept = kept.map(|key| format!("/state/{key}")).into_iter();
    for at in kept.chain(["/session", "/translated"].map(str::to_owned)) {
        let (before, after) = (before.pointer(&at), after.pointer(&at));
        ensure!(
            before.is_some() && before == after,
            "{at} was {before:?}, and is {after:?}"
        );
    }
    let state = &after["state"];
    let labels = state["labels"].as_str().unwrap_or_default();
    ensure!(state["mark"] == 0x17 && !labels.is_empty(), "{after:#}");
    ensure!(state["zone"]["id"] == zone, "{after:#}");
    is_translated(after, translates)?;
    world.forget(&sessions, Fw::One)?;
    group.wait_progress(4 << 20)?;
    let old = world.export(Fw::One, &sessions[0])?;
    ensure!(old == json!([]), "the old firewall still has {old}");
    all_intact(&group.finish()?)?;
    // The old firewall may have missed data that replies in flight acknowledge.
    let refused = world.refused(Fw::Two)?;
    ensure!(refused == 0, "{refused} packets were refused");
    world.finish()
}

#[test]
fn sessions_go_on_at_the_other_firewall() -> Result<()> {
    moves(Family::V4, false, 0)
}

#[test]
fn sessions_go_on_at_the_other_firewall_v6() -> Result<()> {
    moves(Family::V6, false, 0)
}

#[test]
fn translated_sessions_go_on_at_the_other_firewall() -> Result<()> {
    moves(Family::V4, true, 0)
}

#[test]
fn translated_sessions_go_on_at_the_other_firewall_v6() -> Result<()> {
    moves(Family::V6, true, 0)
}

#[test]
fn sessions_go_on_in_a_zone_of_their_own() -> Result<()> {
    moves(Family::V4, false, 7)
}

/// Megabytes are in flight on the old path when the route moves.
#[test]
fn fast_data_with_large_windows_goes_to_and_fro() -> Result<()> {
    let world = Firewalls::new(Family::V4)?;
    for host in [&world.client, &world.server] {
        host.sysctl("net.ipv4.tcp_rmem", "4096 1048576 33554432")?;
        host.sysctl("net.ipv4.tcp_wmem", "4096 1048576 33554432")?;
    }
    let plan = Plan {
        write: 256 << 10,
        ..Plan::default()
    };
    let group = world.open(1, &plan)?;
    group.run();
    group.wait_progress(16 << 20)?;
    let sessions = names(&world, &group);
    let scale = &world.export(Fw::One, &sessions[0])?;
    let scale = &of_kind(scale, "conntrack")?["state"]["tcp"]["reply"]["window_scale"];
    ensure!(
        scale.as_u64() >= Some(9),
        "the window scale is only {scale}"
    );
    let mut at = Fw::One;
    for _ in 0..6 {
        let before = world.refused(at.other())?;
        world.move_all(&sessions, at)?;
        group.wait_progress(16 << 20)?;
        world.forget(&sessions, at)?;
        at = at.other();
        let refused = world.refused(at)? - before;
        ensure!(refused == 0, "{refused} packets were refused by {at:?}");
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

/// An idle session is forgotten no later because of the move, and not at once: the other firewall
/// does not choose the rest of its time-out.
#[test]
fn what_is_left_of_the_time_out_moves() -> Result<()> {
    const SECONDS: u64 = 7000;
    let world = Firewalls::new(Family::V4)?;
    let established = "net.netfilter.nf_conntrack_tcp_timeout_established";
    world
        .host(Fw::One)
        .sysctl(established, &SECONDS.to_string())?;
    let group = world.open(1, &Plan::default())?;
    let session = &names(&world, &group)[0];
    let left = |fw| -> Result<u64> {
        let documents = world.export(fw, session)?;
        let left = of_kind(&documents, "conntrack")?["state"]["timeout_s"].as_u64();
        left.context("no time-out")
    };
    // Both ends have sent data when the session opened, which must first be acknowledged.
    wait::until("the session to be silent", PATIENCE, || {
        (left(Fw::One).ok()? > SECONDS / 2).then_some(())
    })?;
    let before = left(Fw::One)?;
    let documents = world.export(Fw::One, session)?;
    world.install(Fw::Two, session, &documents)?;
    let after = left(Fw::Two)?;
    ensure!(before <= SECONDS, "{before} s");
    ensure!(
        (SECONDS / 2..=before).contains(&after),
        "the time-out was {before} s, and is {after} s"
    );
    group.run();
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// No data is in flight when the path moves, so that the entry can learn the windows completely.
/// From then on it checks them.
#[test]
fn an_entry_that_has_learnt_its_windows_judges_them() -> Result<()> {
    let world = Firewalls::new(Family::V4)?;
    let group = world.open(1, &Plan::default())?;
    let sessions = names(&world, &group);
    world.move_all(&sessions, Fw::One)?;
    let documents = world.export(Fw::Two, &sessions[0])?;
    let tcp = &of_kind(&documents, "conntrack")?["state"]["tcp"];
    ensure!(tcp["unsettled"] == true, "{tcp}");
    // If the entry moves on before that, it is unchanged.
    let strict = |end: &str| tcp[end]["liberal"] == json!(false);
    ensure!(strict("original") && strict("reply"), "{tcp}");
    world.install(Fw::Two, &sessions[0], &documents)?;
    group.run();
    wait_settled(&world, Fw::Two, &sessions[0])?;
    group.wait_progress(64 << 20)?;
    all_intact(&group.finish()?)?;
    let refused = world.refused(Fw::Two)?;
    ensure!(refused == 0, "{refused} packets were refused");
    world.finish()
}

/// A session that only passes has no socket here: it is considered dead after a time without a
/// packet.
#[test]
fn what_passes_and_is_silent_is_forgotten() -> Result<()> {
    let mut world = Firewalls::new(Family::V4)?;
    world.restart_with(Fw::One, "\n[removal]\nrelay_idle_s = 10\n")?;
    let (silent, busy) = (
        world.open(1, &Plan::default())?,
        world.open(1, &Plan::gentle())?,
    );
    for group in [&silent, &busy] {
        group.run();
        group.wait_progress(1 << 16)?;
    }
    let end = |group: &Group| group.locals()[0].to_string();
    let (silents, busys) = (end(&silent), end(&busy));
    let known = |world: &Firewalls, end: &str| -> Option<bool> {
        let listed = world.listed(Fw::One).ok()?;
        let its = |s: &Value| [&s["local"], &s["remote"]].iter().any(|e| *e == end);
        Some(listed.iter().any(its))
    };
    ensure!(known(&world, &silents) == Some(true), "it is not tracked");
    // Both ends vanish, as far as the firewall can see.
    let port = silent.locals()[0].port();
    for (host, way) in [(&world.client, "sport"), (&world.server, "dport")] {
        let rule = format!("tcp {way} {port} drop");
        let text = format!(
            "table inet gone {{
               chain out {{ type filter hook output priority 0; {rule}; }}
             }}\n"
        );
        host.input("nft", &["-f", "-"], &text)?;
    }
    let limit = Duration::from_secs(120);
    wait::until("the silent one to be forgotten", limit, || {
        (!known(&world, &silents)?).then_some(())
    })?;
    ensure!(
        known(&world, &busys) == Some(true),
        "the other is not tracked"
    );
    busy.wait_progress(1 << 16)?;
    all_intact(&busy.finish()?)?;
    world.finish()
}

#[test]
fn state_goes_from_host_to_host() -> Result<()> {
    let mut world = Firewalls::with(Family::V4, true, "")?;
    world.start_on_client()?;
    let group = world.open(1, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    let session = &names(&world, &group)[0];
    let moved = |words: &[&str]| -> Result<Value> {
        let ran = world.try_move(session, Fw::One, words)?;
        serde_json::from_str(&ran.stdout).with_context(|| format!("no JSON: {ran:?}"))
    };
    let dry = moved(&["--dry-run"])?;
    ensure!(dry["documents"] == 1 && dry["new"] == 0, "{dry}");
    ensure!(
        world.export(Fw::Two, session)? == json!([]),
        "a dry run installed"
    );
    let done = moved(&[])?;
    ensure!(done["new"] == 1, "{done}");
    world.route(Fw::Two)?;
    group.wait_progress(4 << 20)?;
    world.forget(std::slice::from_ref(session), Fw::One)?;
    // A host that is not an end of the session is not even asked.
    let stranger = session.replace("10.9.1.1:", "10.9.1.2:");
    let ran = world.try_move(&stranger, Fw::Two, &[])?;
    ensure!(
        ran.code == Some(2) && ran.stderr.contains("no end of the session"),
        "{ran:?}"
    );
    // The error names a host that does not answer, and nothing changes.
    world.kill_daemon(Fw::One)?;
    let ran = world.try_move(session, Fw::Two, &[])?;
    let named = ran.stderr.contains(&world.control_address(Fw::One));
    ensure!(ran.code == Some(6) && named, "{ran:?}");
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    ensure!(world.refused(Fw::Two)? == 0);
    world.finish()
}

/// Rules that pass only clients that are in a set.
const SEEN: &str = "ct state new add @seen { ip saddr . tcp sport }
    ct state new add @hosts { ip saddr }
    ct direction original ip saddr . tcp sport != @seen counter name dropped drop
    ct direction reply ip daddr . tcp dport != @seen counter name dropped drop";
const SETS: &str = "add table inet fw
    add set inet fw seen { type ipv4_addr . inet_service; flags dynamic, timeout; timeout 10m; }
    add set inet fw hosts { type ipv4_addr; flags dynamic; }\n";

fn with_sets() -> Result<Firewalls> {
    let world = Firewalls::new(Family::V4)?;
    for fw in [Fw::One, Fw::Two] {
        let rules = format!("{SETS}flush chain inet fw accepted\n");
        let rule = |rule: &str| format!("add rule inet fw accepted {}\n", rule.trim());
        let added: String = SEEN.lines().chain(["accept"]).map(rule).collect();
        world
            .host(fw)
            .input("nft", &["-f", "-"], &(rules + &added))?;
    }
    Ok(world)
}

fn list(world: &Firewalls, fw: Fw, set: &str) -> Result<String> {
    let words = ["list", "set", "inet", "fw", set];
    world.host(fw).output("nft", &words)
}

#[test]
fn elements_of_sets_move_too() -> Result<()> {
    let world = with_sets()?;
    let group = world.open(1, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    let (local, session) = (group.locals()[0], &names(&world, &group)[0]);
    // The entry alone is not sufficient here.
    let entry = world.state(Fw::One, &["export", session, "--kind", "conntrack"])?;
    world.install(Fw::Two, session, &serde_json::from_str(&entry)?)?;
    world.route(Fw::Two)?;
    wait::until("packets to be dropped", PATIENCE, || {
        (world.refused(Fw::Two).ok()? >= 3).then_some(())
    })?;
    let documents = world.export(Fw::One, session)?;
    let count = documents.as_array().map_or(0, Vec::len);
    ensure!(count == 3, "an entry and two elements, not {documents:#}");
    let done = world.install(Fw::Two, session, &documents)?;
    ensure!(done["new"] == 2 && done["updated"] == 1, "{done}");
    group.wait_progress(1 << 20)?;
    // The rest of the element's time-out has moved as well.
    let listed = list(&world, Fw::Two, "seen")?;
    let element = format!("{} . {}", local.ip(), local.port());
    ensure!(
        listed.contains(&element) && listed.contains("expires"),
        "{listed}"
    );
    // Other sessions of the host may need the element that they share.
    world.state(Fw::One, &["remove", session])?;
    ensure!(!list(&world, Fw::One, "seen")?.contains(&element));
    let hosts = list(&world, Fw::One, "hosts")?;
    ensure!(hosts.contains(&local.ip().to_string()), "{hosts}");
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn what_cannot_be_installed_leaves_nothing_behind() -> Result<()> {
    let world = with_sets()?;
    let group = world.open(2, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    let sessions = names(&world, &group);
    let good = world.export(Fw::One, &sessions[0])?;
    let refused = |documents: &Value, code: i32, why: &str| -> Result<()> {
        let file = world.file(documents)?.display().to_string();
        for dry in [&["--dry-run"][..], &[]] {
            let words = [&["install", &sessions[0], &file], dry].concat();
            let ran = world.try_state(Fw::Two, &words)?;
            let said = ran.stderr.contains(why) && ran.code == Some(code);
            ensure!(said, "not '{why}' and {code}: {ran:?}");
        }
        let there = world.export(Fw::Two, &sessions[0])?;
        ensure!(there == json!([]), "left behind by '{why}': {there:#}");
        ensure!(!list(&world, Fw::Two, "hosts")?.contains("elements"));
        Ok(())
    };
    let changed = |at: usize, pointer: &str, value: Value| {
        let mut documents = good.clone();
        if let Some(there) = documents[at].pointer_mut(pointer) {
            *there = value;
        }
        documents
    };
    refused(&changed(2, "/version", json!(2)), 2, "version 2")?;
    refused(
        &world.export(Fw::One, &sessions[1])?,
        2,
        "is not of the session",
    )?;
    let foreign = json!([{"address": "192.0.2.1"}, {"port": 1}]);
    let element = (0..3)
        .find(|&i| good[i]["state"]["set"] == "seen")
        .context("no element")?;
    refused(
        &changed(element, "/state/key", foreign),
        2,
        "not made of the session's",
    )?;
    refused(
        &changed(element, "/state/set", json!("gone")),
        5,
        "no set inet fw gone",
    )?;
    refused(
        &changed(2, "/state/labels", json!("x".repeat(40_000))),
        2,
        "are more than",
    )?;
    refused(&json!({"documents": good}), 2, "it is no list")?;
    // The old firewall has not changed, and valid state is accepted.
    group.wait_progress(1 << 20)?;
    ensure!(world.install(Fw::Two, &sessions[0], &good)?["new"] == 3);
    ensure!(world.install(Fw::Two, &sessions[0], &good)?["updated"] == 3);
    all_intact(&group.finish()?)?;
    world.finish()
}
