//! `dyscod` as a service: its notifications to its manager, and its logs for programs.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::{Fleet, built};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Lab, Program, Role, wait};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// The manager is notified that the service is ready once it is, and that it stops once it is asked
/// to.
#[test]
fn its_manager_hears_when_it_is_ready_and_when_it_stops() -> Result<()> {
    let lab = Lab::builder("service").build()?;
    let fleet = Fleet::new(&lab)?;
    let config = fleet.prepare(&lab, Role::Client, "")?;
    let name = lab.client.dir().join("manager");
    let manager = UnixDatagram::bind(&name).context("failed to make the manager's socket")?;
    manager.set_nonblocking(true)?;
    let heard = |what: &str| {
        let mut buffer = [0; 4096];
        let heard = wait::until(what, LIMIT, || manager.recv(&mut buffer).ok())?;
        Ok::<_, anyhow::Error>(String::from_utf8_lossy(&buffer[..heard]).into_owned())
    };
    let program = Program::new(built("dyscod")?).arg("--config").arg(&config);
    let mut daemon = lab.client.spawn(program.env("NOTIFY_SOCKET", &name))?;
    let said = heard("dyscod to be ready")?;
    ensure!(said.lines().any(|line| line == "READY=1"), "{said:?}");
    // Services that depend on it may start at this notification.
    fleet.dyscoctl(&lab.client, &["status"])?;
    ensure!(
        manager.recv(&mut [0; 64]).is_err(),
        "it says more than that"
    );
    daemon.stop()?;
    let said = heard("dyscod to stop")?;
    ensure!(said.lines().any(|line| line == "STOPPING=1"), "{said:?}");
    lab.finish(daemon)
}

/// A JSON object in which each name occurs once, as programs expect it.
struct Object(BTreeMap<String, Value>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Object, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut all = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if all.insert(name.clone(), value).is_some() {
                        return Err(serde::de::Error::custom(format!("{name} stands twice")));
                    }
                }
                Ok(Object(all))
            }
        }
        from.deserialize_map(Names)
    }
}

/// The log is at its most verbose during a removal, a refused removal, and the end of a session.
#[test]
fn each_line_of_a_log_in_json_is_an_object() -> Result<()> {
    let config = format!("{DECLARED}[log]\nformat = \"json\"\nfilter = \"trace\"\n");
    let lab = Lab::builder("json");
    let mut w = World::with(lab, Family::V4, &Role::ALL, &config, |c| c)?;
    let group = w.open(2, &Plan::default())?;
    group.run();
    group.wait_progress(200_000)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    w.fault(Role::Client, "drop:SetUp")?;
    w.remove_these(&ends[..1])?;
    w.daemon(Role::Server)?.stop()?;
    let refused = w.remove(&["--session", &ends[1].name()])?;
    ensure!(refused["summary"]["removed"] == 0, "{refused:#}");
    group.rest()?;
    all_intact(&group.finish()?)?;
    for role in [Role::Client, Role::Proxy] {
        w.daemon(role)?.stop()?;
    }
    for role in Role::ALL {
        let log = w.daemon(role)?.log();
        let mut messages = 0;
        for line in log.lines() {
            let object: Object =
                serde_json::from_str(line).with_context(|| format!("{role:?}: {line}"))?;
            for name in ["timestamp", "level", "target"] {
                let text = object.0.get(name).and_then(Value::as_str);
                ensure!(text.is_some(), "{role:?}: no {name} in {line}");
            }
            messages += usize::from(object.0.contains_key("message"));
        }
        let said = |word: &str| log.contains(word);
        ensure!(said("\"level\":\"TRACE\"") && said("\"level\":\"INFO\""));
        ensure!(said("established sessions go on"), "{role:?}: {log}");
        ensure!(messages > 10, "{role:?}: {messages} messages");
    }
    w.finish()
}
