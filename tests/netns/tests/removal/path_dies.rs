//! The new path dies after both anchors have taken it, while the proxy's data has not drained: the
//! session goes back to the old path, and loses nothing.

use std::time::Duration;

use crate::world::fates::Fate;
use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, Reading, Side, all_intact};
use dysco_netns::{Family, Lab, Role, wait};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// Match for packets of the new path. The daemons' messages are not TCP.
const TCP: &str = "meta l4proto tcp";

/// Packets of the new path that are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lost {
    Both,
    ToServer,
    ToClient,
}

impl Lost {
    fn ways(self) -> &'static [[Role; 2]] {
        const THERE: [Role; 2] = [Role::Client, Role::Server];
        const BACK: [Role; 2] = [Role::Server, Role::Client];
        match self {
            Lost::Both => &[THERE, BACK],
            Lost::ToServer => &[THERE],
            Lost::ToClient => &[BACK],
        }
    }
}

/// Drops packets between the ends' hosts that match `what`. Direct packets there are the new
/// path's, and the daemons' own messages, which are not TCP.
fn kill(w: &World, lost: Lost, what: &str) -> Result<()> {
    let family = match w.family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    };
    for ends in lost.ways() {
        let [from, to] = ends.map(|role| role.at(w.family, 0).ip());
        let rule = format!("{what} {family} saddr {from} {family} daddr {to} drop");
        w.lab.add_rule(&rule)?;
    }
    Ok(())
}

fn repair(w: &World) -> Result<()> {
    let rules = "flush chain inet lab forward\n";
    w.lab.router.input("nft", &["-f", "-"], rules).map(drop)
}

fn world(name: &str, family: Family) -> Result<World> {
    configured(name, family, "")
}

fn configured(name: &str, family: Family, more: &str) -> Result<World> {
    let config = format!("{more}{DECLARED}[log]\nfilter = \"dysco_daemon::engine=debug\"\n");
    World::with(Lab::builder(name), family, &Role::ALL, &config, |c| c)
}

/// Opens a session whose ends read nothing: all windows are closed, and the proxy holds as much as
/// it can of both directions.
fn full(w: &World) -> Result<Group> {
    full_of(w, 1)
}

fn full_of(w: &World, sessions: usize) -> Result<Group> {
    let group = w.open(sessions, &Plan::default())?;
    group.run();
    group.wait_progress(MIB)?;
    w.wait_removable(&w.ends(&group)?)?;
    shut(w, &group)?;
    Ok(group)
}

fn shut(w: &World, group: &Group) -> Result<()> {
    read(group, Reading::Paused);
    // Only window probes pass the router then.
    let (mut last, mut same) = (0, 0);
    wait::until("the windows to shut", LIMIT, || {
        let now = w.lab.proxy_packets().ok()?;
        same = if now == last { same + 1 } else { 0 };
        last = now;
        (same == 10).then_some(())
    })
}

fn read(group: &Group, how: Reading) {
    group.set_reading(Side::Client, how);
    group.set_reading(Side::Server, how);
}

/// Begins the removal, and waits until both anchors have cut over and the proxy holds data.
fn between(w: &mut World, group: &Group) -> Result<()> {
    w.begin(&w.ends(group)?[0])?;
    both_cut(w)
}

fn both_cut(w: &mut World) -> Result<()> {
    for role in [Role::Client, Role::Server] {
        let daemon = w.daemon(role)?;
        let cut = || daemon.log().contains("SetCutIn {").then_some(());
        wait::until("the cut", LIMIT, cut).with_context(|| format!("{role:?}"))?;
    }
    Ok(())
}

/// Checks that the removal was rolled back, with the reason.
fn taken_back(w: &World, group: &Group) -> Result<()> {
    let ends = w.ends(group)?;
    let fates = w.settle(&ends)?;
    ensure!(fates.iter().all(|f| *f == Fate::Tracked), "{fates:?}");
    for role in Role::ALL {
        let known = w.sessions(role)?;
        let told = serde_json::to_string(&known)?;
        ensure!(
            told.contains("stopped answering on the new path"),
            "{role:?} does not say why: {known:#?}"
        );
    }
    Ok(())
}

