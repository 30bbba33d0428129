//! Services that come into live sessions of unmodified programs, and leave them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::stream::{Close, Group, Plan, Server, Side, all_intact};
use dysco_netns::{Family, Lab, Role};
use serde_json::{Value, json};

const PORT: u16 = 9000;

/// A lab with `dyscod` on the client's host alone: the other end need not know.
struct OneEnd {
    lab: Lab,
    fleet: Fleet,
    daemon: Daemon,
    server: Server,
    family: Family,
}

impl OneEnd {
    fn new(name: &str, family: Family) -> Result<OneEnd> {
        let lab = Lab::builder(name).build()?;
        let fleet = Fleet::new(&lab)?;
        let daemon = fleet.start(&lab, Role::Client, "")?;
        let server = Server::start(&lab.server, Role::Server.at(family, PORT))?;
        Ok(OneEnd {
            lab,
            fleet,
            daemon,
            server,
            family,
        })
    }

    fn open(&self, count: usize, plan: &Plan) -> Result<Group> {
        let to = Role::Server.at(self.family, PORT);
        let group = Group::open(&self.lab.client, &self.server, to, count, plan)?;
        group.run();
        group.wait_progress(100_000)?;
        Ok(group)
    }

    /// Runs `dyscoctl service`. Returns its result or its error, with the exit code as `exit`.
    fn service(&self, words: &[&str]) -> Result<Value> {
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
    fn change(&self, words: &[&str], outcome: &str, count: usize) -> Result<Value> {
        let filter = ["--filter", "port=9000", "--wait"];
        let done = self.service(&[words, &filter].concat())?;
        let all = done["sessions"].as_array().context("no sessions")?;
        let fit = all.iter().filter(|one| one["outcome"] == outcome).count();
        ensure!(fit == count && all.len() == count, "{done:#}");
        Ok(done)
    }

    fn finish(self) -> Result<()> {
        self.lab.finish((vec![self.daemon], self.server))
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

#[test]
fn a_service_comes_into_a_busy_session_and_leaves_it() -> Result<()> {
    comes_and_leaves("svc4", Family::V4, &Plan::default(), 1)
}

#[test]
fn services_come_into_ipv6_sessions_and_leave_them() -> Result<()> {
    comes_and_leaves("svc6", Family::V6, &Plan::gentle(), 4)
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
