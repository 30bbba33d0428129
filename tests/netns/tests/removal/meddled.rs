//! A device on the direct path between two hosts answers with resets, or changes packets, as
//! firewalls do: no session takes that path, and no end notices anything. Once the device is gone,
//! the sessions take the path.

use std::net::IpAddr;

use crate::world::fates::Ends;
use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::meddler::{Does, Meddler};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, Lab, Role};
use serde_json::Value;

const KIB: u64 = 1 << 10;

fn world(name: &str) -> Result<(World, Group, Vec<Ends>)> {
    world_of(name, Family::V4)
}

fn world_of(name: &str, family: Family) -> Result<(World, Group, Vec<Ends>)> {
    let w = World::with(Lab::builder(name), family, &Role::ALL, DECLARED, |c| c)?;
    let plan = Plan {
        rate: Some(2_000_000),
        ..Plan::default()
    };
    let group = w.open(2, &plan)?;
    group.run();
    group.wait_progress(64 * KIB)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    Ok((w, group, ends))
}

fn ends_of_the_way() -> [(&'static str, IpAddr); 2] {
    [Role::Client, Role::Server].map(|role| (role.name(), role.address(Family::V4)))
}

/// Makes the router answer packets from one host to the other with resets.
fn reject(w: &World, from: Role, to: Role) -> Result<()> {
    reject_with(w, from, to, "tcp reset")
}

/// Makes the router answer packets from one host to the other in this way.
fn reject_with(w: &World, from: Role, to: Role, with: &str) -> Result<()> {
    let [from, to] = [from, to].map(|role| role.address(w.family));
    let ip = if from.is_ipv4() { "ip" } else { "ip6" };
    let what = format!("{ip} saddr {from} {ip} daddr {to} meta l4proto tcp");
    w.lab.add_rule(&format!("{what} reject with {with}"))
}

fn reject_no_more(w: &World) -> Result<()> {
    let rules = "flush chain inet lab forward\n";
    w.lab.router.input("nft", &["-f", "-"], rules).map(drop)
}

/// Checks that all sessions stay at the proxy, for this reason, and continue.
fn stay(w: &World, group: &Group, why: &str) -> Result<()> {
    let done = w.remove_all()?;
    let all = done["removals"].as_array().cloned().unwrap_or_default();
    ensure!(all.len() == 2, "{done:#}");
    for removal in &all {
        let reason = removal["reason"].to_string();
        let told = removal["outcome"] == "rolled_back" && reason.contains(why);
        ensure!(told, "{why}: {done:#}");
    }
    group.wait_progress(64 * KIB)
}

#[test]
fn a_path_that_changes_packets_is_not_taken() -> Result<()> {
    let (w, group, ends) = world("meddled")?;
    let cases = [
        (
            Does::Numbers(0x1020_3040, 0x5566_7788),
            "rewrites sequence numbers (by +270544960)",
        ),
        (Does::Numbers(5, 0), "rewrites sequence numbers (by +5)"),
        (
            Does::Numbers(0, 7),
            "from 10.0.3.1 to 10.0.1.1 rewrites sequence numbers (by +7)",
        ),
        (Does::Clocks(1_000, 2_000), "shifts timestamps (by +1000)"),
        (
            Does::Clocks(0, 0xffff_0000),
            "from 10.0.3.1 to 10.0.1.1 shifts timestamps (by -65536)",
        ),
        (Does::StripsSack, "strips or alters SACK permitted"),
        (Does::StripsTimestamps, "strips or alters timestamps"),
        (Does::LowersMss(1000), "lowers the MSS to 1000"),
    ];
    for (does, why) in cases {
        let meddler = Meddler::start(&w.lab.router, ends_of_the_way(), does)?;
        stay(&w, &group, why).with_context(|| format!("{does:?}\n{}", w.state()))?;
        drop(meddler);
    }
    // An MSS that is still as large as all segments does no harm.
    let meddler = Meddler::start(&w.lab.router, ends_of_the_way(), Does::LowersMss(1460))?;
    w.remove_these(&ends)?;
    group.wait_progress(64 * KIB)?;
    all_intact(&group.finish()?)?;
    drop(meddler);
    w.finish()
}

/// Each part of the path answers in this way. No session takes it, for this reason.
fn answers(family: Family, with: &str, why: &str) -> Result<()> {
    let (w, group, ends) = world_of("rejected", family)?;
    for (from, to) in [(Role::Client, Role::Server), (Role::Server, Role::Client)] {
        reject_with(&w, from, to, with)?;
        stay(&w, &group, why).with_context(|| format!("{from:?} to {to:?}\n{}", w.state()))?;
        reject_no_more(&w)?;
    }
    w.remove_these(&ends)?;
    group.wait_progress(64 * KIB)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn a_path_that_answers_by_resets_is_not_taken() -> Result<()> {
    answers(Family::V4, "tcp reset", "answers with a reset")
}

#[test]
fn a_path_that_answers_by_resets_is_not_taken_v6() -> Result<()> {
    answers(Family::V6, "tcp reset", "answers with a reset")
}

#[test]
fn a_path_that_answers_by_icmp_is_not_taken() -> Result<()> {
    answers(Family::V4, "icmpx admin-prohibited", "no answer to a SYN")
}

#[test]
fn a_path_that_answers_by_icmp_is_not_taken_v6() -> Result<()> {
    answers(Family::V6, "icmpx admin-prohibited", "no answer to a SYN")
}

/// Returns the mode of the first removal, and the reason for the mode.
fn first(done: &Value) -> (String, String) {
    let of = |what: &str| {
        done["removals"][0][what]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    (of("mode"), of("why_mode"))
}

/// The proxy's host relays alone, and the next session does not try that path.
#[test]
fn where_the_path_is_rejected_the_proxy_leaves_by_another_way() -> Result<()> {
    let (mut w, group, ends) = world("rejectedauto")?;
    w.mode = "auto";
    reject(&w, Role::Client, Role::Server)?;
    for (end, why) in ends
        .iter()
        .zip(["bypass was not possible", "bypass was not tried"])
    {
        let done = w.remove(&["--session", &end.name()])?;
        ensure!(done["summary"]["removed"] == 1, "{done:#}\n{}", w.state());
        let (mode, told) = first(&done);
        let known = told.contains(why) && told.contains("answers with a reset");
        ensure!(mode != "bypass" && known, "{done:#}");
    }
    group.wait_progress(64 * KIB)?;
    all_intact(&group.finish()?)?;
    w.finish()
}
