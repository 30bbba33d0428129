//! The most common problem: HAProxy is reloaded repeatedly while long sessions exist. `dyscod` runs
//! only on its host.

use std::time::Duration;

use crate::world::{PROXY_PORT, SERVER_PORT, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::dialogue::Dialogue;
use dysco_netns::haproxy::Config;
use dysco_netns::services::{Postgres, Ssh};
use dysco_netns::stream::{Amount, Close, Group, Plan, Side, all_intact};
use dysco_netns::{Family, Lab, Role, wait};
use serde_json::Value;

const WEB_SOCKET: u16 = 8081;
const DATABASE: u16 = 5432;
const SHELL: u16 = 2222;

const CONFIG: &str = "[[listener]]\naddress = \":8080\"\ntransparent = true\n\
                      [removal]\nmode = \"local\"\n";

/// Number of sessions before the first reload, and of new sessions before each reload.
const AT_FIRST: usize = 500;
/// Together with one session of PostgreSQL and one of SSH this is fifty.
const EACH_TIME: usize = 48;
const RELOADS: usize = 10;
/// Number of kinds of traffic, each with the same number of sessions.
const KINDS: usize = 4;
const LIMIT: Duration = Duration::from_secs(120);

fn relays(config: Config) -> Config {
    let server = |port| Role::Server.at(Family::V4, port);
    let here = |port| Role::Proxy.at(Family::V4, port);
    config
        .also("http", here(WEB_SOCKET), server(SERVER_PORT))
        .also("tcp", here(DATABASE), server(DATABASE))
        .also("tcp", here(SHELL), server(SHELL))
}

/// Traffic of users through the proxy: downloads, uploads, both, WebSockets.
struct Traffic {
    groups: Vec<Group>,
    /// Receiving ends of each group.
    receiving: Vec<Vec<Side>>,
}

impl Traffic {
    fn open(&mut self, w: &World, count: usize) -> Result<()> {
        let (none, endless) = (Amount::Bytes(0), Amount::UntilStopped);
        let kinds: [_; KINDS] = [
            (PROXY_PORT, none, endless, Side::Server, vec![Side::Client]),
            (PROXY_PORT, endless, none, Side::Client, vec![Side::Server]),
            (
                PROXY_PORT,
                endless,
                endless,
                Side::Client,
                vec![Side::Client, Side::Server],
            ),
            (
                WEB_SOCKET,
                endless,
                endless,
                Side::Client,
                vec![Side::Client, Side::Server],
            ),
        ];
        for (port, up, down, closes, receiving) in kinds {
            let plan = Plan {
                up,
                down,
                close: Close::First(closes),
                after_close: 1_000,
                rate: Some(8 << 10),
                write: 1 << 10,
                web_socket: port == WEB_SOCKET,
                ..Plan::default()
            };
            let group = w.open_at(port, count / KINDS, &plan)?;
            group.run();
            self.groups.push(group);
            self.receiving.push(receiving);
        }
        Ok(())
    }

    /// Waits until each session has delivered more data to each receiving end.
    fn goes_on(&self) -> Result<()> {
        let all = self.groups.iter().zip(&self.receiving);
        let ends = all.flat_map(|(group, sides)| sides.iter().map(move |side| (group, *side)));
        let goals: Vec<_> = ends
            .map(|(group, side)| (group, side, group.goals(side, 4 << 10)))
            .collect();
        let reached =
            |(group, side, goals): &(&Group, Side, Vec<u64>)| group.wait_goals(*side, goals);
        goals.iter().try_for_each(reached)
    }

    fn count(&self) -> usize {
        self.groups.iter().map(|group| group.locals().len()).sum()
    }
}

/// Sessions of real programs, each identified by an answer that only it can give.
struct Programs {
    databases: Vec<(Dialogue, String)>,
    shells: Vec<Dialogue>,
}

impl Programs {
    fn open(&mut self, w: &World, ssh: &Ssh) -> Result<()> {
        let at = |port| Role::Proxy.at(Family::V4, port);
        let mut database = Postgres::client(&w.lab.client, at(DATABASE))?;
        let backend = database.ask("select pg_backend_pid();")?;
        self.databases.push((database, backend));
        self.shells.push(ssh.client(&w.lab.client, at(SHELL))?);
        self.go_on()
    }

    /// Sends enough requests for a proxy to see that it only forwards bytes.
    fn go_on(&mut self) -> Result<()> {
        for round in 0..4 {
            for (database, backend) in &mut self.databases {
                database.expect("select pg_backend_pid();", backend)?;
                let length = 20_000 + round;
                let ask = format!("select length(repeat('x', {length}));");
                database.expect(&ask, &length.to_string())?;
            }
            for shell in &mut self.shells {
                let line = format!("round {round}: {}", "y".repeat(2_000));
                shell.expect(&line, &line)?;
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        for (database, _) in self.databases {
            database.finish()?;
        }
        self.shells.into_iter().try_for_each(Dialogue::finish)
    }
}

/// Drains the running HAProxy, replaces it, and waits for the end of the old process. Returns the
/// number of sessions that left it. The programs continue in the meantime: HAProxy may have copied
/// all data of a session that was only active before.
fn reload(w: &mut World, programs: &mut Programs, round: usize) -> Result<u64> {
    let mut old = w.haproxy.take().context("it runs")?;
    let pid = old.id().to_string();
    let words = ["drain", &pid, "--timeout", "120s", "-o", "json"];
    let ran = std::thread::scope(|scope| {
        let drain = scope.spawn(|| w.fleet.try_dyscoctl(&w.lab.proxy, &words));
        while !drain.is_finished() {
            programs.go_on()?;
        }
        drain.join().expect("it does not panic")
    })?;
    ensure!(ran.code == Some(0), "reload {round}: {ran:?}");
    let last = ran.stdout.lines().last().unwrap_or_default();
    let done: Value = serde_json::from_str(last).with_context(|| format!("{ran:?}"))?;
    ensure!(done["left"] == 0, "reload {round}: {done:#}");
    let name = format!("haproxy{round}");
    let new = w.proxy(&name, PROXY_PORT, |c| relays(c).reloading(&pid))?;
    w.haproxy = Some(new);
    wait::until("the old process to end", LIMIT, || {
        (!old.runs()).then_some(())
    })
    .with_context(|| format!("reload {round}: {}", w.state()))?;
    done["removed"].as_u64().context("no number")
}

#[test]
fn ten_reloads_under_a_thousand_sessions() -> Result<()> {
    let mut w = World::with(
        Lab::builder("reload"),
        Family::V4,
        &[Role::Proxy],
        CONFIG,
        relays,
    )?;
    let at = |port| Role::Server.at(Family::V4, port);
    let postgres = Postgres::start(&w.lab.server, at(DATABASE))?;
    let ssh = Ssh::start(&w.lab.server, at(SHELL))?;
    let (mut traffic, mut programs) = (
        Traffic {
            groups: vec![],
            receiving: vec![],
        },
        Programs {
            databases: vec![],
            shells: vec![],
        },
    );
    traffic.open(&w, AT_FIRST)?;
    let mut removed = 0;
    for round in 0..RELOADS {
        traffic.open(&w, EACH_TIME)?;
        programs.open(&w, &ssh)?;
        traffic.goes_on()?;
        removed += reload(&mut w, &mut programs, round)?;
        traffic
            .goes_on()
            .with_context(|| format!("after reload {round}"))?;
        programs
            .go_on()
            .with_context(|| format!("after reload {round}"))?;
    }
    // Each session left its proxy once, and never returned.
    let all = traffic.count() + programs.databases.len() + programs.shells.len();
    ensure!(removed == all as u64, "{removed} of {all} sessions left");
    drop(w.haproxy.take());
    traffic.goes_on().context("without a proxy")?;
    programs.go_on().context("without a proxy")?;
    programs.finish()?;
    for group in &traffic.groups {
        group.stop();
    }
    for group in traffic.groups {
        all_intact(&group.finish()?)?;
    }
    drop((postgres, ssh));
    w.finish()
}
