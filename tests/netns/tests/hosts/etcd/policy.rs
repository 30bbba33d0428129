//! The policy: published, replaced, refused, kept without etcd.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use dysco_netns::wait;
use serde_json::{Value, json};

use super::{LIMIT, World, hosts, rule};

/// Revision of the policy in force.
fn revision(state: &Value) -> Option<i64> {
    state["policy"].as_i64()
}

/// The hosts find each other by etcd, without a list of peers.
fn the_hosts_are_connected(w: &World) -> Result<()> {
    let found = wait::until("a connection to fw1", LIMIT, || {
        let status = w.fleet.json(w.host(0), &["status"]).ok()?;
        let peers = status["peers"].as_array().cloned().unwrap_or_default();
        let is_up = |peer: &Value| peer["address"] == "10.0.3.1" && peer["up"] == true;
        peers.iter().any(is_up).then_some(())
    });
    found.context("the hosts do not know each other")
}

/// A text that cannot be used is refused before it is published, and by each host that finds it.
fn a_bad_policy_changes_nothing(w: &World, etcd: &super::Etcd<'_>) -> Result<()> {
    let (code, said) = w.publish("[[rule]]\nchain = [\"fw1\"]\n")?;
    ensure!(code == Some(2), "{said}");
    ensure!(
        said.contains("new.toml") && said.contains("line 2"),
        "{said}"
    );
    ensure!(
        !etcd.ctl(&["get", "/dysco/policy"])?.contains("\"fw1\""),
        "it was published"
    );
    etcd.put("/dysco/policy", "[[rule]]\nchain = [\"fw1\"]\n")?;
    for at in [0, 2] {
        let state = w.wait(at, "the refusal", |s| s["refused"].is_object())?;
        let why = state["refused"]["why"].as_str().unwrap_or_default();
        ensure!(
            why.contains("fw1") && why.contains("etcd:/dysco/policy"),
            "{state:#}"
        );
        w.has(at, "second")?;
    }
    let doctor = w
        .fleet
        .try_dyscoctl(w.host(0), &["doctor", "--config", "/none"])?;
    ensure!(
        doctor.stdout.contains("etcd:/dysco/policy is not in force"),
        "{doctor:?}"
    );
    let metrics = w.fleet.dyscoctl(w.host(0), &["metrics"])?;
    ensure!(
        metrics.contains("dysco_fleet_policy_refused 1"),
        "{metrics}"
    );
    // The other hosts know of it, too.
    let told = |s: &Value| {
        let hosts = s["hosts"].as_array().cloned().unwrap_or_default();
        hosts.len() == 2 && hosts.iter().all(|host| host["refused"]["why"].is_string())
    };
    w.wait(0, "the refusals of all hosts", told).map(drop)
}

/// The file is not used any more.
fn the_file_is_left_alone(w: &World) -> Result<()> {
    let file = w.host(0).dir().join("policy.toml");
    fs::write(&file, rule("of the file", "10.0.3.1"))?;
    let applied = ["policy", "apply", super::path(&file)];
    let ran = w.fleet.try_dyscoctl(w.host(0), &applied)?;
    ensure!(ran.code == Some(2), "{ran:?}");
    ensure!(ran.stderr.contains("policy publish"), "{ran:?}");
    // A file with an error holds up no reload.
    fs::write(&file, "no policy")?;
    w.fleet.dyscoctl(w.host(0), &["reload"])?;
    w.fleet.dyscoctl(w.host(0), &["policy", "apply"])?;
    Ok(())
}

#[test]
fn a_policy_of_etcd_is_in_force_on_all_hosts() -> Result<()> {
    let w = World::build("etcd-policy", 1)?;
    let etcd = w.etcd()?;
    let url = etcd.url();
    // Until etcd has a policy, the file's is in force.
    fs::write(
        w.host(0).dir().join("policy.toml"),
        rule("file", "10.0.3.1"),
    )?;
    let daemons = (w.start(0, &url, "")?, w.start(2, &url, "")?);
    w.has(0, "file")?;
    w.wait(0, "both hosts", |s| hosts(s) == ["client", "fw1"])?;
    the_hosts_are_connected(&w)?;

    let (code, said) = w.publish(&rule("first", "10.0.3.1"))?;
    ensure!(code == Some(0), "{said}");
    let said: Value = serde_json::from_str(&said)?;
    ensure!(said["in_force"] == json!(["client", "fw1"]), "{said:#}");
    w.has(0, "first")?;
    // The sessions of a host do not pass that host.
    ensure!(
        w.rules(2)? == [("first".to_owned(), json!([]))],
        "{:?}",
        w.rules(2)?
    );
    ensure!(
        w.rules(0)? == [("first".to_owned(), json!(["10.0.3.1"]))],
        "{:?}",
        w.rules(0)?
    );

    etcd.put("/dysco/policy", &rule("second", "10.0.3.1"))?;
    for at in [0, 2] {
        w.wait_rule(at, "second")?;
    }
    a_bad_policy_changes_nothing(&w, &etcd)?;
    let (code, said) = w.publish(&rule("third", "10.0.3.1"))?;
    ensure!(code == Some(0), "{said}");
    ensure!(w.state(0)?["refused"].is_null(), "{:#}", w.state(0)?);
    the_file_is_left_alone(&w)?;
    w.has(0, "third")?;

    etcd.ctl(&["del", "/dysco/policy"])?;
    let state = w.wait(2, "the loss of the key", |s| s["refused"].is_object())?;
    ensure!(
        state["refused"]["why"].to_string().contains("is gone"),
        "{state:#}"
    );
    w.has(2, "third")?;
    let (code, said) = w.publish("")?;
    ensure!(code == Some(0), "{said}");
    ensure!(w.rules(0)?.is_empty(), "{:?}", w.rules(0)?);
    drop((daemons, etcd));
    w.star.finish(())
}

