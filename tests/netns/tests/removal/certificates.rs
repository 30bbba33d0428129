//! Certificates that are renewed and revoked while sessions change.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Lab, Role, wait};
use serde_json::{Value, json};

use crate::world::World;

const LIMIT: Duration = Duration::from_secs(30);

/// Replaces a host's certificate and key, and makes the daemon load them.
fn renew(w: &World, role: Role) -> Result<()> {
    let host = w.lab.host(role);
    let (next, keys) = (host.dir().join("next"), host.dir().join("pki"));
    let authority = w.lab.dir().join("pki").display().to_string();
    let out = next.display().to_string();
    let [v4, v6] = [Family::V4, Family::V6].map(|family| role.address(family).to_string());
    let mut words = vec!["pki", "issue", "--dir", &authority, "--name", "next"];
    words.extend(["--out", &out, "--address", &v4, "--address", &v6]);
    w.fleet.dyscoctl(host, &words)?;
    fs::rename(keys.join("host.crt"), keys.join("before.crt"))?;
    for name in ["host.crt", "host.key"] {
        fs::rename(next.join(name), keys.join(name))?;
    }
    reload(w, role, "certificate")
}

fn reload(w: &World, role: Role, file: &str) -> Result<()> {
    let report = w.fleet.json(w.lab.host(role), &["reload"])?;
    ensure!(report["files"] == json!([file]), "{report:#}");
    ensure!(report["changed"] == json!([]), "{report:#}");
    Ok(())
}

#[test]
fn certificates_are_renewed_under_live_sessions_and_one_is_revoked() -> Result<()> {
    let w = World::new(Lab::builder("certificates"), Family::V4)?;
    let plan = Plan {
        rate: Some(1_000_000),
        ..Plan::default()
    };
    let group = w.open(2, &plan)?;
    group.run();
    group.wait_progress(100_000)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    w.remove_these(&ends[..1])?;
    for role in Role::ALL {
        renew(&w, role)?;
    }
    w.remove_these(&ends[1..])?;

    // The two other hosts receive the revocation of the server's host, and no other notice.
    let authority = w.lab.dir().join("pki");
    let keys = w.lab.server.dir().join("pki");
    // The host's connections are older than its certificate.
    let [dir, cert, before] = [
        authority.clone(),
        keys.join("host.crt"),
        keys.join("before.crt"),
    ]
    .map(|path| path.display().to_string());
    let words = ["pki", "revoke", "--dir", &dir, "--cert", &cert, &before];
    w.fleet.dyscoctl(&w.lab.router, &words)?;
    for role in [Role::Client, Role::Proxy] {
        let to = w.lab.host(role).dir().join("pki/revoked.crl");
        fs::copy(authority.join("revoked.crl"), to)?;
        reload(&w, role, "revoked")?;
    }
    let server = Role::Server.address(Family::V4).to_string();
    let log = |role: Role| fs::read_to_string(w.lab.host(role).dir().join("dyscod.log"));
    for role in [Role::Client, Role::Proxy] {
        wait::until("the server's host to be cut off", LIMIT, || {
            let status = w.fleet.json(w.lab.host(role), &["status"]).ok()?;
            let peers = status["peers"].as_array()?;
            let up = peers
                .iter()
                .any(|p| p["address"] == server && p["up"] == true);
            (!up).then_some(())
        })?;
    }
    wait::until("both ends to say why", LIMIT, || {
        let told = |role| Some(log(role).ok()?.contains("its certificate is revoked"));
        (told(Role::Proxy)? && told(Role::Server)?).then_some(())
    })?;
    let later = w.open(1, &plan)?;
    later.run();
    later.wait_progress(100_000)?;
    wait::until("a refusal that names the host", LIMIT, || {
        let done = w.remove_all().ok()?;
        let why = done["removals"][0]["reason"].to_string();
        (done["summary"]["refused"] == 1 && why.contains("no dyscod answers at 10.0.3.1"))
            .then_some(())
    })?;
    for group in [group, later] {
        group.wait_progress(200_000)?;
        all_intact(&group.finish()?)?;
    }
    w.finish()
}

/// Returns the names of the keys that a host accepts SYNs with.
fn keys(w: &World, role: Role) -> Result<BTreeSet<String>> {
    let dump = "bpftool -j map dump pinned /sys/fs/bpf/dysco/*/KEYS";
    let text = w.lab.host(role).output("sh", &["-c", dump])?;
    let all: Value = serde_json::from_str(&text)?;
    let all = all.as_array().context("no list of entries")?;
    Ok(all.iter().map(|entry| entry["key"].to_string()).collect())
}

#[test]
fn keys_of_before_are_not_accepted_if_a_list_came_while_dyscod_was_stopped() -> Result<()> {
    let mut w = World::new(Lab::builder("certstop"), Family::V4)?;
    let group = w.open(1, &Plan::gentle())?;
    group.run();
    group.wait_progress(100_000)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    w.remove_these(&ends)?;
    let before = keys(&w, Role::Proxy)?;
    ensure!(!before.is_empty(), "no neighbour is connected");
    w.restart(Role::Proxy)?;
    let same = keys(&w, Role::Proxy)?;
    ensure!(same.is_superset(&before), "{same:?} of {before:?}");

    let (authority, pki) = (w.lab.dir().join("pki"), w.lab.server.dir().join("pki"));
    let [dir, cert] = [authority.clone(), pki.join("host.crt")].map(|p| p.display().to_string());
    let words = ["pki", "revoke", "--dir", &dir, "--cert", &cert];
    w.fleet.dyscoctl(&w.lab.router, &words)?;
    let to = w.lab.proxy.dir().join("pki/revoked.crl");
    fs::copy(authority.join("revoked.crl"), to)?;
    w.restart(Role::Proxy)?;
    let after = keys(&w, Role::Proxy)?;
    ensure!(after.is_disjoint(&before), "{after:?} and {before:?}");
    group.wait_progress(200_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}
