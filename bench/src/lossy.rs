//! A session over a link of 100 ms that loses one of a hundred packets: as it is (`cubic`), with another
//! congestion control of its sender (`dyscoctl tune`), and with the service `split`, whose socket
//! towards the network has that congestion control. Each case has its own session, one after the other.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::delay::Delay;
use dysco_netns::fleet::{Daemon, Fleet, PRELOADED};
use dysco_netns::{Lab, Role};

use crate::Effort;
use crate::bulk::{Bulk, Way};
use crate::figure::{Figure, Goal, median};
use crate::pair::Listener;
use crate::stage::server;

/// Share of lost packets, in percent.
const LOSS: f64 = 1.0;
/// Time of a packet from one end to the other.
const ONE_WAY: Duration = Duration::from_millis(50);
/// Congestion control that does not take each lost packet for congestion.
const OTHER: &str = "bbr";
/// List of the kernel's congestion controls.
const KNOWN: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// Cases, with what is done to the session.
const CASES: [(&str, Change); 3] = [
    ("cubic", Change::Nothing),
    ("tuned", Change::Tune),
    ("split", Change::Split),
];

#[derive(Clone, Copy)]
enum Change {
    Nothing,
    Tune,
    Split,
}

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let known =
        std::fs::read_to_string(KNOWN).with_context(|| format!("failed to read {KNOWN}"))?;
    if !known.split_whitespace().any(|name| name == OTHER) {
        effort.lacks("the congestion control bbr", known.trim());
        return Ok(Vec::new());
    }
    let stage = Stage::build()?;
    let mut rates = CASES.map(|_| Vec::new());
    let rounds = effort.pick(6, 1);
    for round in 1..=rounds {
        effort.say(&format!("  round {round} of {rounds}"));
        for (rates, (_, change)) in rates.iter_mut().zip(CASES) {
            rates.push(stage.rate(effort, change)?);
        }
    }
    stage.end()?;
    let cubic = rates[0].clone();
    let figures = CASES
        .into_iter()
        .zip(&rates)
        .skip(1)
        .map(|((name, _), own)| {
            let ratios = own.iter().zip(&cubic).map(|(own, cubic)| own / cubic);
            let name = format!("lossy_{name}_goodput_vs_cubic");
            Figure::median(name, "", ratios.collect())
                .goal(Goal::AtLeast(10.0))
                .aside("cubic, Gbit/s", median(&cubic))
                .aside("this, Gbit/s", median(own))
        });
    Ok(figures.collect())
}

/// The hosts. The fields are dropped in this order.
struct Stage {
    listener: Listener,
    daemon: Daemon,
    delay: Delay,
    fleet: Fleet,
    lab: Lab,
}

impl Stage {
    fn build() -> Result<Stage> {
        let lab = Lab::builder("lossy").loss(LOSS).build()?;
        lab.client
            .sysctl("net.ipv4.tcp_congestion_control", "cubic")?;
        let fleet = Fleet::new(&lab)?;
        Ok(Stage {
            listener: Listener::start(&lab, server())?,
            daemon: fleet.start(&lab, Role::Client, PRELOADED)?,
            delay: Delay::of_server(&lab, ONE_WAY)?,
            fleet,
            lab,
        })
    }

    fn end(self) -> Result<()> {
        self.lab.finish((self.listener, self.daemon, self.delay))
    }

    /// Returns the rate of an upload, in Gbit/s, once it has found it.
    fn rate(&self, effort: &Effort, change: Change) -> Result<f64> {
        let seconds = |whole, quick| Duration::from_secs(effort.pick(whole, quick));
        let pair = self.listener.open(&self.lab, server())?;
        let client = pair.client.local_addr().context("no address")?;
        self.change(client, change)?;
        let stream = Bulk::new(pair, Way::Up)?;
        let seen = stream.measure(seconds(5, 2), seconds(10, 3))?;
        Ok(seen.rate / 1e9)
    }

    fn change(&self, client: SocketAddr, change: Change) -> Result<()> {
        let name = format!("{client}>{}", server());
        let split = format!("+split=congestion={OTHER}");
        let words: &[&str] = match change {
            Change::Nothing => return Ok(()),
            Change::Tune => &["tune", "--session", &name, "--congestion", OTHER],
            Change::Split => &["service", "put", &split, &name, "--wait"],
        };
        let ran = self.fleet.try_dyscoctl(&self.lab.client, words)?;
        ensure!(ran.code == Some(0), "{words:?}: {ran:?}");
        Ok(())
    }
}