#[test]
fn what_etcd_had_survives_its_loss_and_a_restart() -> Result<()> {
    let w = World::build("etcd-lost", 1)?;
    let mut etcd = w.etcd()?;
    let url = etcd.url();
    let mut daemon = w.start(0, &url, "")?;
    let other = w.start(2, &url, "")?;
    let (code, said) = w.publish(&rule("kept", "10.0.3.1"))?;
    ensure!(code == Some(0), "{said}");
    let before = revision(&w.state(0)?);
    ensure!(before.is_some(), "{:#}", w.state(0)?);

    etcd.kill()?;
    let lost = |s: &Value| s["connected"] == false && s["error"]["why"].is_string();
    w.wait(0, "the loss of etcd", lost)?;
    w.has(0, "kept")?;
    let status = w.fleet.dyscoctl(w.host(0), &["status"])?;
    ensure!(
        status.starts_with("degraded: ") && status.contains("lost for"),
        "{status}"
    );
    let metrics = w.fleet.dyscoctl(w.host(0), &["metrics"])?;
    ensure!(metrics.contains("dysco_etcd_up 0"), "{metrics}");
    let (code, said) = w.publish(&rule("vain", "10.0.3.1"))?;
    ensure!(code == Some(5), "{said}");

    // A daemon that starts without etcd, on a host whose rules are gone as well.
    daemon.process.stop()?;
    let host = w.host(0);
    let mode = host.run(|| fs::metadata("/run/dysco/state/fleet").map(|m| m.permissions().mode()));
    ensure!(mode? & 0o777 == 0o600, "others may read what etcd has");
    host.output("rm", &["-r", "/sys/fs/bpf/dysco"])?;
    let daemon = w.fleet.start_by(host, &host.dir().join("dyscod.toml"))?;
    w.has(0, "kept")?;
    let state = w.wait(0, "the first attempt", lost)?;
    ensure!(revision(&state) == before, "{state:#}");
    ensure!(hosts(&state) == ["client", "fw1"], "{state:#}");

    etcd.restart()?;
    w.wait(0, "etcd", |s| s["connected"] == true)?;
    w.has(0, "kept")?;
    w.wait(2, "etcd", |s| s["connected"] == true)?;
    let (code, said) = w.publish(&rule("after", "10.0.3.1"))?;
    ensure!(code == Some(0), "{said}");
    for at in [0, 2] {
        w.has(at, "after")?;
    }
    drop((daemon, other, etcd));
    w.star.finish(())
}

#[test]
fn a_host_that_stopped_is_no_longer_registered() -> Result<()> {
    let w = World::build("etcd-lease", 1)?;
    let etcd = w.etcd()?;
    let url = etcd.url();
    let daemon = w.start(0, &url, "")?;
    let mut other = w.start(2, &url, "lease_s = 2")?;
    w.wait(0, "both hosts", |s| hosts(s) == ["client", "fw1"])?;
    // An entry that is deleted is written again.
    etcd.ctl(&["del", "/dysco/hosts/fw1"])?;
    let again = || {
        let there = etcd.ctl(&["get", "/dysco/hosts/fw1"]).ok()?;
        there.contains("10.0.3.1").then_some(())
    };
    wait::until("fw1 to register again", LIMIT, again)?;
    other.process.kill()?;
    w.wait(0, "the end of fw1's entry", |s| hosts(s) == ["client"])?;
    ensure!(
        !etcd
            .ctl(&["get", "--prefix", "/dysco/hosts/"])?
            .contains("fw1")
    );
    drop((daemon, other, etcd));
    w.star.finish(())
}
