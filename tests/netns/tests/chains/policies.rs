//! Policies in use: others replace them while sessions open, and a host of a chain dies.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::steered::policy::rule;
use crate::steered::{At, PORT, Steered};
use anyhow::{Context, Result, anyhow, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, echo, wait};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
/// Port of the second rule's sessions.
const OTHER_PORT: u16 = 9100;

/// Opens sessions with little data in both directions.
fn open(world: &Steered, count: usize) -> Result<Group> {
    let plan = Plan {
        rate: Some(100_000),
        ..Plan::default()
    };
    let group = world.open(count, &plan).with_context(|| world.logs())?;
    group.run();
    Ok(group)
}

fn ips(world: &Steered, chain: &[At]) -> Value {
    json!(chain.iter().map(|at| world.ip(*at)).collect::<Vec<_>>())
}

/// Firewalls that know a session of this port of the client.
fn known_by(world: &Steered, local: SocketAddr) -> Result<Vec<At>> {
    let port = format!("sport={}", local.port());
    let words = ["-L", "-p", "tcp", "--orig-port-src", &port[6..]];
    let knows = |fw: &At| -> Result<bool> {
        let listed = world.host(*fw).output("conntrack", &words)?;
        Ok(listed.split_whitespace().any(|word| word == port))
    };
    let all: Vec<At> = world.firewalls().collect();
    let mut known = Vec::new();
    for fw in all {
        if knows(&fw)? {
            known.push(fw);
        }
    }
    Ok(known)
}

/// Two policies take turns. Each session has the complete chain of one of them, and none is lost.
#[test]
fn sessions_that_open_between_two_policies_have_one_chain_whole() -> Result<()> {
    let family = Family::V4;
    let chains = [[At::Fw1, At::Fw2], [At::Fw3, At::Fw4]];
    let policies = chains.map(|chain| rule(family, &chain));
    let world = Steered::four_with_policy(family, &policies[0])?;
    world.wait_neighbours(&chains[0])?;
    world.apply_policy(&policies[1])?;
    world.wait_neighbours(&chains[1])?;
    let lab = world;
    let (enough, world) = (AtomicBool::new(false), &lab);
    let groups = std::thread::scope(|scope| -> Result<Vec<Group>> {
        let applying = scope.spawn(|| -> Result<()> {
            let mut turns = policies.iter().cycle();
            while !enough.load(Ordering::Relaxed) {
                world.apply_policy(turns.next().map_or("", String::as_str))?;
            }
            Ok(())
        });
        let groups = open_by_both(world, &chains);
        enough.store(true, Ordering::Relaxed);
        applying
            .join()
            .map_err(|_| anyhow!("a thread panicked"))??;
        groups
    })?;
    for group in groups {
        group.wait_progress(10_000)?;
        for local in group.locals() {
            let chain = world.chain_of(&world.name(local))?;
            let whole = chains.iter().find(|whole| chain == ips(world, *whole));
            let whole = whole.with_context(|| format!("{local}: {chain}"))?;
            let known = known_by(world, local)?;
            ensure!(known == whole, "{local}: {chain}, and known by {known:?}");
        }
        all_intact(&group.finish()?)?;
    }
    world.firewalls().try_for_each(|fw| {
        let refused = world.refused(fw)?;
        ensure!(refused == 0, "{fw:?} refused {refused}\n{}", world.logs());
        Ok(())
    })?;
    lab.finish()
}

/// Opens sessions in sequence until each chain has followed another a few times.
fn open_by_both(world: &Steered, chains: &[[At; 2]]) -> Result<Vec<Group>> {
    let (mut groups, mut before, mut turns) = (Vec::new(), Value::Null, 0);
    wait::until("the policies to take turns", PATIENCE, || {
        let one = open(world, 2).and_then(|group| {
            let last = group.locals().pop().context("no session")?;
            Ok((world.chain_of(&world.name(last))?, group))
        });
        match one {
            Err(error) => Some(Err(error)),
            Ok((chain, group)) => {
                turns += usize::from(std::mem::replace(&mut before, chain.clone()) != chain);
                groups.push(group);
                (turns > 3 * chains.len()).then_some(Ok(()))
            }
        }
    })??;
    Ok(groups)
}

/// The daemon of a host dies: sessions that pass the host continue. Of new sessions one rule
/// refuses its own, and the other lets them go direct, until the daemon runs again.
#[test]
fn a_host_dies_while_its_rules_are_in_use() -> Result<()> {
    let family = Family::V4;
    let refuses = rule(family, &[At::Fw1]);
    let lets = refuses.replace(&PORT.to_string(), &OTHER_PORT.to_string());
    let policy = format!("{refuses}\n{lets}otherwise = \"direct\"\n");
    let mut world = Steered::with_policy(family, &policy)?;
    world.wait_neighbours(&[At::Fw1])?;
    let [to, other] =
        [PORT, OTHER_PORT].map(|port| SocketAddr::new(At::Server.address(family), port));
    echo::serve(world.host(At::Server), other)?;
    let group = open(&world, 2)?;
    let mut stream = echo::connect(world.host(At::Client), 0, other)?;
    echo::talk(&mut stream, 1, 50)?;
    has_chain(&world, stream.local_addr()?, other, &[At::Fw1])?;

    world.kill(At::Fw1)?;
    wait::until("the host to be missed", PATIENCE, || {
        (missing(&world).ok()? == [1, 1]).then_some(())
    })?;
    let refused = world
        .host(At::Client)
        .run(move || TcpStream::connect_timeout(&to, Duration::from_millis(300)));
    ensure!(refused.is_err(), "{refused:?}");
    let mut direct = echo::connect(world.host(At::Client), 0, other)?;
    echo::talk(&mut direct, 2, 50)?;
    has_chain(&world, direct.local_addr()?, other, &[])?;
    let status = world.json(At::Client, &["status"])?;
    for counter in ["chain_refused_host_missing", "chain_direct_host_missing"] {
        let counted = status["counters"][counter].as_u64();
        ensure!(counted >= Some(1), "{counter}: {counted:?}");
    }
    echo::talk(&mut stream, 3, 50)?;
    group.wait_progress(100_000)?;

    world.restart(At::Fw1)?;
    wait::until("the host to be there", PATIENCE, || {
        (missing(&world).ok()? == [0, 0]).then_some(())
    })?;
    let later = open(&world, 2)?;
    has_chain(&world, later.locals()[0], to, &[At::Fw1])?;
    for group in [group, later] {
        group.wait_progress(100_000)?;
        all_intact(&group.finish()?)?;
    }
    ensure!(world.refused(At::Fw1)? == 0, "{}", world.logs());
    world.finish()
}

fn has_chain(world: &Steered, local: SocketAddr, to: SocketAddr, chain: &[At]) -> Result<()> {
    let now = world.chain_of(&format!("{local}>{to}"))?;
    ensure!(now == ips(world, chain), "{now}\n{}", world.logs());
    Ok(())
}

/// Number of hosts that each rule misses.
fn missing(world: &Steered) -> Result<Vec<usize>> {
    let listed = world.json(At::Client, &["policy", "list"])?;
    let rules = listed["rules"].as_array().context("no rules")?;
    let of = |rule: &Value| rule["missing"].as_array().map_or(0, Vec::len);
    Ok(rules.iter().map(of).collect())
}
