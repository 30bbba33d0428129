//! Services that come into a session among others, and leave others behind.

use anyhow::{Context, Result, ensure};
use dysco_netns::Family;
use dysco_netns::stream::{Close, Plan, Side, all_intact};
use serde_json::{Value, json};

use crate::both_ends::BothEnds;
use crate::services::OneEnd;

/// Checks the services of all sessions, as a list shows them.
fn has(here: &OneEnd, services: &[&str]) -> Result<()> {
    let listed = here.service(&["list"])?;
    let rows = listed.as_array().context("no list")?;
    let fits = |row: &Value| row["services"] == json!(services) && row["state"] == "in";
    ensure!(!rows.is_empty() && rows.iter().all(fits), "{listed:#}");
    Ok(())
}

fn call(here: &OneEnd, words: &[&str]) -> Result<Value> {
    let listed = here.service(&["list"])?;
    let session = listed[0]["session"].as_str().context("no session")?;
    here.service(&[&["call", session], words].concat())
}

/// Bytes flow all the time.
#[test]
fn services_come_and_leave_one_by_one() -> Result<()> {
    const COUNT: usize = 3;
    let here = OneEnd::new("svcone", Family::V4)?;
    let group = here.open(COUNT, &Plan::paced(20_000_000, Close::First(Side::Server)))?;
    here.change(&["put", "+count"], "put", COUNT)?;
    for _ in 0..5 {
        let put = here.change(&["put", "+shape=rate=400M", "+null"], "put", COUNT)?;
        let came = &put["sessions"][0]["services"];
        ensure!(*came == json!(["shape=rate=400M", "null"]), "{put:#}");
        has(&here, &["count", "shape=rate=400M", "null"])?;
        here.change(
            &["put", "+count", "+shape=rate=400M", "+null"],
            "unchanged",
            COUNT,
        )?;
        group.wait_progress(200_000)?;
        ensure!(call(&here, &["shape", "read"])?["exit"] == 0);
        let taken = here.change(&["take", "+shape", "+nosuch"], "taken", COUNT)?;
        let left = &taken["sessions"][0]["services"];
        ensure!(*left == json!(["shape=rate=400M"]), "{taken:#}");
        has(&here, &["count", "null"])?;
        let gone = call(&here, &["shape", "read"])?;
        ensure!(gone["exit"] != 0, "{gone:#}");
        here.change(&["take", "+null"], "taken", COUNT)?;
        here.change(&["take", "+null"], "unchanged", COUNT)?;
        group.wait_progress(200_000)?;
    }
    let read = call(&here, &["count", "read"])?;
    ensure!(read["exit"] == 0, "{read:#}");
    here.change(&["put", "+null"], "put", COUNT)?;
    let twice = here.change(&["put", "+null", "+latency=delay=1ms"], "refused", COUNT)?;
    ensure!(
        twice.to_string().contains("null is in it already"),
        "{twice:#}"
    );
    let with = ["--with", "+latency=delay=1ms", "--wait"];
    let replace = [&["replace-middlebox", "+count"][..], &with].concat();
    let replaced = here.fleet.json(&here.lab.client, &replace)?;
    ensure!(replaced["summary"]["put"] == COUNT, "{replaced:#}");
    has(&here, &["latency=delay=1ms", "null"])?;
    here.change(&["take", "+null"], "taken", COUNT)?;
    group.wait_progress(200_000)?;
    // The last one leaves with the way through the handler.
    here.change(&["take", "+latency"], "taken", COUNT)?;
    let listed = here.service(&["list"])?;
    ensure!(listed == json!([]), "{listed:#}");
    all_intact(&group.finish()?)?;
    here.finish()
}

/// A session whose services an earlier process has put in gets more of them, and loses some.
#[test]
fn the_next_dyscod_goes_on() -> Result<()> {
    let mut here = OneEnd::new("svconenext", Family::V6)?;
    let group = here.open(2, &Plan::gentle())?;
    here.change(&["put", "+count", "+null"], "put", 2)?;
    here.next_daemon(|_| group.wait_progress(200_000))?;
    has(&here, &["count", "null"])?;
    here.change(&["put", "+shape=rate=400M"], "put", 2)?;
    here.change(&["take", "+count"], "taken", 2)?;
    has(&here, &["null", "shape=rate=400M"])?;
    let split = here.change(&["put", "+split=congestion=reno"], "refused", 2)?;
    ensure!(split.to_string().contains("an earlier dyscod"), "{split:#}");
    here.change(&["take"], "taken", 2)?;
    group.wait_progress(200_000)?;
    all_intact(&group.finish()?)?;
    here.finish()
}

