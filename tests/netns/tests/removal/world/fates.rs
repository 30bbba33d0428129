//! Sessions as all three hosts list them.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::Group;
use dysco_netns::{Role, wait};
use serde_json::Value;

use super::World;

/// Time limit of a change during which a daemon was lost.
pub(crate) const SETTLED: Duration = Duration::from_secs(90);

/// Addresses by which hosts know one session.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    /// Address of the client's end.
    pub client: String,
    /// Address on which the proxy accepted the session.
    pub listen: String,
    /// Address of the proxy's end towards the server.
    pub proxy: String,
    /// Address of the server's end.
    pub server: String,
}

impl Ends {
    /// Name of the session on the proxy's host, for `dyscoctl`.
    pub(crate) fn name(&self) -> String {
        format!("{}>{}", self.listen, self.client)
    }
}

/// Result of a session, if all hosts agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Removed,
    Tracked,
}

type States = HashMap<(String, String), String>;

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl World {
    pub(crate) fn sessions(&self, role: Role) -> Result<Vec<Value>> {
        let all = self.fleet.json(self.lab.host(role), &["sessions"])?;
        Ok(all.as_array().cloned().unwrap_or_default())
    }

    /// Returns the ends of a group's sessions, in its order, once the proxy's daemon knows their
    /// pairs.
    pub(crate) fn ends(&self, group: &Group) -> Result<Vec<Ends>> {
        let mut why = None;
        let found = wait::until("the proxy's pairs", SETTLED, || {
            let of = || -> Result<Vec<Ends>> {
                let all = self.sessions(Role::Proxy)?;
                let locals = group.locals();
                locals
                    .iter()
                    .map(|l| ends_of(&all, &l.to_string()))
                    .collect()
            };
            of().map_err(|e| why = Some(e)).ok()
        });
        found.with_context(|| format!("{why:?}"))
    }

    /// Waits until the proxy's daemon would remove all of these sessions.
    pub(crate) fn wait_removable(&self, ends: &[Ends]) -> Result<()> {
        let names: Vec<_> = ends.iter().map(Ends::name).collect();
        let mut said = Value::Null;
        wait::until("the proxy to be removable", SETTLED, || {
            let mut words = vec!["--dry-run"];
            words.extend(names.iter().flat_map(|n| ["--session", n]));
            said = self.remove(&words).ok()?;
            (said["summary"]["removable"] == ends.len()).then_some(())
        })
        .with_context(|| format!("{said:#}"))
    }

    /// Begins the removal of one session and does not wait for it.
    pub(crate) fn begin(&self, ends: &Ends) -> Result<()> {
        let name = ends.name();
        let mode = ["--mode", self.mode];
        let words = [&["remove-middlebox", "self", "--session", &name], &mode[..]].concat();
        // A daemon that dies at once may not have answered.
        self.fleet.try_dyscoctl(&self.lab.proxy, &words).map(drop)
    }

    fn states(&self, role: Role) -> Result<States> {
        let of = |s: &Value| ((text(&s["local"]), text(&s["remote"])), text(&s["state"]));
        Ok(self.sessions(role)?.iter().map(of).collect())
    }

    /// Waits until no host has a change in progress. Returns the results of the sessions, or an
    /// error if the hosts disagree.
    pub(crate) fn settle(&self, ends: &[Ends]) -> Result<Vec<Fate>> {
        let mut seen = String::new();
        wait::until("all hosts to agree", SETTLED, || {
            let fates = self.fates(ends).map_err(|e| seen = format!("{e:#}")).ok()?;
            let quiet = Role::ALL.iter().all(|role| {
                let counters = self.counters(*role);
                counters.is_ok_and(|c| c["changes_under_way"] == 0)
            });
            quiet.then_some(fates)
        })
        .with_context(|| format!("{seen}\n{}", self.state()))
    }

    /// Returns the present results of the sessions.
    pub(crate) fn fates(&self, ends: &[Ends]) -> Result<Vec<Fate>> {
        let client = self.states(Role::Client)?;
        let proxy = self.states(Role::Proxy)?;
        let server = self.states(Role::Server)?;
        let get = |states: &States, a: &String, b: &String| {
            let found = states.get(&(a.clone(), b.clone()));
            found.map_or("gone", |s| s).to_owned()
        };
        let fate = |e: &Ends| {
            let all = [
                get(&client, &e.client, &e.listen),
                get(&proxy, &e.listen, &e.client),
                get(&proxy, &e.proxy, &e.server),
                get(&server, &e.server, &e.proxy),
            ];
            let left = |s: &str| s == "tombstone" || s == "gone";
            if all.iter().all(|s| s == "tracked") {
                return Ok(Fate::Tracked);
            }
            let removed = all[0] == "new-path" && all[3] == "new-path";
            ensure!(
                removed && left(&all[1]) && left(&all[2]),
                "{e:?} is in the midst of it: {all:?}"
            );
            Ok(Fate::Removed)
        };
        ends.iter().map(fate).collect()
    }
}

fn ends_of(all: &[Value], client: &str) -> Result<Ends> {
    let a = all.iter().find(|s| s["remote"] == client);
    let a = a.with_context(|| format!("{client} is not known"))?;
    let b = all.iter().find(|s| s["id"] == a["pair"]);
    let b = b.with_context(|| format!("{client} has no pair"))?;
    Ok(Ends {
        client: client.to_owned(),
        listen: text(&a["local"]),
        proxy: text(&b["local"]),
        server: text(&b["remote"]),
    })
}
