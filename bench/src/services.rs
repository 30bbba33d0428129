//! A session with services: `null` at one end, and `crypt` at both ends; the same session once the
//! services have left; and sessions through HAProxy, which splices or copies. `shape` limits a session
//! to more than it can reach. The baseline is a direct session, and the control is a second direct
//! session. All are tracked by `dyscod` at both ends, are open at the same time, and take turns, one at
//! a time.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::delay::Delay;
use dysco_netns::fleet::{Daemon, Fleet, PRELOADED};
use dysco_netns::haproxy::Config;
use dysco_netns::{Family, Lab, Process, Role};

use crate::Effort;
use crate::bulk::{Bulk, Way};
use crate::figure::{Figure, Goal, rank, sorted};
use crate::pair::{Listener, Pair};
use crate::ping::Ping;
use crate::silence::Talk;
use crate::stage::{proxied, server};
use crate::turns::{RUN_IN, Turns};

/// The kinds of sessions.
const DIRECT: usize = 0;
const CONTROL: usize = 1;
const NULL: usize = 2;
const CRYPT: usize = 3;
const SHAPE: usize = 4;
const SPLICED: usize = 5;
const COPIED: usize = 6;
const LEFT: usize = 7;
const KINDS: usize = 8;
const _: () = assert!(DIRECT == crate::turns::BASE);

const NAMES: [(&str, usize); 7] = [
    ("null", NULL),
    ("crypt", CRYPT),
    ("shape", SHAPE),
    ("haproxy", SPLICED),
    ("haproxy_copying", COPIED),
    ("left", LEFT),
    ("control", CONTROL),
];

/// Bytes of a write.
const WRITES: [(&str, usize); 4] = [("1b", 1), ("64b", 64), ("1k", 1 << 10), ("64k", 64 << 10)];

/// Rate of the links in the second half.
const RATE: &str = "1gbit";

/// Milliseconds by which the longest silences of a change may exceed those without a change.
const SILENCE_MS: f64 = 5.0;

/// Services that are put while silence is measured, in this order.
const PUT: [&str; 2] = ["+null", "+crypt"];

type Kinds = Turns<KINDS>;

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let stage = Stage::build()?;
    let mut figures = Vec::new();
    stage.streams(effort, "", &mut figures)?;
    stage.volleys(effort, &mut figures)?;
    for service in PUT {
        stage.silences(effort, service, &mut figures)?;
    }
    Delay::limit(&stage.lab, RATE)?;
    stage.streams(effort, "_1gbit", &mut figures)?;
    stage.end()?;
    Ok(figures)
}

/// The hosts. The fields are dropped in this order.
struct Stage {
    listener: Listener,
    haproxies: [Process; 2],
    daemons: [Daemon; 2],
    fleet: Fleet,
    lab: Lab,
}

impl Stage {
    fn build() -> Result<Stage> {
        let lab = Lab::builder("services").build()?;
        let fleet = Fleet::new(&lab)?;
        let haproxy = |name, at, splice| {
            let config = Config::tcp(at, server()).named(name).splice(splice);
            config.start(&lab.proxy, |haproxy| haproxy)
        };
        Ok(Stage {
            listener: Listener::start(&lab, server())?,
            haproxies: [
                haproxy("splicing", proxied(), true)?,
                haproxy("copying", copied(), false)?,
            ],
            daemons: [
                fleet.start(&lab, Role::Client, PRELOADED)?,
                fleet.start(&lab, Role::Server, PRELOADED)?,
            ],
            fleet,
            lab,
        })
    }

    fn end(self) -> Result<()> {
        self.lab
            .finish((self.listener, self.haproxies, self.daemons))
    }

    /// Number of turns of each kind, so that all series together take the requested time.
    fn turns(effort: &Effort) -> usize {
        let series = 2 * WRITES.len() + 1;
        // Each turn has a turn of the baseline beside it.
        let turn = 2 * (KINDS - 1) as u32 * effort.turn();
        let series = series * rounds(effort);
        let time = Duration::from_secs(effort.seconds.into()) / series as u32;
        let turns = (time.as_secs_f64() / turn.as_secs_f64()) as usize;
        effort.pick(turns.max(1), 1)
    }

    /// Opens one session of each kind, and gives each to `start`, which lets data flow.
    fn sessions<S>(&self, start: impl Fn(Pair) -> Result<S>) -> Result<[S; KINDS]> {
        let open = |to| {
            let pair = self.listener.open(&self.lab, to)?;
            let client = pair.client.local_addr().context("no address")?;
            Ok::<_, anyhow::Error>((start(pair)?, client))
        };
        let direct = || open(server());
        let (null, crypt, shape, left) = (direct()?, direct()?, direct()?, direct()?);
        self.change(&["put", "+null"], null.1)?;
        self.change(&["put", "+crypt"], crypt.1)?;
        self.change(&["put", "+shape=rate=10G"], shape.1)?;
        self.change(&["put", "+null"], left.1)?;
        self.change(&["take"], left.1)?;
        Ok([
            direct()?.0,
            direct()?.0,
            null.0,
            crypt.0,
            shape.0,
            open(proxied())?.0,
            open(copied())?.0,
            left.0,
        ])
    }

    /// Changes the services of the session that this address has opened, and waits for the end.
    fn change(&self, words: &[&str], client: SocketAddr) -> Result<()> {
        let name = format!("{client}>{}", server());
        let words = [&["service"], words, &[&name, "--wait"]].concat();
        let done = self.fleet.json(&self.lab.client, &words)?;
        let outcome = &done["sessions"][0]["outcome"];
        let done_well = *outcome == "put" || *outcome == "taken" || *outcome == "possible";
        ensure!(done_well, "the services were not changed: {done:#}");
        Ok(())
    }

