//! A thousand live sessions get other chains at the same time, under load.

use std::time::{Duration, Instant};

use crate::steered::{At, Steered};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, wait};

const MANY: usize = 1000;
const LIMIT: Duration = Duration::from_secs(30);

/// Gives all sessions this chain, and checks that all continue, and that nothing was refused.
fn change(world: &Steered, group: &Group, words: &[&str], chain: &[At]) -> Result<()> {
    let done = world.try_json(At::Client, &[words, &["--wait"]].concat())?;
    let changes = done["changes"].as_array().map_or(&[][..], Vec::as_slice);
    ensure!(changes.len() == MANY, "{} changes", changes.len());
    let other = changes.iter().find(|c| c["outcome"] != "changed");
    ensure!(other.is_none(), "{other:#?}");
    let before = world.passed()?;
    group.wait_progress(8_000)?;
    let after = world.passed()?;
    for (at, fw) in At::FIREWALLS.iter().enumerate() {
        let passes = after[at] > before[at];
        ensure!(passes == chain.contains(fw), "{fw:?}: {before:?} {after:?}");
        let refused = world.refused(*fw)?;
        ensure!(refused == 0, "{fw:?} refused {refused}");
    }
    Ok(())
}

fn a_thousand_sessions(family: Family) -> Result<()> {
    let world = Steered::new(family)?;
    let plan = Plan {
        rate: Some(16_000),
        write: 2_000,
        ..Plan::default()
    };
    let group = world.open(MANY, &plan)?;
    group.run();
    group.wait_progress(8_000)?;
    let [one, two] = At::FIREWALLS.map(|fw| world.ip(fw));
    let insert = ["insert-middlebox", &one, "--all"];
    change(&world, &group, &insert, &[At::Fw1]).context("insertion")?;
    let replace = ["replace-middlebox", &one, "--with", &two, "--state"];
    let replace = [&replace[..], &["conntrack"]].concat();
    change(&world, &group, &replace, &[At::Fw2]).context("replacement")?;
    let leave = ["reconfigure", "--through", &two, "--chain", ""];
    change(&world, &group, &leave, &[]).context("removal")?;
    all_intact(&group.finish()?)?;
    At::FIREWALLS
        .iter()
        .try_for_each(|fw| world.wait_forgotten(*fw))?;
    world.finish()
}

#[test]
fn a_thousand_sessions_at_once_under_load() -> Result<()> {
    a_thousand_sessions(Family::V4)
}

#[test]
fn a_thousand_sessions_at_once_under_load_v6() -> Result<()> {
    a_thousand_sessions(Family::V6)
}

/// Entries of connection tracking in a zone, which no look-up finds, are removed too.
#[test]
fn sessions_in_a_zone_are_forgotten_as_well() -> Result<()> {
    const ZONE: &str = "table inet zones {
  chain pre { type filter hook prerouting priority -300; meta l4proto tcp ct zone set 7; }
}\n";
    const COUNT: usize = 20;
    let world = Steered::new(Family::V4)?;
    world.host(At::Fw1).input("nft", &["-f", "-"], ZONE)?;
    let plan = Plan {
        rate: Some(400_000),
        ..Plan::default()
    };
    let group = world.open(COUNT, &plan)?;
    group.run();
    group.wait_progress(50_000)?;
    let fw = world.ip(At::Fw1);
    for (words, tracked) in [
        (
            ["insert-middlebox", &fw, "--all", "--wait"].as_slice(),
            COUNT,
        ),
        (&["remove-middlebox", &fw, "--all", "--wait"], 0),
    ] {
        world.try_json(At::Client, words)?;
        group.wait_progress(50_000)?;
        let mut entries = String::new();
        wait::until("entries of that zone", LIMIT, || {
            let words = ["-L", "-p", "tcp", "--zone", "7"];
            entries = world.host(At::Fw1).output("conntrack", &words).ok()?;
            (entries.matches("dport=9000").count() == tracked).then_some(())
        })
        .with_context(|| format!("{tracked} expected: {entries}\n{}", world.logs()))?;
    }
    ensure!(world.refused(At::Fw1)? == 0, "{}", world.logs());
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The bounds are checked by the time that the insertion takes at least, and by the daemon's own
/// times of the beginnings of the removals.
#[test]
fn a_host_joins_and_leaves_chains_at_a_limited_rate() -> Result<()> {
    const COUNT: usize = 60;
    const RATE: usize = 25;
    let world = Steered::new(Family::V4)?;
    let plan = Plan {
        rate: Some(50_000),
        ..Plan::default()
    };
    let group = world.open(COUNT, &plan)?;
    group.run();
    group.wait_progress(10_000)?;
    let fw = world.ip(At::Fw1);
    let rate = RATE.to_string();
    let start = Instant::now();
    let words = ["insert-middlebox", &fw, "--all", "--wait", "--rate", &rate];
    let done = world.try_json(At::Client, &words)?;
    let changes = done["changes"].as_array().context("no changes")?;
    let changed = changes.iter().filter(|one| one["outcome"] == "changed");
    ensure!(changed.count() == COUNT, "{done:#}");
    // The third turn begins two seconds after the first.
    let took = start.elapsed();
    ensure!(took >= Duration::from_secs(2), "it took only {took:?}");
    let words = ["remove-middlebox", &fw, "--all", "--wait", "--rate", &rate];
    let done = world.try_json(At::Client, &words)?;
    ensure!(done["summary"]["removed"] == COUNT, "{done:#}");
    let removals = done["removals"].as_array().context("no removals")?;
    let begun = removals.iter().map(|r| r["accepted_to_begin_us"].as_u64());
    let mut begun: Vec<_> = begun.collect::<Option<_>>().context("no times")?;
    begun.sort_unstable();
    for (first, next) in begun.iter().zip(&begun[RATE..]) {
        ensure!(
            next - first >= 1_000_000,
            "more than {RATE} from {first} us on"
        );
    }
    group.wait_progress(10_000)?;
    ensure!(world.refused(At::Fw1)? == 0, "{}", world.logs());
    all_intact(&group.finish()?)?;
    world.finish()
}
