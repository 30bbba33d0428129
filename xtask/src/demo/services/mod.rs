//! `cargo xtask demo services`: a running download and sessions that ask and answer are encrypted,
//! then compressed, then left alone again. A capture between the hosts shows the readable bytes.

mod seen;
mod talk;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use dysco_netns::capture::{self, Resets};
use dysco_netns::fleet::{Daemon, Fleet, PRELOADED};
use dysco_netns::{Family, Lab, Role, wait};
use serde::Serialize;
use serde_json::Value;

use crate::build::Demonstrated;
use crate::setup::{self, Need};
use seen::Seen;
use talk::{Download, Talks};

/// Encrypt and compress live sessions, and leave them as they were.
#[derive(Args)]
pub(super) struct Services {
    /// Print only one JSON object, at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    build: Demonstrated,
    /// Number of sessions that ask and answer, beside the download
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=500))]
    sessions: u64,
}

/// The object that `--json` prints.
#[derive(Serialize)]
struct Report {
    intact: bool,
    /// Packets with RST of the sessions that were seen at either end.
    resets: u64,
    /// Sessions, the download among them.
    sessions: usize,
    /// Sessions into which services came, over both changes.
    put: u64,
    /// Sessions that services left, over both changes.
    taken: u64,
    /// Payload of the sessions' own five-tuples between the hosts, once services were in.
    plain_after_put_bytes: u64,
    /// Bytes on the wire for each byte of the download, divided by that number without services.
    wire_ratio_compressed: f64,
    /// 99th percentile of the longest time without an answer around a change.
    silence_ms_p99: f64,
    /// The same, without a change.
    quiet_ms_p99: f64,
}

/// Port of the server.
const PORT: u16 = 9000;
/// Time limit for an event that has to happen soon.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the download over which the wire is measured.
const MEASURED: u64 = 20_000_000;

impl Services {
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
        ensure!(report.intact, "not every byte arrived as it was sent");
        let plain = report.plain_after_put_bytes;
        ensure!(plain == 0, "{plain} bytes were readable");
        ensure!(report.resets == 0, "an end saw a reset");
        Ok(())
    }

    fn say(&self, text: &str) {
        if !self.json {
            println!("{text}");
        }
    }

    #[allow(clippy::too_many_lines)]
    fn play(&self, programs: &Path) -> Result<Report> {
        let stage = Stage::build(programs)?;
        let count = self.sessions as usize + 1;
        let [at_client, at_server] = stage.resets()?;
        let download = Download::start(&stage.lab)?;
        let talks = Talks::start(&stage.lab, self.sessions as usize)?;
        self.say(&format!(
            "a download and {} sessions that ask and answer run; both hosts run dyscod.",
            self.sessions
        ));
        let plain = stage.watch(&download)?;
        ensure!(
            plain.readable > 0,
            "the capture saw nothing of the sessions"
        );
        let plain_ratio = stage.wire_ratio(&download)?;
        let mut quiet = talks.silences(|| {
            std::thread::sleep(Duration::from_millis(500));
            Ok(())
        })?;
        self.say(&format!(
            "  between the hosts {} of {} captured bytes of payload are readable",
            plain.readable, plain.payload
        ));

        let mut report = Report {
            intact: false,
            resets: 0,
            sessions: count,
            put: 0,
            taken: 0,
            plain_after_put_bytes: 0,
            wire_ratio_compressed: 0.0,
            silence_ms_p99: 0.0,
            quiet_ms_p99: percentile(&mut quiet),
        };
        let mut silences = Vec::new();
        self.change(
            &stage,
            &talks,
            &["put", "+crypt"],
            &mut report,
            &mut silences,
        )?;
        let crypt = stage.watch(&download)?;
        report.plain_after_put_bytes = crypt.plain_bytes();
        self.say(&format!(
            "  of {} captured bytes of payload {} are readable",
            crypt.payload,
            crypt.plain_bytes()
        ));
        self.change(
            &stage,
            &talks,
            &["put", "+compress"],
            &mut report,
            &mut silences,
        )?;
        let compressed = stage.wire_ratio(&download)?;
        report.wire_ratio_compressed = compressed / plain_ratio;
        self.say(&format!(
            "  the download takes {compressed:.2} bytes on the wire a byte, after {plain_ratio:.2}"
        ));
        self.change(
            &stage,
            &talks,
            &["take", "+crypt"],
            &mut report,
            &mut silences,
        )?;
        self.change(&stage, &talks, &["take"], &mut report, &mut silences)?;
        let after = stage.watch(&download)?;
        ensure!(after.readable > 0, "the services are still there");
        self.say("  the sessions are plain text again, and pass no handler");

        report.silence_ms_p99 = percentile(&mut silences);
        let ends = [download.finish(), talks.finish()];
        report.intact = ends.iter().all(Result::is_ok);
        for error in ends.into_iter().filter_map(Result::err) {
            eprintln!("{error:#}");
        }
        let resets = [
            at_client.seen(&stage.lab.client)?,
            at_server.seen(&stage.lab.server)?,
        ]
        .concat();
        drop([at_client, at_server]);
        for reset in &resets {
            eprintln!("a reset: {reset}");
        }
        report.resets = resets.len() as u64;
        stage.end(report.intact && resets.is_empty())?;
        Ok(report)
    }

    /// Puts services into all sessions, or takes them out. Adds the silence of each session.
    fn change(
        &self,
        stage: &Stage,
        talks: &Talks,
        words: &[&str],
        report: &mut Report,
        silences: &mut Vec<f64>,
    ) -> Result<()> {
        let start = Instant::now();
        let mut done = 0;
        let mut own = talks.silences(|| {
            let outcome = if words[0] == "put" { "put" } else { "taken" };
            done = stage.change(words, outcome)?;
            Ok(())
        })?;
        let took = start.elapsed().as_millis();
        let longest = percentile(&mut own);
        silences.extend(own);
        match words[0] {
            "put" => report.put += done,
            _ => report.taken += done,
        }
        ensure!(
            done == report.sessions as u64,
            "{} of {} sessions have changed",
            done,
            report.sessions
        );
        self.say(&format!(
            "client# dyscoctl service {} --filter port=9000 --wait\n  \
             {done} sessions have changed, after {took} ms; none was silent for more than {longest:.1} ms",
            words.join(" "),
        ));
        Ok(())
    }
}