    fn streams(&self, effort: &Effort, links: &str, figures: &mut Vec<Figure>) -> Result<()> {
        for (name, write) in WRITES {
            let mut turns = Kinds::new("direct");
            for round in 1..=rounds(effort) {
                effort.say(&format!("  writes of {write} bytes{links}, round {round}"));
                let sessions = self.sessions(|pair| {
                    let bulk = Bulk::writing(pair, Way::Down, write)?;
                    bulk.measure(RUN_IN, RUN_IN)?;
                    Ok(bulk)
                })?;
                let idle = || Ok(Duration::ZERO);
                turns.bulk(&sessions, Stage::turns(effort), effort.turn(), idle)?;
            }
            let figure = |kind_name: &str, kind| {
                let name = format!("services_{kind_name}_goodput_{name}{links}");
                turns.figure(name, kind, 1e9, "Gbit/s")
            };
            let rivals = [SPLICED, COPIED].map(|kind| figure("", kind).value);
            let limited = !links.is_empty();
            figures.extend(NAMES.map(|(kind_name, kind)| {
                let figure = figure(kind_name, kind);
                match stream_goal(kind, limited, rivals) {
                    Some(least) => figure.goal(Goal::AtLeast(least)),
                    None => figure,
                }
            }));
        }
        Ok(())
    }

    fn volleys(&self, effort: &Effort, figures: &mut Vec<Figure>) -> Result<()> {
        let mut turns = Kinds::new("direct");
        for round in 1..=rounds(effort) {
            effort.say(&format!("  one-byte round trips, round {round}"));
            let sessions = self.sessions(|pair| {
                let ping = Ping::of(pair, 1, 1)?;
                ping.measure(RUN_IN)?;
                Ok(ping)
            })?;
            turns.requests(&sessions, Stage::turns(effort), effort.turn())?;
        }
        for (kind_name, kind) in NAMES {
            let name = format!("services_{kind_name}_volleys");
            let figure = turns.figure_of(name, kind, |brought| brought.rate, "volleys/s");
            figures.push(match kind {
                LEFT => figure.goal(Goal::AtLeast(0.97)),
                NULL => figure.goal(Goal::AtLeast(0.65)),
                _ => figure,
            });
        }
        Ok(())
    }

    /// Measures the longest time without an answer while a service is put and while it is taken. A
    /// dry run of the command, which changes nothing, shows the silence without a change. Each round
    /// has another session.
    fn silences(&self, effort: &Effort, service: &str, figures: &mut Vec<Figure>) -> Result<()> {
        let changes = effort.pick(100, 5) / rounds(effort);
        let mut all = [Vec::new(), Vec::new(), Vec::new()];
        for round in 1..=rounds(effort) {
            effort.say(&format!(
                "  putting and taking {service} {changes} times, round {round}"
            ));
            let pair = self.listener.open(&self.lab, server())?;
            let client = pair.client.local_addr().context("no address")?;
            let talk = Talk::start(pair)?;
            all.iter_mut().for_each(|kind| kind.push(Vec::new()));
            for _ in 0..changes {
                let steps: [&[&str]; 3] =
                    [&["put", service, "--dry-run"], &["put", service], &["take"]];
                for (rounds, words) in all.iter_mut().zip(steps) {
                    let silence = talk.longest(|| self.change(words, client))?;
                    rounds.last_mut().context("no round")?.push(silence);
                }
            }
            talk.finish()?;
        }
        let [unchanged, put, take] = all;
        let floor = sorted(&unchanged.concat());
        for (step, rounds) in [("put", put), ("take", take)] {
            for percent in [50, 99] {
                let kind = service.trim_start_matches('+');
                let name = format!("services_{kind}_{step}_silence_ms_p{percent}");
                let value = rank(&sorted(&rounds.concat()), percent);
                let mut figure = Figure::new(name, "ms", value).sampled(rounds.clone());
                if percent == 99 {
                    // The interval is that of the median.
                    figure.interval = None;
                    figure = figure.goal(Goal::AtMost(rank(&floor, 99) + SILENCE_MS));
                }
                figures.push(figure.aside("unchanged, ms", rank(&floor, percent)));
            }
        }
        Ok(())
    }
}

/// Address on which the HAProxy that copies listens.
fn copied() -> SocketAddr {
    Role::Proxy.at(Family::V4, 8081)
}

/// Number of rounds. Each has sessions of its own.
fn rounds(effort: &Effort) -> usize {
    effort.pick(6, 1)
}

/// Least goodput that a kind should reach. Where the links are `limited`, the services should hardly
/// show, and else they should reach what HAProxy does that splices, or that copies.
fn stream_goal(kind: usize, limited: bool, [splicing, copying]: [f64; 2]) -> Option<f64> {
    match (kind, limited) {
        (LEFT, _) | (NULL | SHAPE, true) => Some(0.97),
        (CRYPT, true) => Some(0.90),
        (NULL, false) => Some(splicing),
        (CRYPT, false) => Some(copying),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_held_against_what_they_could_reach() {
        let rivals = [0.8, 0.4];
        assert_eq!(stream_goal(NULL, false, rivals), Some(0.8));
        assert_eq!(stream_goal(CRYPT, false, rivals), Some(0.4));
        assert_eq!(stream_goal(CRYPT, true, rivals), Some(0.90));
        assert_eq!(stream_goal(SHAPE, true, rivals), Some(0.97));
        assert_eq!(stream_goal(SPLICED, true, rivals), None);
    }
}
