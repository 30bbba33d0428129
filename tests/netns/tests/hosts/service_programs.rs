//! Services in live sessions of real programs: curl and a static Go program with nginx, psql with
//! PostgreSQL, ssh with sshd.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::dialogue::Dialogue;
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::http::{self, Traffic};
use dysco_netns::nginx::{BLOCK_SEED, Nginx};
use dysco_netns::services::{Postgres, Ssh};
use dysco_netns::{Family, Lab, Process, Program, Role, relays, wait};
use dysco_pattern::Pattern;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const WEB: u16 = 8000;
const DATABASE: u16 = 5432;
const SHELL: u16 = 2222;
/// Port of the Go program on the client's host, which relays to nginx.
const GO: u16 = 7000;
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of curl's download and upload.
const BYTES: usize = 9_000_000;
/// The most that curl may move a second, so that its sessions live longer than most changes.
const RATE: &str = "3M";

const SERVICES: [&str; 7] = [
    "+null",
    "+count",
    "+compress",
    "+crypt",
    "+shape=rate=200M",
    "+latency=delay=10ms",
    "+split=congestion=reno",
];

/// The hosts, and the servers there. The fields are dropped in this order.
struct Stage {
    _servers: (Nginx, Postgres),
    ssh: Ssh,
    _go: Process,
    daemons: [Daemon; 2],
    fleet: Fleet,
    lab: Lab,
    family: Family,
}

impl Stage {
    fn build(name: &str, family: Family, loss: f64) -> Result<Stage> {
        let lab = Lab::builder(name).loss(loss).build()?;
        let fleet = Fleet::new(&lab)?;
        let daemons = [
            fleet.start(&lab, Role::Client, "")?,
            fleet.start(&lab, Role::Server, "")?,
        ];
        let at = |port| Role::Server.at(family, port);
        Ok(Stage {
            _servers: (
                Nginx::start(&lab.server, WEB)?,
                Postgres::start(&lab.server, at(DATABASE))?,
            ),
            ssh: Ssh::start(&lab.server, at(SHELL))?,
            _go: relays::go(&lab.client, Role::Client.at(family, GO), at(WEB))?,
            daemons,
            fleet,
            lab,
            family,
        })
    }

    /// Changes all sessions of a port, and waits for the end of the change. Returns the number of
    /// those that have changed. Others may have ended meanwhile.
    fn change(&self, words: &[&str], outcome: &str, port: u16) -> Result<usize> {
        let filter = ["--filter", &format!("port={port}"), "--wait"];
        let words = [&["service"], words, &filter, &["-o", "json"]].concat();
        let ran = self.fleet.try_dyscoctl(&self.lab.client, &words)?;
        // Some may be refused, with the exit code of a refusal.
        ensure!(matches!(ran.code, Some(0 | 5)), "{ran:?}");
        let done: Value = serde_json::from_str(&ran.stdout).with_context(|| format!("{ran:?}"))?;
        let all = done["sessions"].as_array().context("no sessions")?;
        let changed = all.iter().filter(|one| one["outcome"] == outcome).count();
        let ended = all.iter().filter(|one| {
            one["outcome"] == "refused" && one["reason"].to_string().contains("ended")
        });
        ensure!(changed + ended.count() == all.len(), "{done:#}");
        Ok(changed)
    }

    /// Ends the hosts. A handler outlives its daemon as long as it has sessions.
    fn finish(self) -> Result<()> {
        let Stage {
            _servers: servers,
            ssh,
            _go: go,
            daemons,
            fleet,
            lab,
            ..
        } = self;
        let mut handlers = Vec::new();
        for host in [&lab.client, &lab.server] {
            let listed = fleet.json(host, &["service", "list"])?;
            handlers.extend(listed[0]["handler"].as_i64());
        }
        let done = lab.finish((servers, ssh, go, daemons));
        for pid in handlers {
            // An error means that it has ended.
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
        done
    }
}

/// The sessions.
struct Sessions {
    download: Traffic,
    upload: Traffic,
    by_go: Traffic,
    database: Dialogue,
    shell: Dialogue,
    lines: u32,
}

impl Sessions {
    fn open(stage: &Stage) -> Result<Sessions> {
        let (client, family) = (&stage.lab.client, stage.family);
        let at = |port| Role::Server.at(family, port);
        Ok(Sessions {
            download: http::download(client, at(WEB), "down")?,
            upload: http::upload(client, at(WEB), "up", 5, 3_000_000)?,
            by_go: http::download(client, Role::Client.at(family, GO), "by Go")?,
            database: Postgres::client(client, at(DATABASE))?,
            shell: stage.ssh.client(client, at(SHELL))?,
            lines: 0,
        })
    }

