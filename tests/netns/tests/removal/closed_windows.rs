//! An end that does not read loses its proxy: its window is closed on the wire during the removal,
//! and every byte arrives once the end reads again.

use std::time::Duration;

use crate::world::fates::Fate;
use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::haproxy::Config;
use dysco_netns::stream::{Amount, Close, Group, Plan, Reading, Side, all_intact};
use dysco_netns::{Builder, Family, HostOptions, Lab, Role, counters, wait};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// Rules that count packets with a closed window of their sender, by the host that they come from.
/// Resets are not counted, because their window has no meaning.
const CLOSED: &str = "
table inet closed {
  counter client { }
  counter server { }
  chain forward {
    type filter hook forward priority 1
    tcp window != 0 accept
    tcp flags & (syn | rst) != 0 accept
    iifname client counter name client
    iifname server counter name server
  }
}
";

/// Number of segments of an end with a closed window, so far.
fn closed(w: &World, end: Role) -> Result<u64> {
    let words = ["-j", "list", "counter", "inet", "closed", end.name()];
    let json: Value = serde_json::from_str(&w.lab.router.output("nft", &words)?)?;
    let mut items = json["nftables"].as_array().into_iter().flatten();
    let packets = items.find_map(|item| item["counter"]["packets"].as_u64());
    packets.context("nft did not say the packets")
}

/// Waits until an end has sent another segment with a closed window.
fn wait_closed(w: &World, end: Role) -> Result<()> {
    let before = closed(w, end)?;
    wait::until("a closed window", LIMIT, || {
        (closed(w, end).ok()? > before).then_some(())
    })
    .with_context(|| w.state())
}

/// Lets an end read nothing any more, and waits until it has stopped: it may be in the middle of a
/// read, after which its window opens once more.
fn stop_reading(w: &World, group: &Group, side: Side, end: Role) -> Result<()> {
    group.set_reading(side, Reading::Paused);
    loop {
        let read = group.received(side);
        for _ in 0..2 {
            wait_closed(w, end)?;
        }
        if group.received(side) == read {
            return Ok(());
        }
    }
}

fn under_way(w: &World) -> Result<u64> {
    let counters = w.counters(Role::Client)?;
    counters["changes_under_way"].as_u64().context("no counter")
}

