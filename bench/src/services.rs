//! A session with services: `null` at one end, and `crypt` at both ends; the same session once the
//! services have left; and a session through HAProxy, which splices. The baseline is a direct
//! session, and the control is a second direct session. All are tracked by `dyscod` at both ends,
//! are open at the same time, and take turns, one at a time.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::delay::Delay;
use dysco_netns::fleet::{Daemon, Fleet, PRELOADED};
use dysco_netns::haproxy::Config;
use dysco_netns::{Lab, Process, Role};

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
const SPLICED: usize = 4;
const LEFT: usize = 5;
const KINDS: usize = 6;
const _: () = assert!(DIRECT == crate::turns::BASE);

const NAMES: [(&str, usize); 5] = [
    ("null", NULL),
    ("crypt", CRYPT),
    ("haproxy", SPLICED),
    ("left", LEFT),
    ("control", CONTROL),
];

/// Bytes of a write.
const WRITES: [(&str, usize); 4] = [("1b", 1), ("64b", 64), ("1k", 1 << 10), ("64k", 64 << 10)];

/// Rate of the links in the second half.
const RATE: &str = "1gbit";

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
    haproxy: Process,
    daemons: [Daemon; 2],
    fleet: Fleet,
    lab: Lab,
}

impl Stage {
    fn build() -> Result<Stage> {
        let lab = Lab::builder("services").build()?;
        let fleet = Fleet::new(&lab)?;
        let haproxy = Config::tcp(proxied(), server());
        Ok(Stage {
            listener: Listener::start(&lab, server())?,
            haproxy: haproxy.start(&lab.proxy, |haproxy| haproxy)?,
            daemons: [
                fleet.start(&lab, Role::Client, PRELOADED)?,
                fleet.start(&lab, Role::Server, PRELOADED)?,
            ],
            fleet,
            lab,
        })
    }

    fn end(self) -> Result<()> {
        self.lab.finish((self.listener, self.haproxy, self.daemons))
    }

    /// Number of turns of each kind, so that all series together take the requested time.
    fn turns(effort: &Effort) -> usize {
        let series = 2 * WRITES.len() + 1;
        // Each turn has a turn of the baseline beside it.
        let turn = 2 * (KINDS - 1) as u32 * effort.turn();
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
        let (null, crypt, left) = (direct()?, direct()?, direct()?);
        self.change(&["put", "+null"], null.1)?;
        self.change(&["put", "+crypt"], crypt.1)?;
        self.change(&["put", "+null"], left.1)?;
        self.change(&["take"], left.1)?;
        Ok([
            direct()?.0,
            direct()?.0,
            null.0,
            crypt.0,
            open(proxied())?.0,
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
            effort.say(&format!("  writes of {write} bytes{links}"));
            let mut turns = Kinds::new("direct");
            let sessions = self.sessions(|pair| {
                let bulk = Bulk::writing(pair, Way::Down, write)?;
                bulk.measure(RUN_IN, RUN_IN)?;
                Ok(bulk)
            })?;
            let idle = || Ok(Duration::ZERO);
            turns.bulk(&sessions, Stage::turns(effort), effort.turn(), idle)?;
            for (kind_name, kind) in NAMES {
                let name = format!("services_{kind_name}_goodput_{name}{links}");
                let figure = turns.figure(name, kind, 1e9, "Gbit/s");
                figures.push(match kind {
                    LEFT => figure.goal(Goal::AtLeast(0.97)),
                    _ => figure,
                });
            }
        }
        Ok(())
    }

    fn volleys(&self, effort: &Effort, figures: &mut Vec<Figure>) -> Result<()> {
        effort.say("  one-byte round trips");
        let mut turns = Kinds::new("direct");
        let sessions = self.sessions(|pair| {
            let ping = Ping::of(pair, 1, 1)?;
            ping.measure(RUN_IN)?;
            Ok(ping)
        })?;
        turns.requests(&sessions, Stage::turns(effort), effort.turn())?;
        for (kind_name, kind) in NAMES {
            let name = format!("services_{kind_name}_volleys");
            let figure = turns.figure_of(name, kind, |brought| brought.rate, "volleys/s");
            figures.push(match kind {
                LEFT => figure.goal(Goal::AtLeast(0.97)),
                _ => figure,
            });
        }
        Ok(())
    }

    /// Measures the longest time without an answer while a service is put and while it is taken. A
    /// dry run of the command, which changes nothing, shows the silence without a change.
    fn silences(&self, effort: &Effort, service: &str, figures: &mut Vec<Figure>) -> Result<()> {
        let changes = effort.pick(100, 5);
        effort.say(&format!("  putting and taking {service} {changes} times"));
        let pair = self.listener.open(&self.lab, server())?;
        let client = pair.client.local_addr().context("no address")?;
        let talk = Talk::start(pair)?;
        let mut all = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..changes {
            let steps: [&[&str]; 3] =
                [&["put", service, "--dry-run"], &["put", service], &["take"]];
            for (silences, words) in all.iter_mut().zip(steps) {
                silences.push(talk.longest(|| self.change(words, client))?);
            }
        }
        talk.finish()?;
        let [unchanged, put, take] = all;
        let floor = sorted(&unchanged);
        for (step, silences) in [("put", put), ("take", take)] {
            for percent in [50, 99] {
                let kind = service.trim_start_matches('+');
                let name = format!("services_{kind}_{step}_silence_ms_p{percent}");
                let mut figure = Figure::new(name, "ms", rank(&sorted(&silences), percent));
                figure.samples.clone_from(&silences);
                figures.push(figure.aside("unchanged, ms", rank(&floor, percent)));
            }
        }
        Ok(())
    }
}
