//! An unannounced strict firewall stands between all hosts: it sees an ordinary connection where
//! HAProxy was, and refuses nothing. For changes of chains see `chains/closes_firewalls`.

use std::time::Duration;

use anyhow::{Context, Result};
use dysco_netns::delay::Delay;
use dysco_netns::stream::{Plan, Reading, Side, all_intact};
use dysco_netns::strict::nothing_refused;
use dysco_netns::{Builder, Family, Lab, Role, wait};

use crate::world::World;

const MIB: u64 = 1 << 20;

fn guarded(builder: Builder, family: Family) -> Result<World> {
    let w = World::new(builder, family)?;
    w.lab.guard()?;
    Ok(w)
}

/// Sessions lose the proxy, and continue for some time without it.
fn leave(w: World, count: usize, plan: &Plan, progress: u64) -> Result<()> {
    let group = w.open(count, plan)?;
    group.run();
    group.wait_progress(progress)?;
    let done = w.remove(&["--all", "--timeout", "60s"])?;
    assert_eq!(done["summary"]["removed"], count, "{done:#}\n{}", w.state());
    group.wait_progress(2 * progress)?;
    all_intact(&group.finish()?)?;
    nothing_refused(&w.lab.router).with_context(|| w.state())?;
    forgotten(&w)?;
    w.finish()
}

/// Checks that the sessions of HAProxy are over for the firewall, which would otherwise know them
/// for days.
fn forgotten(w: &World) -> Result<()> {
    let words = ["-L", "-p", "tcp", "--state", "ESTABLISHED", "-f"];
    let family = match w.family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    };
    let proxy = Role::Proxy.at(w.family, 0).ip().to_string();
    let known = || {
        let list = w
            .lab
            .router
            .output("conntrack", &[&words[..], &[family]].concat());
        let list = list.unwrap_or_else(|error| panic!("no list: {error:#}"));
        let is_proxys = |line: &&str| line.split_whitespace().any(|w| w.ends_with(&proxy));
        list.lines().filter(is_proxys).count()
    };
    wait::until("an end", Duration::from_secs(10), || {
        (known() == 0).then_some(())
    })
}

#[test]
fn busy_sessions_ipv4() -> Result<()> {
    let w = guarded(Lab::builder("guard4"), Family::V4)?;
    leave(w, 4, &Plan::default(), 16 * MIB)
}

#[test]
fn busy_sessions_ipv6() -> Result<()> {
    let w = guarded(Lab::builder("guard6"), Family::V6)?;
    leave(w, 4, &Plan::default(), 16 * MIB)
}

#[test]
fn many_busy_sessions() -> Result<()> {
    let w = guarded(Lab::builder("guardmany"), Family::V4)?;
    leave(w, 40, &Plan::default(), MIB)
}

/// There is one kilobyte twice per second: no data is in flight when the proxy leaves.
#[test]
fn sessions_that_are_mostly_silent() -> Result<()> {
    let w = guarded(Lab::builder("guardsilent"), Family::V4)?;
    let plan = Plan {
        rate: Some(2048),
        write: 1024,
        after_close: 4096,
        ..Plan::default()
    };
    leave(w, 20, &plan, 2048)
}

/// The receiving end sends only acknowledgements.
#[test]
fn a_download_and_an_upload() -> Result<()> {
    for plan in Plan::one_way() {
        let w = guarded(Lab::builder("guardone"), Family::V4)?;
        let group = w.open(2, &plan)?;
        group.run();
        let limit = Duration::from_secs(30);
        group.wait_more(8 * MIB, limit)?;
        w.remove_all_of(2)?;
        group.wait_more(8 * MIB, limit)?;
        all_intact(&group.finish()?)?;
        nothing_refused(&w.lab.router).with_context(|| w.state())?;
        w.finish()?;
    }
    Ok(())
}

/// The proxy holds data that a slow reader has not read, and whose window is closed.
#[test]
fn a_slow_reader() -> Result<()> {
    let w = guarded(Lab::builder("guardslow"), Family::V4)?;
    let group = w.open(2, &Plan::default())?;
    group.set_reading(Side::Server, Reading::Slow(20 * MIB));
    group.run();
    group.wait_progress(4 * MIB)?;
    let done = w.remove(&["--all", "--timeout", "300s"])?;
    assert_eq!(done["summary"]["removed"], 2, "{done:#}\n{}", w.state());
    group.set_reading(Side::Server, Reading::Fast);
    group.wait_progress(10 * MIB).with_context(|| {
        let list = w.lab.router.output("conntrack", &["-L", "-p", "tcp"]);
        format!("{:?} refused, {list:?}\n{}", w.lab.refused(), w.state())
    })?;
    all_intact(&group.finish()?)?;
    nothing_refused(&w.lab.router).with_context(|| w.state())?;
    w.finish()
}