/// A service for one end comes between the program and those at both ends.
#[test]
fn one_end_has_more_services_than_the_other() -> Result<()> {
    let both = BothEnds::new("svconepair", Family::V4)?;
    let here = &both.here;
    let group = here.open(1, &Plan::paced(20_000_000, Close::First(Side::Server)))?;
    here.change(&["put", "+crypt"], "put", 1)?;
    both.wait_there(1)?;
    here.change(&["put", "+count"], "put", 1)?;
    has(here, &["count", "crypt"])?;
    group.wait_progress(500_000)?;
    let refusals = [
        (&["take", "+crypt"][..], "its last services at both ends"),
        (&["put", "+crypt"], "crypt is in it already"),
        (&["put", "+compress", "+null"], "by a request of their own"),
        (
            &["put", "+socks=target=10.9.9.9:1"],
            "cannot be beside services at both ends",
        ),
    ];
    for (words, why) in refusals {
        for dry in [&["--dry-run"][..], &[]] {
            let refused = here.change(&[words, dry].concat(), "refused", 1)?;
            ensure!(refused.to_string().contains(why), "{refused:#}");
        }
    }
    here.change(&["take", "+count"], "taken", 1)?;
    has(here, &["crypt"])?;
    group.wait_progress(500_000)?;
    here.change(&["put", "+count"], "put", 1)?;
    here.change(&["take"], "taken", 1)?;
    both.wait_there(0)?;
    group.wait_progress(500_000)?;
    all_intact(&group.finish()?)?;
    both.finish()
}

/// Services at both ends come in and leave one by one, on both hosts at the same byte.
fn one_by_one_at_both_ends(name: &str, family: Family, plan: &Plan) -> Result<()> {
    const COUNT: usize = 6;
    let both = BothEnds::new(name, family)?;
    let here = &both.here;
    let group = here.open(COUNT, plan)?;
    here.change(&["put", "+crypt"], "put", COUNT)?;
    for _ in 0..3 {
        here.change(&["put", "+compress"], "put", COUNT)?;
        both.wait_services(&["compress", "crypt"], COUNT)?;
        group.wait_progress(100_000)?;
        for read in [call(here, &["compress", "read"])?, both.call_there()?] {
            ensure!(read["answer"]["before"].as_u64() > Some(0), "{read:#}");
        }
        here.change(&["put", "+count"], "put", COUNT)?;
        here.change(&["take", "+crypt"], "taken", COUNT)?;
        both.wait_services(&["compress"], COUNT)?;
        has(here, &["count", "compress"])?;
        group.wait_progress(100_000)?;
        here.change(&["put", "+crypt"], "put", COUNT)?;
        has(here, &["count", "crypt", "compress"])?;
        both.wait_services(&["crypt", "compress"], COUNT)?;
        here.change(&["take", "+count", "+compress"], "taken", COUNT)?;
        both.wait_services(&["crypt"], COUNT)?;
        has(here, &["crypt"])?;
        group.wait_progress(100_000)?;
    }
    here.change(&["take"], "taken", COUNT)?;
    both.wait_there(0)?;
    group.wait_progress(500_000)?;
    all_intact(&group.finish()?)?;
    both.finish()
}

#[test]
fn halves_come_and_leave_one_by_one() -> Result<()> {
    one_by_one_at_both_ends("svchalves4", Family::V4, &Plan::gentle())
}

#[test]
fn halves_come_and_leave_one_by_one_v6() -> Result<()> {
    one_by_one_at_both_ends("svchalves6", Family::V6, &Plan::gentle())
}

/// Sessions that are full of data in both directions.
#[test]
fn halves_come_and_leave_busy_sessions_one_by_one() -> Result<()> {
    one_by_one_at_both_ends("svchalvesbusy", Family::V4, &Plan::default())
}
