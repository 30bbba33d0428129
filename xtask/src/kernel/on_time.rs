//! Services of the packet plane over an interface that sends packets at their departure times. The
//! queueing discipline `fq` is not in every kernel.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::Fleet;
use dysco_netns::stream::{Group, Plan, Server, all_intact};
use dysco_netns::{Family, Lab, Role, wait};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Port of the server.
const PORT: u16 = 9000;
/// Rate of the direction to the server, in bits per second.
const RATE: f64 = 4e6;
/// Time over which the rate is measured.
const MEASURED: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(60);
/// Least time, in milliseconds, by which a delay is visible.
const DELAY_MS: f64 = 50.0;

/// Findings of this step.
#[derive(Serialize, Deserialize, Debug, Default)]
pub(super) struct OnTime {
    /// Goodput through `shape`, as a share of its rate.
    pub share_of_rate: f64,
    /// Packets that `shape` dropped.
    pub dropped: u64,
    /// Round trip in milliseconds without `latency`, and with `delay=50ms`.
    pub round_trip_ms: [f64; 2],
}

/// A session, on a host whose interface has `fq`.
struct Bench {
    lab: Lab,
    fleet: Fleet,
}

/// Shapes and delays a session.
pub(super) fn run(programs: &Path) -> Result<OnTime> {
    let lab = Lab::builder("ontime").build()?;
    let fq = ["qdisc", "replace", "dev", "eth0", "root", "fq"];
    lab.client.output("tc", &fq)?;
    let fleet = Fleet::with_programs(&lab, programs)?;
    let daemon = fleet.start(&lab, Role::Client, "")?;
    let to = Role::Server.at(Family::V4, PORT);
    let server = Server::start(&lab.server, to)?;
    let group = Group::open(&lab.client, &server, to, 1, &Plan::gentle())?;
    group.run();
    group.wait_progress(100_000)?;
    let bench = Bench { lab, fleet };
    let found = OnTime {
        round_trip_ms: bench.delayed(&group)?,
        ..bench.shaped(&group)?
    };
    all_intact(&group.finish()?)?;
    bench.lab.finish((daemon, server))?;
    let [without, with] = found.round_trip_ms;
    ensure!(found.dropped == 0, "packets were dropped: {found:?}");
    ensure!(found.share_of_rate < 1.1, "the rate is not kept: {found:?}");
    ensure!(
        with >= DELAY_MS && without < with,
        "nothing is delayed: {found:?}"
    );
    Ok(found)
}

impl Bench {
    fn service(&self, words: &[&str]) -> Result<Value> {
        let words = [&["service"], words].concat();
        self.fleet.json(&self.lab.client, &words)
    }

    fn put(&self, service: &str) -> Result<()> {
        let done = self.service(&["put", service, "--filter", "port=9000"])?;
        ensure!(done["sessions"][0]["outcome"] == "put", "{done:#}");
        Ok(())
    }

    fn take(&self) -> Result<()> {
        self.service(&["take", "--filter", "port=9000"]).map(drop)
    }

    fn shaped(&self, group: &Group) -> Result<OnTime> {
        self.put("+shape=up=4M,plane=packet")?;
        // The receiver first reads older bytes, which have passed at another rate.
        group.wait_more(100_000, PATIENCE)?;
        let (start, before) = (Instant::now(), self.shape()?);
        std::thread::sleep(MEASURED);
        let after = self.shape()?;
        let bits = 8.0 * (after[0] - before[0]) as f64;
        self.take()?;
        Ok(OnTime {
            share_of_rate: bits / start.elapsed().as_secs_f64() / RATE,
            dropped: after[1],
            ..OnTime::default()
        })
    }

    /// Returns the bytes that have passed, and the packets that were dropped, on their way to the
    /// server.
    fn shape(&self) -> Result<[u64; 2]> {
        let listed = self.service(&["list"])?;
        let session = listed[0]["session"].as_str().context("no session")?;
        let read = self.service(&["call", session, "shape", "read"])?;
        let answer = &read["answer"];
        ensure!(answer["drops"] == false, "{read:#}");
        let number = |name: &str| answer["up"][name].as_u64().context("no count");
        Ok([number("bytes")?, number("dropped")?])
    }

    /// Returns the round trips of before, and with a delay.
    fn delayed(&self, group: &Group) -> Result<[f64; 2]> {
        let before = self.round_trip()?;
        self.put("+latency=delay=50ms,plane=packet")?;
        group.wait_more(100_000, PATIENCE)?;
        let late = || self.round_trip().ok().filter(|time| *time >= DELAY_MS);
        // The estimate follows the round trips slowly.
        let with = wait::until("a delayed round trip", PATIENCE, late)?;
        self.take()?;
        Ok([before, with])
    }

    /// Returns the round trip in milliseconds that the client's kernel has estimated.
    fn round_trip(&self) -> Result<f64> {
        let to = format!("dport = :{PORT}");
        let shown = self.lab.client.output("ss", &["-tinHO", &to])?;
        let words = shown.split_whitespace();
        let rtt = words.filter_map(|word| word.strip_prefix("rtt:")).next();
        let (smoothed, _) = rtt
            .and_then(|rtt| rtt.split_once('/'))
            .context(shown.clone())?;
        Ok(smoothed.parse()?)
    }
}
