//! Policy and hosts of a fleet in etcd: the real one, on a host of its own.

mod fifty;
mod policy;
mod strangers;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::{Host, Star, wait};
use serde_json::Value;

use dysco_netns::etcd::Etcd;

const LIMIT: Duration = Duration::from_secs(30);
/// Index of etcd's host in a star.
const ETCD: usize = 1;

/// A star with an authority, and etcd on the server's host.
struct World {
    star: Star,
    fleet: Fleet,
}

impl World {
    fn build(name: &str, middleboxes: usize) -> Result<World> {
        let star = Star::build(name, middleboxes)?;
        let fleet = Fleet::new_in(star.client().dir().join("authority"), star.client())?;
        Ok(World { star, fleet })
    }

    fn etcd(&self) -> Result<Etcd<'_>> {
        let host = &self.star.hosts()[ETCD];
        Etcd::start(&self.fleet, host, self.star.address(ETCD))
    }

    fn host(&self, at: usize) -> &Host {
        &self.star.hosts()[at]
    }

    /// Writes the configuration of a host by its own name, with `more` in the table of etcd.
    fn prepare(&self, at: usize, url: &str, more: &str) -> Result<PathBuf> {
        let host = self.host(at);
        let policy = host.dir().join("policy.toml");
        let extra = format!(
            "[data_plane]\nmax_sessions = 1024\n[chain]\npolicy = {policy:?}\n\
             [fleet]\netcd = [{url:?}]\n{more}\n"
        );
        let file = self
            .fleet
            .prepare_host(host, &[self.star.address(at)], &["eth0"], &extra)?;
        let named = format!("[host]\nname = {:?}\n", host.name());
        let text = fs::read_to_string(&file)?.replacen("[host]\n", &named, 1);
        fs::write(&file, text)?;
        Ok(file)
    }

    fn start(&self, at: usize, url: &str, more: &str) -> Result<Daemon> {
        let file = self.prepare(at, url, more)?;
        self.fleet.start_by(self.host(at), &file)
    }

    /// Returns the state of etcd, as a host reports it.
    fn state(&self, at: usize) -> Result<Value> {
        Ok(self.fleet.json(self.host(at), &["status"])?["fleet"].clone())
    }

    /// Waits until a host reports a state of etcd that fits.
    fn wait(&self, at: usize, what: &str, fits: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut last = Value::Null;
        let found = wait::until(what, LIMIT, || {
            last = self.state(at).unwrap_or_default();
            fits(&last).then(|| last.clone())
        });
        found.with_context(|| format!("host {at} reports {last:#}"))
    }

    /// Returns the names of the rules in force on a host, with their chains.
    fn rules(&self, at: usize) -> Result<Vec<(String, Value)>> {
        let report = self.fleet.json(self.host(at), &["policy", "list"])?;
        let rules = report["rules"].as_array().cloned().unwrap_or_default();
        let rule = |rule: &Value| {
            let name = rule["name"].as_str().unwrap_or_default().to_owned();
            (name, rule["chain"].clone())
        };
        Ok(rules.iter().map(rule).collect())
    }

    /// Checks that a host has one rule in force, of this name.
    fn has(&self, at: usize, name: &str) -> Result<()> {
        let rules = self.rules(at)?;
        let names: Vec<_> = rules.iter().map(|(name, _)| name.as_str()).collect();
        ensure!(names == [name], "host {at} has {rules:?}, not {name}");
        Ok(())
    }

    fn wait_rule(&self, at: usize, name: &str) -> Result<()> {
        wait::until(&format!("the rule {name} on host {at}"), LIMIT, || {
            self.has(at, name).ok()
        })
    }

    /// Publishes a policy of one rule by a command on the client's host. Returns its exit code and
    /// its output.
    fn publish(&self, text: &str) -> Result<(Option<i32>, String)> {
        let file = self.host(0).dir().join("new.toml");
        fs::write(&file, text)?;
        let words = ["policy", "publish", path(&file), "-o", "json"];
        let ran = self.fleet.try_dyscoctl(self.host(0), &words)?;
        Ok((ran.code, ran.stdout + &ran.stderr))
    }
}

fn path(file: &Path) -> &str {
    file.to_str().unwrap_or_default()
}

/// Returns a policy of one rule by this name, through a host.
fn rule(name: &str, host: &str) -> String {
    format!("[[rule]]\nname = \"{name}\"\nports = [9]\nchain = [\"{host}\"]\n")
}

fn hosts(state: &Value) -> Vec<String> {
    let hosts = state["hosts"].as_array().cloned().unwrap_or_default();
    let name = |host: &Value| host["name"].as_str().unwrap_or_default().to_owned();
    hosts.iter().map(name).collect()
}