/// Returns the 99th percentile, in milliseconds.
fn percentile(all: &mut [f64]) -> f64 {
    all.sort_by(f64::total_cmp);
    let at = (all.len() * 99).div_ceil(100).saturating_sub(1);
    all.get(at).copied().unwrap_or_default()
}

impl Report {
    fn text(&self) -> String {
        format!(
            "\nServices came into {} sessions and left {}; {} resets. Readable bytes while they were\n\
             encrypted: {}. Compressed, the download took {:.2} of the wire. Longest time without an\n\
             answer around a change (p99): {:.1} ms; without a change {:.1} ms.",
            self.put,
            self.taken,
            self.resets,
            self.plain_after_put_bytes,
            self.wire_ratio_compressed,
            self.silence_ms_p99,
            self.quiet_ms_p99,
        )
    }
}

/// The hosts, and the programs that run on them. The fields are dropped in this order.
struct Stage {
    daemons: [Daemon; 2],
    fleet: Fleet,
    lab: Lab,
}

impl Stage {
    fn build(programs: &Path) -> Result<Stage> {
        let lab = Lab::builder("services").build()?;
        let fleet = Fleet::with_programs(&lab, programs)?;
        Ok(Stage {
            daemons: [
                fleet.start(&lab, Role::Client, PRELOADED)?,
                fleet.start(&lab, Role::Server, PRELOADED)?,
            ],
            fleet,
            lab,
        })
    }

    /// Captures resets at both ends. The kernel's counters also have those of connections between the
    /// hosts' handlers.
    fn resets(&self) -> Result<[Resets; 2]> {
        let [client, server] = [&self.lab.client, &self.lab.server];
        Ok([Resets::start(client, PORT)?, Resets::start(server, PORT)?])
    }

    /// Changes all sessions. Returns the number of those that have changed.
    fn change(&self, words: &[&str], outcome: &str) -> Result<u64> {
        // The first change loads the handler's programs, which an emulated processor verifies slowly.
        // dyscoctl waits for ten minutes at most.
        let limit = (PATIENCE * wait::slow()).as_secs().min(600);
        let wait = format!("--wait={limit}s");
        let filter = ["--filter", "port=9000", &wait];
        let words = [&["service"], words, &filter].concat();
        let done = self.fleet.json(&self.lab.client, &words)?;
        let all = done["sessions"].as_array().context("no sessions")?;
        let fit = all.iter().filter(|one| one["outcome"] == outcome);
        Ok(fit.count() as u64)
    }

    /// Captures the packets between the hosts during the download.
    fn watch(&self, download: &Download) -> Result<Seen> {
        let router = &self.lab.router;
        let file = router.dir().join("server.pcap0");
        // An error means that there is no such file.
        let _ = std::fs::remove_file(&file);
        let capture = capture::start(router, "server")?;
        download.wait(MEASURED / 10)?;
        let complete = || {
            let seen = Seen::read(&file).ok()?;
            (seen.payload > MEASURED / 100).then_some(seen)
        };
        let seen = wait::until("the capture", PATIENCE, complete)?;
        drop(capture);
        Ok(seen)
    }

    /// Returns the bytes between the hosts for each byte of the download.
    fn wire_ratio(&self, download: &Download) -> Result<f64> {
        let wire = self.wire()?;
        let before = download.received();
        download.wait(MEASURED)?;
        let bytes = download.received() - before;
        Ok((self.wire()? - wire) as f64 / bytes as f64)
    }

    /// Bytes that the router has had from the server's host.
    fn wire(&self) -> Result<u64> {
        let words = ["-j", "-s", "link", "show", "server"];
        let text = self.lab.router.output("ip", &words)?;
        let shown: Value = serde_json::from_str(&text)?;
        let bytes = shown[0]["stats64"]["rx"]["bytes"].as_u64();
        bytes.context("ip shows no number of bytes")
    }

    /// Ends everything. After a failure the logs stay.
    fn end(self, well: bool) -> Result<()> {
        drop(self.daemons);
        if well { self.lab.finish(()) } else { Ok(()) }
    }
}

/// Address of the server.
fn server() -> std::net::SocketAddr {
    Role::Server.at(Family::V4, PORT)
}
