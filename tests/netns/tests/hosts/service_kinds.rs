//! Services that shape, delay, or give the network a congestion control of its own.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Amount, Close, Plan, Reading, Side, all_intact};
use dysco_netns::{Family, Lab, Role, counters, wait};
use serde_json::json;

use crate::service_calls::call;
use crate::services::OneEnd;

const PATIENCE: Duration = Duration::from_secs(60);
/// Services of one end.
const ONE_END: [&str; 3] = [
    "+shape=rate=40M",
    "+latency=delay=20ms",
    "+split=congestion=reno",
];

fn come_and_leave(here: &OneEnd, service: &str, count: usize) -> Result<()> {
    let group = here.open(count, &Plan::gentle())?;
    for _ in 0..3 {
        here.change(&["put", service], "put", count)?;
        group.wait_more(100_000, PATIENCE)?;
        here.change(&["take"], "taken", count)?;
        group.wait_more(100_000, PATIENCE)?;
    }
    let listed = here.service(&["list"])?;
    ensure!(listed == json!([]), "{listed:#}");
    all_intact(&group.finish()?).with_context(|| service.to_owned())?;
    Ok(())
}

#[test]
fn each_kind_comes_and_leaves_in_both_families() -> Result<()> {
    for (name, family) in [("kind4", Family::V4), ("kind6", Family::V6)] {
        let here = OneEnd::new(name, family)?;
        for service in ONE_END {
            come_and_leave(&here, service, 3)?;
        }
        here.finish()?;
    }
    Ok(())
}

#[test]
fn each_kind_keeps_all_bytes_over_a_lossy_link_to_a_slow_reader() -> Result<()> {
    let here = OneEnd::over(Lab::builder("kindloss").loss(1.0).build()?, Family::V4)?;
    for service in ONE_END {
        let group = here.open(3, &Plan::gentle())?;
        group.set_reading(Side::Server, Reading::Slow(1_000_000));
        here.change(&["put", service], "put", 3)?;
        group.wait_more(100_000, PATIENCE)?;
        here.change(&["take"], "taken", 3)?;
        group.set_reading(Side::Server, Reading::Fast);
        all_intact(&group.finish()?).with_context(|| service.to_owned())?;
    }
    here.finish()
}

/// At the first rate, the second half of the test would take a quarter of an hour.
#[test]
fn a_shaped_session_gets_another_rate_while_it_runs() -> Result<()> {
    let here = OneEnd::new("shaperate", Family::V4)?;
    let group = here.open(1, &Plan::gentle())?;
    here.change(&["put", "+shape=rate=8K"], "put", 1)?;
    let waits = || {
        let read = call(&here, &["shape", "read"]).ok()?;
        let up = &read["answer"]["up"];
        (up["rate"] == "8K" && up["waiting"].as_u64()? > 0).then_some(())
    };
    wait::until("bytes that wait for the rate", PATIENCE, waits)?;
    let bad = call(&here, &["shape", "rate", "\"fast\""])?;
    ensure!(
        bad["exit"] == 5 && bad.to_string().contains("no rate"),
        "{bad:#}"
    );
    let rate = "{\"up\":\"off\",\"down\":\"1G\"}";
    let changed = call(&here, &["shape", "rate", rate])?;
    let answer = &changed["answer"];
    ensure!(
        answer["up"]["rate"] == "off" && answer["down"]["rate"] == "1G",
        "{changed:#}"
    );
    group.wait_more(1_000_000, PATIENCE)?;
    here.change(&["take"], "taken", 1)?;
    all_intact(&group.finish()?)?;
    here.finish()
}

#[test]
fn a_shaped_session_is_left_at_once_with_all_its_bytes() -> Result<()> {
    let here = OneEnd::new("shapeleave", Family::V4)?;
    let group = here.open(2, &Plan::gentle())?;
    here.change(&["put", "+shape=rate=8K"], "put", 2)?;
    here.change(&["take"], "taken", 2)?;
    group.wait_more(500_000, PATIENCE)?;
    all_intact(&group.finish()?)?;
    here.finish()
}