/// Data through the proxy is acknowledged long before the firewall sees on the new path how far the
/// other end had sent.
#[test]
fn where_the_proxys_way_is_the_shorter_one() -> Result<()> {
    let w = guarded(Lab::builder("guardlong"), Family::V4)?;
    let _slow = Delay::of_bypass(&w.lab, Duration::from_millis(5))?;
    leave(w, 2, &Plan::default(), 4 * MIB)
}

/// Packets that open the path, or show the data sent elsewhere, are sometimes lost.
#[test]
fn where_packets_are_lost() -> Result<()> {
    let w = guarded(Lab::builder("guardloss").loss(2.0), Family::V4)?;
    leave(w, 8, &Plan::default(), 200_000)
}

/// Both ends have acknowledged the new path's opening before any data passes there. The firewall
/// would otherwise treat acknowledgements that are far behind as late, and not record the data.
#[test]
fn the_path_is_established_before_it_is_used() -> Result<()> {
    let mut w = guarded(Lab::builder("guardopens"), Family::V4)?;
    let group = w.open(1, &Plan::gentle())?;
    group.run();
    group.wait_progress(MIB)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    w.fault(Role::Client, "die:Cut")?;
    w.begin(&ends[0])?;
    let daemon = w.daemon(Role::Client)?;
    let died = || (!daemon.runs()).then_some(());
    wait::until("the daemon to die", Duration::from_secs(30), died)?;
    let [from, to] = [Role::Client, Role::Server].map(|r| r.at(w.family, 0).ip().to_string());
    let words = ["-L", "-p", "tcp", "-s", &from, "-d", &to];
    let list = w.lab.router.output("conntrack", &words)?;
    assert!(list.contains(" ESTABLISHED "), "{list}");
    w.fault(Role::Client, "")?;
    w.restart(Role::Client)?;
    w.settle(&ends)?;
    group.wait_progress(MIB)?;
    all_intact(&group.finish()?)?;
    nothing_refused(&w.lab.router).with_context(|| w.state())?;
    w.finish()
}

/// The two sessions scale windows differently, and one end does not scale.
#[test]
fn without_window_scaling_at_the_server() -> Result<()> {
    let lab = Lab::builder("guardscale").host(Role::Server, |h| h.window_scaling(false));
    let w = guarded(lab, Family::V4)?;
    let plan = Plan {
        rate: Some(MIB),
        ..Plan::default()
    };
    leave(w, 2, &plan, MIB)
}

/// Without window scaling, a firewall on a bypass that is longer than the proxy's path would refuse
/// what a fast session sends until the bypass is taken. Such a session stays, with that reason.
#[test]
fn without_window_scaling_and_too_fast() -> Result<()> {
    for plan in Plan::one_way() {
        let (w, _slow) = unscaled_on_a_longer_way()?;
        let group = w.open(1, &plan)?;
        group.run();
        let limit = Duration::from_secs(30);
        group.wait_more(8 * MIB, limit)?;
        let done = w.remove(&["--all", "--mode", "bypass", "--timeout", "20s"])?;
        assert!(done.to_string().contains("in one round trip"), "{done:#}");
        assert_eq!(done["summary"]["removed"], 0, "{done:#}");
        group.wait_more(8 * MIB, limit)?;
        all_intact(&group.finish()?)?;
        nothing_refused(&w.lab.router).with_context(|| w.state())?;
        w.finish()?;
    }
    Ok(())
}

/// A bypass that was taken too late: the other end's numbers are shown in steps of a window, one
/// directly after the other.
#[test]
fn without_window_scaling_and_taken_late() -> Result<()> {
    let (w, _slow) = unscaled_on_a_longer_way()?;
    let [download, _] = Plan::one_way();
    let group = w.open(1, &download)?;
    group.run();
    let limit = Duration::from_secs(30);
    group.wait_more(8 * MIB, limit)?;
    w.fault(Role::Client, "spoil:Pace")?;
    w.remove_all_of(1)?;
    group.wait_more(8 * MIB, limit)?;
    all_intact(&group.finish()?)?;
    assert!(w.lab.refused()? > 0, "it was not late: {}", w.state());
    w.finish()
}

fn unscaled_on_a_longer_way() -> Result<(World, Delay)> {
    let lab = Lab::builder("guardlate").host(Role::Server, |h| h.window_scaling(false));
    let w = guarded(lab, Family::V4)?;
    let slow = Delay::of_bypass(&w.lab, Duration::from_millis(5))?;
    Ok((w, slow))
}
