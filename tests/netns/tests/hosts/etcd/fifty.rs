//! Fifty hosts get a policy. The times are printed, not judged.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::{Daemon, Starting};
use serde_json::Value;

use super::{ETCD, World, hosts, rule};

const HOSTS: usize = 50;
/// Number of daemons that load their programs at the same time.
const AT_ONCE: usize = 4;
const ROUNDS: usize = 5;
const DAY: f64 = 86_400.0;

fn start_all(w: &World, url: &str) -> Result<Vec<Daemon>> {
    let all: Vec<usize> = (0..=HOSTS).filter(|at| *at != ETCD).collect();
    let mut daemons = Vec::new();
    for few in all.chunks(AT_ONCE) {
        let launched: Vec<Starting<'_>> = few
            .iter()
            .map(|at| w.fleet.launch(w.host(*at), &w.prepare(*at, url, "")?))
            .collect::<Result<_>>()?;
        for starting in launched {
            daemons.push(starting.ready()?);
        }
    }
    Ok(daemons)
}

/// Returns the time of day in seconds of the line by which a daemon reports the last policy.
fn applied(daemon: &Daemon) -> Result<f64> {
    let log = daemon.process.log();
    let mut lines = log.lines().rev();
    let line = lines.find(|line| line.contains("policy_applied"));
    let line = line.context("no policy was applied")?;
    let (_, time) = line.split_once('T').context("no time")?;
    let (time, _) = time.split_once('Z').context("no time")?;
    let mut seconds = 0.0;
    for part in time.split(':') {
        seconds = seconds * 60.0 + part.parse::<f64>()?;
    }
    Ok(seconds)
}

fn time_of_day() -> Result<f64> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(since_1970.as_secs_f64() % DAY)
}

#[test]
fn fifty_daemons_get_a_policy() -> Result<()> {
    let w = World::build("etcd-fifty", HOSTS - 1)?;
    let etcd = w.etcd()?;
    let daemons = start_all(&w, &etcd.url())?;
    w.wait(0, "all hosts", |s| hosts(s).len() == HOSTS)?;
    let (mut times, mut commands) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let name = format!("round {round}");
        let (begun, clock) = (time_of_day()?, Instant::now());
        let (code, said) = w.publish(&rule(&name, "10.0.9.9"))?;
        commands.push(clock.elapsed());
        ensure!(code == Some(0), "{said}");
        let said: Value = serde_json::from_str(&said)?;
        let in_force = said["in_force"].as_array().map_or(0, Vec::len);
        ensure!(in_force == HOSTS, "{said:#}");
        for (at, daemon) in (0..=HOSTS).filter(|at| *at != ETCD).zip(&daemons) {
            w.has(at, &name)?;
            let took = (applied(daemon)? - begun + DAY) % DAY;
            times.push(Duration::from_secs_f64(took));
        }
    }
    times.sort();
    commands.sort();
    let of = |share: usize| times[(times.len() - 1) * share / 100];
    println!(
        "{HOSTS} hosts, {ROUNDS} policies: in force after p50 {:?}, p99 {:?}, at most {:?}; \
         the command took {:?} (median) until it had seen all of them",
        of(50),
        of(99),
        of(100),
        commands[ROUNDS / 2]
    );
    drop((daemons, etcd));
    w.star.finish(())
}
