//! `cargo xtask demo reload`: HAProxy is reloaded and stopped under live sessions, and no end
//! notices it. Only HAProxy's host runs `dyscod`.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::haproxy::Config;
use dysco_netns::stream::{Group, Outcome, Plan, Server};
use dysco_netns::{Family, Lab, Process, Role, wait};
use serde::Serialize;
use serde_json::Value;

use crate::build::Demonstrated;
use crate::setup::{self, Need};

/// Reload and stop a real HAProxy under live sessions, and lose none.
#[derive(Args)]
pub(super) struct Reload {
    /// Print only one JSON object, at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    build: Demonstrated,
    /// Number of sessions through the proxy
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=2000))]
    sessions: u64,
}

/// The object that `--json` prints.
#[derive(Serialize)]
struct Report {
    sessions: usize,
    lost: usize,
    intact: bool,
    old_processes_left: usize,
    drain_ms: u64,
    bytes: u64,
}

const CONFIG: &str = "[[listener]]\naddress = \":8080\"\ntransparent = true\n\
                      [removal]\nmode = \"local\"\n";
/// Time limit for an old process to notice that it has nothing left to do.
const PATIENCE: Duration = Duration::from_secs(30);
/// Divisor of the number of sessions: the share that opens after the reload.
const LATER: usize = 10;

impl Reload {
    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        dysco_netns::require_root()?;
        setup::ensure(Need::Demo)?;
        let programs = self.build.programs(self.json)?;
        let report = self.play(&programs)?;
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            println!("{}", report.text());
        }
        ensure!(report.lost == 0, "{} sessions were lost", report.lost);
        ensure!(report.intact, "not every byte arrived as it was sent");
        let left = report.old_processes_left;
        ensure!(left == 0, "{left} old processes are left");
        Ok(())
    }

    fn say(&self, text: &str) {
        if !self.json {
            println!("{text}");
        }
    }

    fn play(&self, programs: &Path) -> Result<Report> {
        let stage = Stage::build(programs)?;
        self.say(
            "client and server know nothing of dyscod; the proxy's host runs it, and HAProxy.",
        );
        let first = stage.haproxy("haproxy", None)?;
        let sessions = stage.open(self.sessions as usize)?;
        self.say(&format!(
            "{} sessions carry data both ways through HAProxy {}",
            self.sessions,
            first.id()
        ));
        let drained = stage.drain(&first)?;
        self.say(&format!(
            "proxy# dyscoctl drain {}\n  its sessions left it in {} ms and go on; the kernel relays them",
            first.id(),
            drained.as_millis()
        ));
        let mut left = 0;
        let second = stage.haproxy("reloaded", Some(&first))?;
        left += usize::from(!ends(first));
        self.say(&format!(
            "proxy# haproxy -f … -sf …\n  HAProxy {} serves now; of the old one {}",
            second.id(),
            if left == 0 {
                "nothing is left"
            } else {
                "a process is left"
            },
        ));
        sessions.wait_progress(8 << 10)?;
        let later = stage.open((self.sessions as usize / LATER).max(1))?;
        let count = sessions.locals().len() + later.locals().len();
        stage.drain(&second)?;
        drop(second);
        self.say(&format!(
            "new sessions came, left it too, and HAProxy is stopped: {count} sessions go on without it"
        ));
        for group in [&sessions, &later] {
            group.wait_progress(8 << 10)?;
        }
        let mut outcomes = sessions.finish()?;
        outcomes.extend(later.finish()?);
        let lost = outcomes.iter().filter(|o| o.intact().is_err()).count();
        let report = Report {
            sessions: outcomes.len(),
            lost,
            intact: lost == 0,
            old_processes_left: left,
            drain_ms: drained.as_millis() as u64,
            bytes: outcomes.iter().map(received).sum(),
        };
        stage.end(report.intact)?;
        Ok(report)
    }
}

fn received(outcome: &Outcome) -> u64 {
    outcome.client.received + outcome.server.received
}

/// True if a process that was told to finish does so.
fn ends(mut old: Process) -> bool {
    let ended = || (!old.runs()).then_some(());
    wait::until("the old process to end", PATIENCE, ended).is_ok()
}

impl Report {
    fn text(&self) -> String {
        format!(
            "\n{} sessions, {} lost, {} old processes left; drained in {} ms.\n\
             {} MB arrived, every byte checked, SHA-256 of both directions the same.",
            self.sessions,
            self.lost,
            self.old_processes_left,
            self.drain_ms,
            self.bytes / 1_000_000,
        )
    }
}

/// The hosts, and the programs that run on them. The fields are dropped in this order.
struct Stage {
    server: Server,
    daemon: Daemon,
    fleet: Fleet,
    lab: Lab,
}

impl Stage {
    fn build(programs: &Path) -> Result<Stage> {
        let lab = Lab::builder("reload").build()?;
        let fleet = Fleet::with_programs(&lab, programs)?;
        Ok(Stage {
            server: Server::start(&lab.server, Role::Server.at(Family::V4, 9000))?,
            daemon: fleet.start(&lab, Role::Proxy, CONFIG)?,
            fleet,
            lab,
        })
    }

    /// Starts HAProxy, in place of a running process if there is one.
    fn haproxy(&self, name: &str, old: Option<&Process>) -> Result<Process> {
        let at = Role::Proxy.at(Family::V4, 8080);
        let config = Config::tcp(at, Role::Server.at(Family::V4, 9000)).named(name);
        let config = match old {
            Some(old) => config.reloading(&old.id().to_string()),
            None => config,
        };
        config.start(&self.lab.proxy, |haproxy| self.fleet.under_shim(haproxy))
    }

    fn open(&self, count: usize) -> Result<Group> {
        let plan = Plan {
            rate: Some(64 << 10),
            write: 4 << 10,
            ..Plan::default()
        };
        let at = Role::Proxy.at(Family::V4, 8080);
        let group = Group::open(&self.lab.client, &self.server, at, count, &plan)?;
        group.run();
        group.wait_progress(64 << 10)?;
        Ok(group)
    }

    /// Makes all sessions of a process leave it. Returns the time that this took.
    fn drain(&self, proxy: &Process) -> Result<Duration> {
        let (pid, start) = (proxy.id().to_string(), Instant::now());
        let words = ["drain", &pid, "--timeout", "60s", "-o", "json"];
        let ran = self.fleet.try_dyscoctl(&self.lab.proxy, &words)?;
        let last = ran.stdout.lines().last().unwrap_or_default();
        let done: Value = serde_json::from_str(last)
            .with_context(|| format!("dyscoctl printed no JSON: {} {}", ran.stdout, ran.stderr))?;
        ensure!(done["left"] == 0, "not all sessions left HAProxy: {done}");
        Ok(start.elapsed())
    }

    /// Ends everything. After a failure the logs stay.
    fn end(self, well: bool) -> Result<()> {
        drop((self.server, self.daemon));
        if well { self.lab.finish(()) } else { Ok(()) }
    }
}