fn stands_still(builder: Builder, family: Family, side: Side) -> Result<()> {
    let config = format!("{DECLARED}[log]\nfilter = \"dysco_daemon::engine=debug\"\n");
    let mut w = World::with(builder, family, &Role::ALL, &config, |c| c)?;
    w.lab.router.input("nft", &["-f", "-"], CLOSED)?;
    let end = match side {
        Side::Client => Role::Client,
        Side::Server => Role::Server,
    };
    let group = w.open(1, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    stop_reading(&w, &group, side, end)?;
    w.begin(&ends[0])?;
    // Both anchors have cut over: the data that the proxy holds waits for the end that does not
    // read.
    let daemon = w.daemon(Role::Client)?;
    wait::until("the drain", LIMIT, || {
        (daemon.log().matches("SetCutIn { change").count() > 0).then_some(())
    })?;
    let read = group.received(side);
    for _ in 0..3 {
        wait_closed(&w, end)?;
        ensure!(group.received(side) == read, "it reads");
        ensure!(under_way(&w)? == 1, "{}", w.state());
    }
    // The data for the other end does not wait: there is more than any window permits in advance.
    let other = group.received(side.other());
    wait::until("the other direction", LIMIT, || {
        (group.received(side.other()) > other + (16 << 20)).then_some(())
    })
    .with_context(|| w.state())?;
    ensure!(under_way(&w)? == 1, "{}", w.state());

    group.set_reading(side, Reading::Slow(4 << 20));
    group.wait_progress(1 << 20)?;
    group.set_reading(side, Reading::Fast);
    let fates = w.settle(&ends)?;
    ensure!(fates.iter().all(|f| *f == Fate::Removed), "{fates:?}");
    let before = w.lab.proxy_packets()?;
    group.wait_progress(4 << 20)?;
    let after = w.lab.proxy_packets()?;
    ensure!(after - before < 50, "{} packets", after - before);
    all_intact(&group.finish()?)?;
    w.finish()
}

/// Number of window probes of the proxy's kernel before it gives up the data that it holds. By
/// default this takes a quarter of an hour.
const PROBES: u32 = 2;

/// A client has requested everything that it wants, and does not read: only the proxy's probes make
/// its kernel send anything.
fn is_silent(builder: Builder, family: Family) -> Result<()> {
    let w = World::with(builder, family, &Role::ALL, DECLARED, |c| c)?;
    w.lab.router.input("nft", &["-f", "-"], CLOSED)?;
    let most = PROBES.to_string();
    w.lab.proxy.sysctl("net.ipv4.tcp_retries2", &most)?;
    let plan = Plan {
        up: Amount::Bytes(1_000),
        close: Close::First(Side::Server),
        ..Plan::default()
    };
    let group = w.open(1, &plan)?;
    group.run();
    let got = |bytes| {
        let has = || (group.received(Side::Client) >= bytes).then_some(());
        wait::until("what the client reads", LIMIT, has).with_context(|| w.state())
    };
    got(1 << 20)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    stop_reading(&w, &group, Side::Client, Role::Client)?;
    w.begin(&ends[0])?;
    // The first packets may be answers to others, and each is seen on both paths.
    for _ in 0..8 * PROBES {
        wait_closed(&w, Role::Client)?;
    }
    ensure!(under_way(&w)? == 1, "{}", w.state());
    let read = group.received(Side::Client);
    group.set_reading(Side::Client, Reading::Fast);
    got(read + (16 << 20))?;
    let fates = w.settle(&ends)?;
    ensure!(fates.iter().all(|f| *f == Fate::Removed), "{fates:?}");
    all_intact(&group.finish()?)?;
    w.finish()
}

/// Number of keepalive probes of the proxy's kernel before it considers the client dead.
const QUESTIONS: u64 = 2;

/// A client has sent everything that it wants, and the proxy holds some of that for a server that
/// does not read. The proxy probes the client with keepalives, and would give up this data.
fn is_asked(builder: Builder, family: Family) -> Result<()> {
    let asks = |c: Config| c.line("option clitcpka");
    let w = World::with(builder, family, &Role::ALL, DECLARED, asks)?;
    let most = QUESTIONS.to_string();
    for (key, value) in [("time", "1"), ("intvl", "1"), ("probes", &most)] {
        let key = format!("net.ipv4.tcp_keepalive_{key}");
        w.lab.proxy.sysctl(&key, value)?;
    }
    // The buffer is too small for all unread data.
    w.lab
        .server
        .sysctl("net.ipv4.tcp_rmem", "4096 16384 65536")?;
    let plan = Plan {
        up: Amount::Bytes(1 << 20),
        close: Close::First(Side::Server),
        ..Plan::default()
    };
    let group = w.open(1, &plan)?;
    group.set_reading(Side::Server, Reading::Paused);
    group.run();
    wait::until("what the client reads", LIMIT, || {
        (group.received(Side::Client) >= 1 << 20).then_some(())
    })?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    w.begin(&ends[0])?;
    let asked = || {
        let counters = counters::tcp(&w.lab.proxy)?;
        let asked = counters.get("TcpExt.TCPKeepAlive").copied();
        asked.context("no counter of keep-alives")
    };
    let before = asked()?;
    wait::until("what the proxy asks", LIMIT, || {
        (asked().ok()? >= before + 4 * QUESTIONS).then_some(())
    })
    .with_context(|| w.state())?;
    ensure!(under_way(&w)? == 1, "{}", w.state());
    group.set_reading(Side::Server, Reading::Fast);
    let fates = w.settle(&ends)?;
    ensure!(fates.iter().all(|f| *f == Fate::Removed), "{fates:?}");
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn a_client_that_is_asked_whether_it_is_there() -> Result<()> {
    is_asked(Lab::builder("asked"), Family::V4)
}

#[test]
fn a_client_that_is_asked_whether_it_is_there_v6() -> Result<()> {
    is_asked(Lab::builder("asked6"), Family::V6)
}

#[test]
fn a_silent_client_that_does_not_read() -> Result<()> {
    is_silent(Lab::builder("silent"), Family::V4)
}

#[test]
fn a_silent_client_that_does_not_read_v6() -> Result<()> {
    is_silent(Lab::builder("silent6"), Family::V6)
}

#[test]
fn a_server_that_does_not_read() -> Result<()> {
    stands_still(Lab::builder("stalled"), Family::V4, Side::Server)
}

#[test]
fn a_client_that_does_not_read() -> Result<()> {
    stands_still(Lab::builder("stalled"), Family::V4, Side::Client)
}

#[test]
fn a_server_that_does_not_read_v6() -> Result<()> {
    stands_still(Lab::builder("stalled6"), Family::V6, Side::Server)
}

#[test]
fn a_client_that_does_not_read_v6() -> Result<()> {
    stands_still(Lab::builder("stalled6"), Family::V6, Side::Client)
}

/// Both ends, each with its role.
const ENDS: [(Role, Side); 2] = [(Role::Server, Side::Server), (Role::Client, Side::Client)];

/// An end takes back a part of the window that it has offered.
#[test]
fn an_end_that_shrinks_its_window() -> Result<()> {
    for (role, side) in ENDS {
        let shrinks = |h: HostOptions| {
            h.sysctl("net.ipv4.tcp_shrink_window", "1")
                .receive_buffer(1 << 20)
        };
        stands_still(
            Lab::builder("shrinks").host(role, shrinks),
            Family::V4,
            side,
        )?;
    }
    Ok(())
}

/// The widest scale (RFC 7323, section 2.3): a window closes at a multiple of 16 KiB.
#[test]
fn an_end_with_the_widest_window_scale() -> Result<()> {
    for (role, side) in ENDS {
        let lab = Lab::builder("scale14").host(role, |h| h.receive_buffer(1 << 30));
        stands_still(lab, Family::V4, side)?;
    }
    Ok(())
}

/// Without scaling a window closes at another byte than with scaling.
#[test]
fn an_end_without_window_scaling_that_does_not_read() -> Result<()> {
    for (role, side) in ENDS {
        let lab = Lab::builder("unscaled").host(role, |h| h.window_scaling(false));
        stands_still(lab, Family::V4, side)?;
    }
    Ok(())
}
