//! `dyscod` as another user than root, with the capabilities of its unit alone.

use std::path::Path;

use crate::world::fates::SETTLED;
use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Lab, Program, Role, wait};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// Modes, and the hosts that run `dyscod` for them.
const MODES: [(&str, &[Role]); 2] = [("bypass", &Role::ALL), ("local", &[Role::Proxy])];
/// Capabilities of the unit (`packaging/dyscod.service`).
const CAPABILITIES: [&str; 8] = [
    "bpf",
    "perfmon",
    "net_admin",
    "net_raw",
    "sys_ptrace",
    "sys_nice",
    "dac_override",
    "chown",
];

/// Returns the program as it runs for another user, with these capabilities.
fn as_user(program: Program, capabilities: &[&str]) -> Program {
    let list: String = capabilities.iter().map(|c| format!(",+{c}")).collect();
    let words = [
        "--reuid=1234".to_owned(),
        "--regid=1234".into(),
        "--clear-groups".into(),
        "--no-new-privs".into(),
        // The change of the user has removed the signal.
        "--pdeathsig=KILL".into(),
        format!("--inh-caps=-all{list}"),
        format!("--ambient-caps=-all{list}"),
        format!("--bounding-set=-all{list}"),
    ];
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    program.behind(Path::new("setpriv"), &words)
}

fn world(mode: &'static str, roles: &[Role], capabilities: &[&str]) -> Result<World> {
    let mut w = World::with(Lab::builder("user"), Family::V4, &[], "", |c| c)?;
    w.mode = mode;
    for role in roles {
        let file = w.fleet.prepare(&w.lab, *role, DECLARED)?;
        let host = w.lab.host(*role);
        let started = w
            .fleet
            .launch_by(host, &file, |program| as_user(program, capabilities));
        let daemon = started?.ready()?;
        w.daemons.push((*role, daemon));
    }
    Ok(w)
}

fn leaves(mut w: World) -> Result<()> {
    let group = w.open(3, &Plan::gentle())?;
    group.run();
    group.wait_progress(MIB)?;
    let mut said = Value::Null;
    wait::until("the proxy to be removable", SETTLED, || {
        said = w.remove(&["--all", "--dry-run"]).ok()?;
        (said["summary"]["removable"] == 3).then_some(())
    })
    .with_context(|| format!("{said:#}\n{}", w.state()))?;
    // Busy processors may delay the last of what the proxy holds.
    let done = w.remove(&["--all", "--timeout", "120s"])?;
    ensure!(done["summary"]["removed"] == 3, "{done:#}\n{}", w.state());
    group.wait_progress(MIB)?;
    drop(w.haproxy.take());
    group.wait_progress(MIB).with_context(|| w.state())?;
    w.no_resets()?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn the_capabilities_of_the_unit_suffice() -> Result<()> {
    for (mode, roles) in MODES {
        let w = world(mode, roles, &CAPABILITIES)?;
        let id = w.daemons[0].1.process.id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        ensure!(status.contains("Uid:\t1234\t1234"), "{status}");
        leaves(w).context(mode)?;
    }
    Ok(())
}

#[test]
fn a_path_on_which_a_host_cannot_send_is_refused_for_its_capability() -> Result<()> {
    let without = CAPABILITIES.into_iter().filter(|name| *name != "net_raw");
    let w = world("bypass", &Role::ALL, &without.collect::<Vec<_>>())?;
    let log = std::fs::read_to_string(w.lab.client.dir().join("dyscod.log"))?;
    ensure!(log.contains("dyscod lacks CAP_NET_RAW: "), "{log}");
    let group = w.open(2, &Plan::gentle())?;
    group.run();
    group.wait_progress(MIB)?;
    let done = w.remove(&["--all", "--timeout", "60s"])?;
    for removal in done["removals"].as_array().context("no removals")? {
        let reason = removal["reason"].to_string();
        let named = ["cannot open a raw socket", "give dyscod CAP_NET_RAW"];
        let is_named = named.iter().all(|part| reason.contains(part));
        ensure!(is_named, "{done:#}\n{}", w.state());
    }
    group.wait_progress(MIB).with_context(|| w.state())?;
    w.no_resets()?;
    all_intact(&group.finish()?)?;
    w.finish()
}