    /// Waits until each session has gone on.
    fn go_on(&mut self) -> Result<()> {
        for traffic in [&self.download, &self.upload, &self.by_go] {
            let until = traffic.gauge.bytes() + 200_000;
            let there = || (traffic.gauge.bytes() >= until).then_some(());
            wait::until(&format!("{} to go on", traffic.name()), PATIENCE, there)?;
        }
        self.lines += 1;
        let sum = format!(
            "select sum(n) from generate_series(1, 1000) n -- {}",
            self.lines
        );
        self.database.expect(&format!("{sum}\n;"), "500500")?;
        let line = format!("line {} of a shell", self.lines);
        self.shell.expect(&line, &line)
    }

    /// Ends all sessions. Everything has arrived as it was sent.
    fn finish(self, stage: &Stage) -> Result<()> {
        for traffic in [self.download, self.by_go] {
            traffic.finish()?;
        }
        let bytes = self.upload.finish()?;
        Nginx::verify(&stage.lab.server, "up", Pattern::new(5), bytes)?;
        self.database.finish()?;
        self.shell.finish()
    }
}

/// A download and an upload by curl.
struct Curl {
    programs: [Process; 2],
    file: PathBuf,
}

impl Curl {
    fn start(stage: &Stage) -> Result<Curl> {
        let client = &stage.lab.client;
        let [file, source] = ["curl-down", "curl-up"].map(|name| client.dir().join(name));
        fs::write(&source, bytes(7))?;
        let server = Role::Server.at(stage.family, WEB);
        let curl = || Program::new("curl").args(["-sS", "--fail", "--limit-rate", RATE]);
        let down = curl().args(["-r", &format!("0-{}", BYTES - 1), "-o"]);
        let down = down.arg(&file).arg(format!("http://{server}/block"));
        let up = curl().arg("-T").arg(&source);
        let up = up.arg(format!("http://{server}/up/by-curl"));
        Ok(Curl {
            programs: [
                client.spawn(down.named("curl-down"))?,
                client.spawn(up.named("curl-up"))?,
            ],
            file,
        })
    }

    /// Waits for the end of both. The files are equal at both ends.
    fn finish(mut self, stage: &Stage) -> Result<()> {
        for program in &mut self.programs {
            wait::until("curl to end", PATIENCE, || (!program.runs()).then_some(()))?;
            ensure!(program.log().is_empty(), "{}", program.log());
        }
        let got = fs::read(&self.file).context("curl has stored nothing")?;
        ensure!(got == bytes(BLOCK_SEED), "curl has got other bytes");
        let (server, pattern) = (&stage.lab.server, Pattern::new(7));
        Nginx::verify(server, "by-curl", pattern, BYTES as u64)?;
        Ok(())
    }
}

fn bytes(seed: u64) -> Vec<u8> {
    let mut all = vec![0; BYTES];
    Pattern::new(seed).fill(0, &mut all);
    all
}

fn programs_notice_nothing(name: &str, family: Family, loss: f64) -> Result<()> {
    let stage = Stage::build(name, family, loss)?;
    let mut sessions = Sessions::open(&stage)?;
    sessions.go_on()?;
    for service in SERVICES {
        let curl = Curl::start(&stage)?;
        let mut count = 0;
        for port in [WEB, DATABASE, SHELL] {
            count += stage.change(&["put", service], "put", port)?;
        }
        ensure!(count >= 5, "{count} sessions have {service}");
        sessions
            .go_on()
            .with_context(|| format!("with {service}"))?;
        for port in [WEB, DATABASE, SHELL] {
            stage.change(&["take"], "taken", port)?;
        }
        sessions
            .go_on()
            .with_context(|| format!("after {service}"))?;
        curl.finish(&stage)
            .with_context(|| format!("curl with {service}"))?;
    }
    sessions.finish(&stage)?;
    stage.finish()
}

#[test]
fn real_programs_notice_no_service() -> Result<()> {
    programs_notice_nothing("programs4", Family::V4, 0.0)
}

#[test]
fn real_programs_notice_no_service_over_ipv6() -> Result<()> {
    programs_notice_nothing("programs6", Family::V6, 0.0)
}

#[test]
fn real_programs_notice_no_service_over_a_lossy_link() -> Result<()> {
    programs_notice_nothing("programsloss", Family::V4, 0.5)
}