fn dies(name: &str, family: Family, what: &str) -> Result<()> {
    let mut w = world(name, family)?;
    let group = full(&w)?;
    between(&mut w, &group)?;
    kill(&w, Lost::Both, what)?;
    taken_back(&w, &group).with_context(|| w.state())?;
    read(&group, Reading::Fast);
    group.wait_progress(8 * MIB).with_context(|| w.state())?;
    repair(&w)?;
    w.remove_these(&w.ends(&group)?)?;
    group.wait_progress(8 * MIB)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn both_ways() -> Result<()> {
    dies("dying4", Family::V4, TCP)
}

#[test]
fn both_ways_v6() -> Result<()> {
    dies("dying6", Family::V6, TCP)
}

/// The anchors do not receive each other's messages either: the proxy's host forwards them.
#[test]
fn with_all_that_goes_there() -> Result<()> {
    dies("dyingall", Family::V4, "")
}

/// Data that one end receives by the new path in the meantime cannot be acknowledged to the other
/// end: the proxy has to relay it again.
fn dies_one_way(name: &str, lost: Lost, gets: Side) -> Result<()> {
    let mut w = world(name, Family::V4)?;
    let group = full(&w)?;
    between(&mut w, &group)?;
    kill(&w, lost, TCP)?;
    // The end first reads the proxy's data, then the data of the new path.
    group.set_reading(gets, Reading::Fast);
    taken_back(&w, &group).with_context(|| format!("{lost:?}\n{}", w.state()))?;
    read(&group, Reading::Fast);
    group.wait_progress(8 * MIB).with_context(|| w.state())?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn towards_the_server() -> Result<()> {
    dies_one_way("dyingserver", Lost::ToServer, Side::Client)
}

#[test]
fn towards_the_client() -> Result<()> {
    dies_one_way("dyingclient", Lost::ToClient, Side::Server)
}

/// The daemon of an anchor dies before this step of the rollback.
fn dies_with(role: Role, faults: &[&str]) -> Result<()> {
    for fault in faults {
        let mut w = world("dyingdaemon", Family::V4)?;
        let group = full(&w)?;
        between(&mut w, &group)?;
        w.fault(role, fault)?;
        kill(&w, Lost::Both, TCP)?;
        let daemon = w.daemon(role)?;
        let died = || (!daemon.runs()).then_some(());
        wait::until("the daemon to die", LIMIT, died).with_context(|| fault.to_string())?;
        w.fault(role, "")?;
        w.restart(role)?;
        taken_back(&w, &group).with_context(|| format!("{fault}\n{}", w.state()))?;
        read(&group, Reading::Fast);
        group.wait_progress(4 * MIB).with_context(|| w.state())?;
        all_intact(&group.finish()?)?;
        w.finish()?;
    }
    Ok(())
}

#[test]
fn and_the_clients_daemon_with_it() -> Result<()> {
    dies_with(Role::Client, &["die:Mute", "die:TakeBack"])
}

#[test]
fn and_the_servers_daemon_with_it() -> Result<()> {
    dies_with(Role::Server, &["die:Muted", "die:TakeBack"])
}

/// Each message of the rollback is lost once: to the other anchor, and to the proxy's host, which
/// forwards it.
#[test]
fn and_what_is_said_of_it_is_lost() -> Result<()> {
    let mut w = world("dyingwords", Family::V6)?;
    let group = full(&w)?;
    between(&mut w, &group)?;
    w.fault(
        Role::Client,
        "drop:Suspect,drop:Suspect:2,drop:Cancel,drop:Back",
    )?;
    w.fault(Role::Server, "drop:Muted,drop:Muted:2,drop:CancelAck")?;
    w.fault(Role::Proxy, "drop:Back,drop:CancelAck")?;
    kill(&w, Lost::Both, TCP)?;
    taken_back(&w, &group).with_context(|| w.state())?;
    let lost = [
        (Role::Client, "Suspect", 2),
        (Role::Client, "Cancel", 1),
        (Role::Client, "Back", 1),
        (Role::Server, "Muted", 2),
        (Role::Server, "CancelAck", 1),
        (Role::Proxy, "Back", 1),
        (Role::Proxy, "CancelAck", 1),
    ];
    for (role, message, times) in lost {
        let lost = w.lost(role, message)?;
        ensure!(
            lost == times,
            "{message} of {role:?}: {lost} times\n{}",
            w.state()
        );
    }
    read(&group, Reading::Fast);
    group.wait_progress(8 * MIB).with_context(|| w.state())?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// The path has carried data to the client that the proxy never had, and that is acknowledged: the
/// change waits for the path, although the first messages that it stays are lost.
#[test]
fn and_cannot_be_taken_back() -> Result<()> {
    let mut w = world("dyingkept", Family::V4)?;
    let group = full(&w)?;
    let ends = w.ends(&group)?;
    between(&mut w, &group)?;
    group.set_reading(Side::Client, Reading::Fast);
    let before = group.received(Side::Client);
    wait::until("data on the new path", LIMIT, || {
        (group.received(Side::Client) > before + 32 * MIB).then_some(())
    })
    .with_context(|| w.state())?;
    // There are two messages for each time that a host asks.
    w.fault(
        Role::Server,
        "drop:Keep,drop:Keep:2,drop:Keep:3,drop:Keep:4",
    )?;
    kill(&w, Lost::Both, TCP)?;
    wait::until("the path to be kept", LIMIT, || {
        (w.lost(Role::Server, "Keep").ok()? == 4).then_some(())
    })
    .with_context(|| w.state())?;
    repair(&w)?;
    read(&group, Reading::Fast);
    group.wait_progress(8 * MIB).with_context(|| w.state())?;
    let fates = w.settle(&ends)?;
    ensure!(fates.iter().all(|f| *f == Fate::Removed), "{fates:?}");
    all_intact(&group.finish()?)?;
    w.finish()
}

/// Other sessions use the findings of the first one.
#[test]
fn others_go_another_way() -> Result<()> {
    let mut w = world("dyingothers", Family::V4)?;
    let group = full(&w)?;
    between(&mut w, &group)?;
    kill(&w, Lost::Both, TCP)?;
    taken_back(&w, &group).with_context(|| w.state())?;
    read(&group, Reading::Fast);
    let others = w.open(1, &Plan::default())?;
    others.run();
    others.wait_progress(MIB)?;
    let ends = w.ends(&others)?;
    w.wait_removable(&ends)?;
    let done = w.remove(&["--session", &ends[0].name(), "--mode", "auto"])?;
    let first = &done["removals"][0];
    let why = first["why_mode"].as_str().unwrap_or_default();
    ensure!(first["mode"] == "local", "{done:#}");
    ensure!(why.contains("died under another session"), "{done:#}");
    // A request by name finds that the path works again, for all sessions.
    repair(&w)?;
    w.remove_these(&w.ends(&group)?)?;
    let more = w.open(1, &Plan::default())?;
    more.run();
    more.wait_progress(MIB)?;
    let ends = w.ends(&more)?;
    w.wait_removable(&ends)?;
    let done = w.remove(&["--session", &ends[0].name(), "--mode", "auto"])?;
    ensure!(done["removals"][0]["mode"] == "bypass", "{done:#}");
    for group in [group, others, more] {
        group.wait_progress(4 * MIB).with_context(|| w.state())?;
        all_intact(&group.finish()?)?;
    }
    w.finish()
}

/// A daemon in automatic mode does not hold up the same session again and again.
#[test]
fn and_is_not_tried_again_at_once() -> Result<()> {
    let by_itself = "[removal]\nautomatic = true\nmode = \"bypass\"\n\n";
    let mut w = configured("dyingagain", Family::V4, by_itself)?;
    // This lets the windows close before the removal begins.
    w.daemon(Role::Server)?.kill()?;
    let group = w.open(1, &Plan::default())?;
    group.run();
    group.wait_progress(MIB)?;
    shut(&w, &group)?;
    let mut monitor = w.fleet.monitor(&w.lab.proxy)?;
    w.restart(Role::Server)?;
    both_cut(&mut w)?;
    kill(&w, Lost::Both, TCP)?;
    taken_back(&w, &group).with_context(|| w.state())?;
    let refused = || {
        let log = monitor.log();
        let mut lines = log.lines().filter(|l| l.contains("\"refused\""));
        lines
            .any(|l| l.contains("died under another session"))
            .then_some(())
    };
    wait::until("a refusal", LIMIT, refused).with_context(|| w.state())?;
    monitor.stop()?;
    read(&group, Reading::Fast);
    group.wait_progress(8 * MIB).with_context(|| w.state())?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// Sessions that wait for their turn are not held up either.
#[test]
fn and_those_that_wait_are_spared() -> Result<()> {
    let one_by_one = "[removal]\nconcurrency = 1\n\n";
    let mut w = configured("dyingwait", Family::V4, one_by_one)?;
    let group = full_of(&w, 3)?;
    let mut monitor = w.fleet.monitor(&w.lab.proxy)?;
    between(&mut w, &group)?;
    for ends in &w.ends(&group)?[1..] {
        w.begin(ends)?;
    }
    kill(&w, Lost::Both, TCP)?;
    taken_back(&w, &group).with_context(|| w.state())?;
    monitor.stop()?;
    let log = monitor.log();
    let told = |[what, because]: [&str; 2]| {
        let outcome = format!("\"kind\":\"{what}\"");
        let lines = log.lines().filter(|l| l.contains(&outcome));
        lines.filter(|l| l.contains(because)).count()
    };
    let one = ["rolled_back", "stopped answering on the new path"];
    let others = ["refused", "died under another session"];
    let outcomes = [one, others].map(told);
    ensure!(outcomes == [1, 2], "{outcomes:?}\n{log}");
    read(&group, Reading::Fast);
    group.wait_progress(8 * MIB).with_context(|| w.state())?;
    all_intact(&group.finish()?)?;
    w.finish()
}
