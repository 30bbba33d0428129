//! Sessions with a chain that open in unusual ways, or along unusual chains.

use crate::steered::policy::rule;
use crate::steered::{At, Steered};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, wait};
use serde_json::json;

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
const FIREWALLS: [At; 4] = [At::Fw1, At::Fw2, At::Fw3, At::Fw4];

/// The last host of the chain restores the session's own addresses, and must never send such a
/// server anything that only a daemon could read.
fn to_a_server_alone(family: Family) -> Result<()> {
    let world = Steered::without_servers(family, &rule(family, &At::FIREWALLS))?;
    // The server's replies arrive by the last host.
    let last = world.ip(At::Fw2);
    let flag = match family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    };
    for words in [
        "rule add iif server lookup 100".to_owned(),
        format!("route add default via {last} dev fw2 table 100"),
    ] {
        let words: Vec<_> = [flag].into_iter().chain(words.split(' ')).collect();
        world.router.output("ip", &words)?;
    }
    for at in [At::Client, At::Fw1, At::Fw2] {
        wait::until("neighbours to have keys", PATIENCE, || {
            let status = world.json(at, &["status"]).ok()?;
            let now = status["counters"]["chain_neighbours"].as_u64()?;
            (now >= 4).then_some(())
        })
        .with_context(|| world.logs())?;
    }
    let group = world.open(5, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20).with_context(|| world.logs())?;
    let status = world.json(At::Fw2, &["status"])?;
    let ends = status["counters"]["chain_ends_without_agent"].as_u64();
    ensure!(ends >= Some(5), "{ends:?}\n{}", world.logs());
    for fw in At::FIREWALLS {
        ensure!(world.counted(fw, "passed")? > 0, "{fw:?} has seen nothing");
        ensure!(world.refused(fw)? == 0, "{}", world.logs());
    }
    // The session cannot have another chain.
    let name = world.name(group.locals()[0]);
    let not = world.reconfigure(&name, &[At::Fw1], &[])?;
    let why = not["reason"].to_string();
    ensure!(
        not["outcome"] != "changed" && why.contains("no dyscod answers"),
        "{not:#}"
    );
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn a_server_without_dyscod_has_chains_too() -> Result<()> {
    to_a_server_alone(Family::V4)
}

#[test]
fn a_server_without_dyscod_has_chains_too_v6() -> Result<()> {
    to_a_server_alone(Family::V6)
}

/// The chain has no host, one, and up to four; then it shrinks again.
fn grows_and_shrinks(family: Family) -> Result<()> {
    let world = Steered::of_four(family)?;
    let group = world.open(2, &Plan::default())?;
    group.run();
    group.wait_progress(200_000)?;
    let names: Vec<_> = { group.locals() }
        .iter()
        .map(|local| world.name(*local))
        .collect();
    for hosts in [1, 2, 3, 4, 3, 1, 0, 4, 0] {
        let chain = &FIREWALLS[..hosts];
        for name in &names {
            world.update_chain(name, chain)?;
            let ips: Vec<_> = chain.iter().map(|at| world.ip(*at)).collect();
            let now = world.chain_of(name)?;
            ensure!(now == json!(ips), "{now:#}, not {ips:?}");
        }
        group.wait_progress(200_000)?;
        world.wait_only_through(chain)?;
    }
    for fw in FIREWALLS {
        ensure!(world.refused(fw)? == 0, "{}", world.logs());
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn none_to_four_hosts() -> Result<()> {
    grows_and_shrinks(Family::V4)
}

#[test]
fn none_to_four_hosts_v6() -> Result<()> {
    grows_and_shrinks(Family::V6)
}

/// A rule leads sessions through four hosts from their SYNs on.
fn opens_through_four(family: Family) -> Result<()> {
    let world = Steered::four_with_policy(family, &rule(family, &FIREWALLS))?;
    world.wait_neighbours(&FIREWALLS)?;
    let group = world.open(3, &Plan::default())?;
    group.run();
    group.wait_progress(200_000)?;
    let ips: Vec<_> = FIREWALLS.iter().map(|at| world.ip(*at)).collect();
    for local in group.locals() {
        let now = world.chain_of(&world.name(local))?;
        ensure!(now == json!(ips), "{now:#}, not {ips:?}");
    }
    world.wait_only_through(&FIREWALLS)?;
    all_intact(&group.finish()?)?;
    for fw in FIREWALLS {
        ensure!(world.refused(fw)? == 0, "{}", world.logs());
    }
    world.finish()
}

#[test]
fn a_syn_leads_through_four_hosts() -> Result<()> {
    opens_through_four(Family::V4)
}

#[test]
fn a_syn_leads_through_four_hosts_v6() -> Result<()> {
    opens_through_four(Family::V6)
}

/// The strictest firewall is built with iptables.
fn through_iptables(family: Family) -> Result<()> {
    let world = Steered::new(family)?;
    let program = match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    };
    let host = world.host(At::Fw1);
    host.output("nft", &["delete", "table", "inet", "fw"])?;
    for rule in [
        "-P FORWARD DROP",
        "-A FORWARD -m conntrack --ctstate INVALID -j DROP",
        "-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT",
        "-A FORWARD -p tcp --syn -m conntrack --ctstate NEW -j ACCEPT",
    ] {
        let words: Vec<_> = rule.split(' ').collect();
        host.output(program, &words)?;
    }
    let group = world.open(3, &Plan::default())?;
    group.run();
    group.wait_progress(200_000)?;
    for chain in [&[At::Fw1][..], &[], &[At::Fw2, At::Fw1], &[]] {
        for local in group.locals() {
            world.update_chain(&world.name(local), chain)?;
        }
        group.wait_progress(200_000)?;
    }
    let listed = host.output(program, &["-nvxL", "FORWARD"])?;
    let packets = |of: &str| {
        let line = listed.lines().find(|line| line.contains(of));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
    };
    ensure!(
        listed.contains("policy DROP 0 packets") && packets("ctstate INVALID") == Some(0),
        "{listed}\n{}",
        world.logs()
    );
    ensure!(
        packets("ctstate NEW") == Some(6) && packets("ctstate ESTABLISHED") > Some(100),
        "{listed}\n{}",
        world.logs()
    );
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn a_firewall_of_iptables() -> Result<()> {
    through_iptables(Family::V4)
}

#[test]
fn a_firewall_of_iptables_v6() -> Result<()> {
    through_iptables(Family::V6)
}
