//! Services that come into live sessions of unmodified programs, and leave them.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::{Daemon, Fleet, PRELOADED};
use dysco_netns::stream::{Amount, Close, Group, Plan, Reading, Server, Side, all_intact};
use dysco_netns::{Family, Host, Lab, Role, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

pub(crate) const PORT: u16 = 9000;

/// Configuration of a host with a policy of its own.
const OWN_POLICY: &str = "[chain]\npolicy = \"/run/policy.toml\"\n";

/// A lab with `dyscod` on the client's host alone: the other end need not know.
pub(crate) struct OneEnd {
    pub lab: Lab,
    pub fleet: Fleet,
    pub daemon: Daemon,
    server: Server,
    family: Family,
}

impl OneEnd {
    pub(crate) fn new(name: &str, family: Family) -> Result<OneEnd> {
        OneEnd::over(Lab::builder(name).build()?, family)
    }

    pub(crate) fn over(lab: Lab, family: Family) -> Result<OneEnd> {
        OneEnd::with(lab, family, "")
    }

    /// The same, with a configuration of the client's `dyscod` beyond the usual one.
    pub(crate) fn with(lab: Lab, family: Family, extra: &str) -> Result<OneEnd> {
        let fleet = Fleet::new(&lab)?;
        OneEnd::of(fleet, lab, family, extra)
    }

    /// The same, with daemons that fail on purpose.
    pub(crate) fn failing(lab: Lab, family: Family) -> Result<OneEnd> {
        let fleet = Fleet::new(&lab)?.with_faults();
        OneEnd::of(fleet, lab, family, "")
    }

    fn of(fleet: Fleet, lab: Lab, family: Family, extra: &str) -> Result<OneEnd> {
        let daemon = fleet.start(&lab, Role::Client, &format!("{OWN_POLICY}{extra}"))?;
        let server = Server::start(&lab.server, Role::Server.at(family, PORT))?;
        Ok(OneEnd {
            lab,
            fleet,
            daemon,
            server,
            family,
        })
    }

    /// The same, with sessions that are open before `dyscod` starts.
    pub(crate) fn late(
        lab: Lab,
        family: Family,
        count: usize,
        plan: &Plan,
    ) -> Result<(OneEnd, Group)> {
        let at = Role::Server.at(family, PORT);
        let server = Server::start(&lab.server, at)?;
        let group = Group::open(&lab.client, &server, at, count, plan)?;
        group.run();
        group.wait_progress(100_000)?;
        let fleet = Fleet::new(&lab)?;
        let daemon = fleet.start(&lab, Role::Client, OWN_POLICY)?;
        let here = OneEnd {
            lab,
            fleet,
            daemon,
            server,
            family,
        };
        Ok((here, group))
    }

    pub(crate) fn open(&self, count: usize, plan: &Plan) -> Result<Group> {
        let group = self.begin(count, plan)?;
        group.wait_progress(100_000)?;
        Ok(group)
    }

    /// Opens sessions, and does not wait for their first bytes.
    pub(crate) fn begin(&self, count: usize, plan: &Plan) -> Result<Group> {
        let to = Role::Server.at(self.family, PORT);
        let group = Group::open(&self.lab.client, &self.server, to, count, plan)?;
        group.run();
        Ok(group)
    }

    /// Runs `dyscoctl service`. Returns its result or its error, with the exit code as `exit`.
    pub(crate) fn service(&self, words: &[&str]) -> Result<Value> {
        let words = [&["service"], words, &["-o", "json"]].concat();
        let ran = self.fleet.try_dyscoctl(&self.lab.client, &words)?;
        let text = if ran.stdout.is_empty() {
            &ran.stderr
        } else {
            &ran.stdout
        };
        let mut done: Value =
            serde_json::from_str(text).with_context(|| format!("no JSON: {ran:?}"))?;
        if done.is_object() {
            done["exit"] = json!(ran.code);
        }
        Ok(done)
    }

    /// Changes all sessions, and waits for the end of the change.
    pub(crate) fn change(&self, words: &[&str], outcome: &str, count: usize) -> Result<Value> {
        let filter = ["--filter", "port=9000", "--wait"];
        let done = self.service(&[words, &filter].concat())?;
        let all = done["sessions"].as_array().context("no sessions")?;
        let fit = all.iter().filter(|one| one["outcome"] == outcome).count();
        ensure!(fit == count && all.len() == count, "{done:#}");
        Ok(done)
    }

    /// Waits until no session has services.
    pub(crate) fn wait_for_none(&self) -> Result<()> {
        let gone = || {
            let listed = self.service(&["list"]).ok()?;
            (listed == json!([])).then_some(())
        };
        wait::until("an empty list", Duration::from_secs(30), gone)
    }

    /// Kills `dyscod`, and starts the next one after `meanwhile`.
    pub(crate) fn next_daemon<T>(
        &mut self,
        meanwhile: impl FnOnce(&Lab) -> Result<T>,
    ) -> Result<T> {
        self.daemon.process.kill()?;
        let done = meanwhile(&self.lab)?;
        let file = self.lab.client.dir().join("dyscod.toml");
        self.daemon = self.fleet.restart(&self.lab, Role::Client, &file)?;
        Ok(done)
    }

    /// Returns true if the router has captured this word on the server's side.
    pub(crate) fn has_captured(&self, word: &str) -> bool {
        let file = self.lab.router.dir().join("server.pcap0");
        let seen = fs::read(&file).unwrap_or_default();
        let mut parts = seen.windows(word.len());
        parts.any(|part| part == word.as_bytes())
    }

    /// Number of packets that went to handlers so far.
    fn to_handlers(&self) -> Result<u64> {
        let status = self.fleet.json(&self.lab.client, &["status"])?;
        let counted = status["counters"]["packets_to_handlers"].as_u64();
        counted.context("no such counter")
    }

    /// Ends the lab. A handler outlives its daemon as long as it has sessions, and those that ended
    /// outside it are collected only minutes later.
    pub(crate) fn finish(self) -> Result<()> {
        let listed = self.service(&["list"])?;
        let handler = listed[0]["handler"]
            .as_i64()
            .map(|pid| Pid::from_raw(pid as i32));
        self.lab.finish((vec![self.daemon], self.server))?;
        if let Some(handler) = handler {
            // An error means that it has ended.
            let _ = kill(handler, Signal::SIGKILL);
        }
        Ok(())
    }
}

fn comes_and_leaves(name: &str, family: Family, plan: &Plan, count: usize) -> Result<()> {
    let here = OneEnd::new(name, family)?;
    let group = here.open(count, plan)?;
    here.change(&["put", "+count"], "put", count)?;
    group.wait_progress(1_000_000)?;
    let listed = here.service(&["list"])?;
    let rows = listed.as_array().context("no list")?;
    ensure!(
        rows.len() == count && rows.iter().all(|row| row["state"] == "in"),
        "{listed:#}"
    );
    here.change(&["take"], "taken", count)?;
    group.wait_progress(1_000_000)?;
    let listed = here.service(&["list"])?;
    ensure!(listed == json!([]), "{listed:#}");
    all_intact(&group.finish()?)?;
    here.finish()
}

/// A service costs something only while it is in the session.
#[test]
fn nothing_passes_the_handler_before_and_after() -> Result<()> {
    let here = OneEnd::new("svccost", Family::V4)?;
    let group = here.open(1, &Plan::gentle())?;
    here.change(&["put", "+null"], "put", 1)?;
    let before = here.to_handlers()?;
    group.wait_progress(1_000_000)?;
    ensure!(
        here.to_handlers()? > before + 100,
        "nothing passes the handler"
    );
    here.change(&["take"], "taken", 1)?;
    let after = here.to_handlers()?;
    group.wait_progress(1_000_000)?;
    ensure!(
        here.to_handlers()? == after,
        "packets still pass the handler"
    );
    let shown = here.fleet.json(&here.lab.client, &["sessions"])?;
    let all = shown.as_array().context("no list")?;
    let own = all
        .iter()
        .find(|one| one["remote"].as_str().is_some_and(|r| r.ends_with(":9000")));
    ensure!(
        own.is_some_and(|own| own["state"] == "tracked"),
        "{shown:#}"
    );
    all_intact(&group.finish()?)?;
    here.finish()
}

#[test]
fn a_lossy_link_costs_no_byte() -> Result<()> {
    let here = OneEnd::over(Lab::builder("svcloss").loss(1.0).build()?, Family::V4)?;
    let group = here.open(8, &Plan::gentle())?;
    for _ in 0..3 {
        here.change(&["put", "+count"], "put", 8)?;
        group.wait_more(50_000, Duration::from_secs(60))?;
        here.change(&["take"], "taken", 8)?;
        group.wait_more(50_000, Duration::from_secs(60))?;
    }
    all_intact(&group.finish()?)?;
    here.finish()
}

#[test]
fn a_slow_reader_keeps_all_bytes() -> Result<()> {
    let here = OneEnd::new("svcslow", Family::V4)?;
    let group = here.open(2, &Plan::default())?;
    group.set_reading(Side::Server, Reading::Slow(2_000_000));
    here.change(&["put", "+count"], "put", 2)?;
    group.wait_more(500_000, Duration::from_secs(60))?;
    here.change(&["take"], "taken", 2)?;
    group.set_reading(Side::Server, Reading::Fast);
    all_intact(&group.finish()?)?;
    here.finish()
}

#[test]
fn sessions_end_through_their_services() -> Result<()> {
    let here = OneEnd::new("svcends", Family::V4)?;
    let ends = [
        Close::First(Side::Client),
        Close::First(Side::Server),
        Close::Together,
        Close::Reset(Side::Client),
        Close::Reset(Side::Server),
    ];
    for close in ends {
        let group = here.open(2, &Plan::paced(8_000_000, close))?;
        here.change(&["put", "+count"], "put", 2)?;
        group.wait_more(200_000, Duration::from_secs(30))?;
        all_intact(&group.finish()?).with_context(|| format!("{close:?}"))?;
        here.wait_for_none()?;
    }
    here.finish()
}

/// The end of a short session may fall into any step of a change.
#[test]
fn sessions_that_end_meanwhile_lose_nothing() -> Result<()> {
    let here = OneEnd::new("svcshort", Family::V4)?;
    for bytes in [200_000, 400_000, 800_000, 1_600_000] {
        let plan = Plan {
            up: Amount::Bytes(bytes),
            down: Amount::Bytes(bytes),
            ..Plan::paced(20_000_000, Close::Together)
        };
        let group = here.begin(6, &plan)?;
        let words = ["put", "+count", "--filter", "port=9000", "--wait=10s"];
        here.service(&words)?;
        here.service(&["take", "--filter", "port=9000", "--wait=10s"])?;
        all_intact(&group.finish()?).with_context(|| format!("{bytes} bytes"))?;
    }
    here.finish()
}

#[test]
fn the_next_daemon_takes_out_what_the_last_one_put_in() -> Result<()> {
    let mut here = OneEnd::new("svcdies", Family::V4)?;
    let group = here.open(3, &Plan::gentle())?;
    here.change(&["put", "+count"], "put", 3)?;
    here.next_daemon(|_| group.wait_more(300_000, Duration::from_secs(30)))?;
    let named = || {
        let listed = here.service(&["list"]).ok()?;
        let rows = listed.as_array()?;
        let fit = |row: &&Value| row["state"] == "in" && row["services"] == json!(["count"]);
        (rows.iter().filter(fit).count() == 3).then_some(())
    };
    wait::until(
        "the services of the last daemon",
        Duration::from_secs(30),
        named,
    )?;
    here.change(&["take"], "taken", 3)?;
    group.wait_more(300_000, Duration::from_secs(30))?;
    here.change(&["put", "+null"], "put", 3)?;
    group.wait_more(300_000, Duration::from_secs(30))?;
    all_intact(&group.finish()?)?;
    here.finish()
}

#[test]
fn three_hundred_sessions_change_at_once() -> Result<()> {
    let here = OneEnd::new("svcmany", Family::V4)?;
    let plan = Plan::paced(300_000, Close::First(Side::Client));
    let group = here.open(300, &plan)?;
    here.change(&["put", "+count"], "put", 300)?;
    group.wait_more(30_000, Duration::from_secs(60))?;
    here.change(&["take"], "taken", 300)?;
    all_intact(&group.finish()?)?;
    here.finish()
}

#[test]
fn what_cannot_have_services_says_why() -> Result<()> {
    let here = OneEnd::new("svcwhy", Family::V4)?;
    let group = here.open(1, &Plan::gentle())?;
    let unknown = here.service(&["put", "+nosuch", "--all"])?;
    ensure!(
        unknown["exit"] == 2 && unknown["error"].to_string().contains("count"),
        "{unknown:#}"
    );
    let dry = here.service(&["put", "+count", "--filter", "port=9000", "--dry-run"])?;
    ensure!(
        dry["exit"] == 0 && dry["sessions"][0]["outcome"] == "possible",
        "{dry:#}"
    );
    here.change(&["put", "+count"], "put", 1)?;
    here.change(&["put", "+count"], "unchanged", 1)?;
    let other = here.service(&["put", "+crypt", "--filter", "port=9000"])?;
    ensure!(
        other["exit"] == 5 && other.to_string().contains("its services are at one end"),
        "{other:#}"
    );
    here.change(&["take"], "taken", 1)?;
    all_intact(&group.finish()?)?;
    here.finish()
}

/// Returns the number of programs for sessions with handlers that the client's data plane has.
fn loaded(here: &OneEnd) -> Option<usize> {
    let dump = "bpftool -j map dump pinned /sys/fs/bpf/dysco/*/DETOUR_PROGRAMS";
    let text = here.lab.client.output("sh", &["-c", dump]).ok()?;
    let all: Value = serde_json::from_str(&text).ok()?;
    let there = |one: &&Value| one["value"].get("error").is_none();
    Some(all.as_array()?.iter().filter(there).count())
}

/// The programs are loaded at the start if `preload` is set, and otherwise by the first change with
/// services.
#[test]
fn the_programs_for_handlers_are_loaded_at_the_start() -> Result<()> {
    let later = OneEnd::new("svclate", Family::V4)?;
    let here = OneEnd::with(Lab::builder("svcpre").build()?, Family::V4, PRELOADED)?;
    wait::until("the programs", Duration::from_secs(60), || {
        (loaded(&here)? == 2).then_some(())
    })?;
    ensure!(loaded(&later) == Some(0), "{:?}", loaded(&later));
    let group = later.open(1, &Plan::gentle())?;
    later.change(&["put", "+null"], "put", 1)?;
    ensure!(loaded(&later) == Some(2), "{:?}", loaded(&later));
    later.change(&["take"], "taken", 1)?;
    all_intact(&group.finish()?)?;
    later.finish()?;
    here.finish()
}

#[test]
fn a_service_comes_into_a_busy_session_and_leaves_it() -> Result<()> {
    comes_and_leaves("svc4", Family::V4, &Plan::default(), 1)
}

#[test]
fn services_come_into_ipv6_sessions_and_leave_them() -> Result<()> {
    comes_and_leaves("svc6", Family::V6, &Plan::gentle(), 4)
}

/// Nothing was sent since the handshake. The clocks of a handler's sockets follow those of the
/// SYN-ACKs, which begin anywhere: an end would drop half of all other ones.
#[test]
fn services_come_into_sessions_that_are_silent() -> Result<()> {
    const COUNT: usize = 12;
    let here = OneEnd::new("svcsilent", Family::V4)?;
    let connect = |listens: &Host, opens: &Host, at: SocketAddr| -> Result<Vec<_>> {
        let listener = listens.run(move || TcpListener::bind(at))?;
        let pair = |_| -> Result<_> {
            let client = opens.run(move || TcpStream::connect(at))?;
            Ok((client, listener.accept()?.0))
        };
        (0..COUNT).map(pair).collect()
    };
    let (client, server) = (&here.lab.client, &here.lab.server);
    let opened = connect(server, client, Role::Server.at(Family::V4, 9001))?;
    let accepted = connect(client, server, Role::Client.at(Family::V4, 9001))?;
    let put = here.service(&["put", "+null", "--filter", "port=9001", "--wait"])?;
    ensure!(put["summary"]["put"] == 2 * COUNT, "{put:#}");
    for (client, server) in opened.iter().chain(&accepted) {
        for (mut from, mut to) in [(server, client), (client, server)] {
            to.set_read_timeout(Some(Duration::from_secs(10)))?;
            from.write_all(b"hello")?;
            let mut got = [0; 5];
            to.read_exact(&mut got)
                .with_context(|| format!("{from:?} is not heard"))?;
        }
    }
    drop((opened, accepted));
    here.finish()
}

#[test]
fn services_come_and_leave_ten_times() -> Result<()> {
    let here = OneEnd::new("svcten", Family::V4)?;
    let group = here.open(3, &Plan::paced(20_000_000, Close::First(Side::Server)))?;
    for _ in 0..10 {
        here.change(&["put", "+count", "+null"], "put", 3)?;
        group.wait_more(100_000, Duration::from_secs(30))?;
        here.change(&["take"], "taken", 3)?;
        group.wait_more(100_000, Duration::from_secs(30))?;
    }
    all_intact(&group.finish()?)?;
    here.finish()
}
