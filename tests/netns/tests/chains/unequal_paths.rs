//! Chains change between paths with different delays, under full load in both directions: strict
//! firewalls refuse nothing.

use std::time::Duration;

use anyhow::{Result, ensure};
use dysco_netns::delay::Delay;
use dysco_netns::stream::{Plan, Side, all_intact};
use dysco_netns::{Family, wait};

use crate::steered::ways::{Ways, busy, nothing_refused, takes_only};
use crate::steered::{At, PATIENCE, Steered};

/// Additional delay of each of the two parts of a slow path.
const SLOWER: Duration = Duration::from_millis(10);

/// Delays the paths to this firewall.
fn slow(world: &Steered, fw: At, by: Duration) -> Result<Delay> {
    let addresses = [Family::V4, Family::V6].map(|family| fw.address(family));
    let all = At::ALL.into_iter().filter(|at| *at != fw);
    let others: Vec<_> = all.map(At::name).collect();
    Delay::between(&world.router, (fw.name(), &addresses), &others, by)
}

/// Maximum rate of each end, which the end always reaches.
const RATE: &str = "400mbit";

/// Opens sessions that use all the capacity of the links.
fn loaded(family: Family) -> Result<Ways> {
    let world = Steered::new(family)?;
    for at in [At::Client, At::Server] {
        world.host(at).limit("eth0", RATE, "128k", "1m")?;
    }
    Ways::of(world)
}

/// The firewall enters although its path is longer, and leaves again.
fn comes_and_goes(family: Family) -> Result<()> {
    let ways = loaded(family)?;
    let world = &ways.world;
    let _slow = slow(world, At::Fw1, SLOWER)?;
    let fw = world.ip(At::Fw1);
    for _ in 0..2 {
        ways.take(&["insert-middlebox", &fw, "--all"], &[At::Fw1])?;
        let leave = ["reconfigure", "--through", &fw, "--chain", ""];
        ways.take(&leave, &[])?;
    }
    world.wait_forgotten(At::Fw1)?;
    ways.finish()
}

#[test]
fn a_firewall_on_a_longer_way_comes_and_goes() -> Result<()> {
    comes_and_goes(Family::V4)
}

#[test]
fn a_firewall_on_a_longer_way_comes_and_goes_v6() -> Result<()> {
    comes_and_goes(Family::V6)
}

/// A firewall on a longer path replaces the other with its state, and vice versa. Then one enters
/// next to the other, which stays.
#[test]
fn firewalls_on_unequal_ways_change_places() -> Result<()> {
    let ways = loaded(Family::V4)?;
    let world = &ways.world;
    let _slow = [
        slow(world, At::Fw1, SLOWER)?,
        slow(world, At::Fw2, SLOWER / 10)?,
    ];
    let [one, two] = At::FIREWALLS.map(|fw| world.ip(fw));
    let both = format!("{one},{two}");
    ways.take(&["insert-middlebox", &two, "--all"], &[At::Fw2])?;
    for (old, new, chain) in [(&two, &one, At::Fw1), (&one, &two, At::Fw2)] {
        let words = [
            "replace-middlebox",
            old,
            "--with",
            new,
            "--state",
            "conntrack",
        ];
        ways.take(&words, &[chain])?;
    }
    let words = ["reconfigure", "--through", &two, "--chain", &both];
    ways.take(&words, &At::FIREWALLS)?;
    let words = ["reconfigure", "--through", &one, "--chain", &two];
    ways.take(&words, &[At::Fw2])?;
    ways.finish()
}

/// Without window scaling a firewall would drop data that is sent until the path is taken. The
/// reason is reported, and nothing changes.
#[test]
fn a_session_that_is_too_fast_for_a_long_way_stays() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    (world.host(At::Server)).sysctl("net.ipv4.tcp_window_scaling", "0")?;
    let ways = Ways::of(world)?;
    let world = &ways.world;
    let _slow = slow(world, At::Fw1, SLOWER)?;
    let upload = world.name(ways.groups[2].locals()[0]);
    let done = world.reconfigure(&upload, &[At::Fw1], &[])?;
    let reason = done["reason"].to_string();
    ensure!(
        done["outcome"] == "rolled_back" && reason.contains("in one round trip"),
        "{done:#}"
    );
    ways.go_on(&[])?;
    world.wait_forgotten(At::Fw1)?;
    ways.finish()
}

/// The same in the other direction: the other end sends until it hears that the path is taken.
fn too_fast_downwards(family: Family, by: Duration) -> Result<()> {
    let world = Steered::new(family)?;
    (world.host(At::Client)).sysctl("net.ipv4.tcp_window_scaling", "0")?;
    let _slow = slow(&world, At::Fw1, by)?;
    let (group, session) = busy(&world, &Plan::one_way()[0])?;
    let done = world.reconfigure(&session, &[At::Fw1], &[])?;
    let reason = done["reason"].to_string();
    ensure!(
        done["outcome"] == "rolled_back" && reason.contains("in one round trip"),
        "{done:#}\n{}",
        world.logs()
    );
    takes_only(&world, &group, &[])?;
    nothing_refused(&world)?;
    world.wait_forgotten(At::Fw1)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn a_session_whose_other_end_is_too_fast_stays() -> Result<()> {
    too_fast_downwards(Family::V4, SLOWER / 2)
}

#[test]
fn a_session_whose_other_end_is_too_fast_stays_v6() -> Result<()> {
    too_fast_downwards(Family::V6, SLOWER)
}

/// The same session at a rate that the firewall accepts.
#[test]
fn a_session_without_window_scaling_takes_a_long_way() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    (world.host(At::Client)).sysctl("net.ipv4.tcp_window_scaling", "0")?;
    let _slow = slow(&world, At::Fw1, SLOWER)?;
    let [plan, _] = Plan::one_way();
    let plan = Plan {
        rate: Some(400_000),
        ..plan
    };
    let group = world.open(1, &plan)?;
    group.run();
    let received = || group.received(Side::Client);
    wait::until("data", PATIENCE, || (received() > 100_000).then_some(()))?;
    let session = world.name(group.locals()[0]);
    let done = world.reconfigure(&session, &[At::Fw1], &[])?;
    ensure!(done["outcome"] == "changed", "{done:#}\n{}", world.logs());
    let before = received();
    wait::until("more data", PATIENCE, || {
        (received() > before + 400_000).then_some(())
    })?;
    nothing_refused(&world)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The other end has sent more than a firewall lets its number advance, since the path was taken
/// late. The firewall drops what the other end sends, so that number is shown in steps.
#[test]
fn a_path_that_was_taken_late_catches_up() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    (world.host(At::Client)).sysctl("net.ipv4.tcp_window_scaling", "0")?;
    let _slow = slow(&world, At::Fw1, SLOWER / 10)?;
    let (group, session) = busy(&world, &Plan::one_way()[0])?;
    world.set_faults(At::Client, "spoil:Pace")?;
    let done = world.reconfigure(&session, &[At::Fw1], &[])?;
    ensure!(done["outcome"] == "changed", "{done:#}\n{}", world.logs());
    ensure!(world.refused(At::Fw1)? > 0, "it was not late");
    takes_only(&world, &group, &[At::Fw1])?;
    all_intact(&group.finish()?)?;
    world.finish()
}