#[test]
fn only_the_socket_to_the_network_has_the_congestion_control() -> Result<()> {
    let here = OneEnd::new("splitsock", Family::V4)?;
    let group = here.open(1, &Plan::gentle())?;
    here.change(&["put", "+split=congestion=reno"], "put", 1)?;
    let listed = here.service(&["list"])?;
    let pid = listed[0]["handler"].as_i64().context("no handler")?;
    let words = ["-t", &pid.to_string(), "-n", "ss", "-tinOH"];
    let sockets = here.lab.client.output("nsenter", &words)?;
    let of = |control: &str| {
        let has = |line: &&str| line.split_whitespace().any(|word| word == control);
        let found: Vec<&str> = sockets.lines().filter(has).collect();
        found.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let reno = of("reno");
    ensure!(sockets.lines().count() == 2 && reno.len() == 1, "{sockets}");
    // The socket with `reno` is connected to the server, in the place of the program's socket.
    let peer = reno[0].split_whitespace().nth(4);
    ensure!(
        peer.is_some_and(|peer| peer.ends_with(":9000")),
        "{sockets}"
    );
    here.change(&["take"], "taken", 1)?;
    all_intact(&group.finish()?)?;
    here.finish()
}

#[test]
fn a_congestion_control_that_is_not_there_is_refused_before_anything_changes() -> Result<()> {
    let here = OneEnd::new("splitno", Family::V4)?;
    let group = here.open(1, &Plan::gentle())?;
    let put = ["put", "+split=congestion=nosuch"];
    for words in [&put[..], &[put[0], put[1], "--dry-run"]] {
        let done = here.change(words, "refused", 1)?;
        let text = done.to_string();
        ensure!(
            done["exit"] == 5 && text.contains("nosuch") && text.contains("reno"),
            "{done:#}"
        );
    }
    let listed = here.service(&["list"])?;
    ensure!(listed == json!([]), "{listed:#}");
    let wrong = here.service(&["put", "+split=congestion=a/b", "--all"])?;
    ensure!(wrong["exit"] == 2, "{wrong:#}");
    all_intact(&group.finish()?)?;
    here.finish()
}

/// The end of a session may fall into any step of a change.
#[test]
fn sessions_that_are_reset_or_end_meanwhile_lose_nothing() -> Result<()> {
    let here = OneEnd::new("kindends", Family::V4)?;
    let ends = [
        Close::Reset(Side::Client),
        Close::Reset(Side::Server),
        Close::First(Side::Client),
        Close::First(Side::Server),
    ];
    for close in ends {
        for (service, bytes) in ONE_END.into_iter().zip([300_000, 500_000, 900_000]) {
            let plan = Plan {
                up: Amount::Bytes(bytes),
                down: Amount::Bytes(bytes),
                ..Plan::paced(20_000_000, close)
            };
            let group = here.begin(6, &plan)?;
            here.service(&["put", service, "--filter", "port=9000", "--wait=10s"])?;
            here.service(&["take", "--filter", "port=9000", "--wait=10s"])?;
            all_intact(&group.finish()?).with_context(|| format!("{service}, {close:?}"))?;
        }
    }
    here.finish()
}

#[test]
fn two_hundred_sessions_are_shaped_and_delayed_at_once() -> Result<()> {
    let here = OneEnd::new("kindmany", Family::V4)?;
    let plan = Plan::paced(100_000, Close::First(Side::Client));
    let group = here.open(200, &plan)?;
    let services = ["put", "+shape=rate=10M", "+latency=delay=20ms"];
    here.change(&services, "put", 200)?;
    group.wait_more(30_000, PATIENCE)?;
    here.change(&["take"], "taken", 200)?;
    all_intact(&group.finish()?)?;
    here.finish()
}

/// Limits the size of packets that the router sends to the server from now on. The router reports
/// longer ones to their sender.
fn narrow(here: &OneEnd, family: Family) -> Result<()> {
    let to = Role::Server.address(family).to_string();
    let dev = Role::Server.name();
    let words = ["route", "replace", &to, "dev", dev, "mtu", "lock", "1300"];
    here.lab.router.output("ip", &words).map(drop)
}

/// The errors of routers reach the socket of the local end. The socket of the handler begins with
/// what the local end knows, and has to find out by itself what changes afterwards.
fn a_narrow_path_is_found_out(family: Family) -> Result<()> {
    for before in [true, false] {
        let here = OneEnd::new("servicemtu", family)?;
        let group = here.open(2, &Plan::gentle())?;
        if before {
            narrow(&here, family)?;
            group.wait_progress(1_000_000)?;
        }
        let known = counters::too_long(&here.lab.router)?;
        ensure!(!before || known > 0, "the path was not too narrow");
        here.change(&["put", "+count"], "put", 2)?;
        if !before {
            narrow(&here, family)?;
        }
        group
            .wait_progress(1_000_000)
            .with_context(|| format!("narrow before: {before}"))?;
        let longer = counters::too_long(&here.lab.router)? - known;
        ensure!(
            before == (longer == 0),
            "narrow before: {before}; {longer} packets were too long"
        );
        here.change(&["take"], "taken", 2)?;
        group.wait_progress(1_000_000)?;
        all_intact(&group.finish()?)?;
        here.finish()?;
    }
    Ok(())
}

#[test]
fn a_path_that_is_narrow_is_found_out() -> Result<()> {
    a_narrow_path_is_found_out(Family::V4)
}

#[test]
fn a_path_that_is_narrow_is_found_out_v6() -> Result<()> {
    a_narrow_path_is_found_out(Family::V6)
}
