//! The file of the policy changes, goes and comes, or is broken.

use std::fs;

use anyhow::{Result, ensure};
use dysco_netns::{Family, Lab, Process, Role, wait};
use serde_json::Value;

use super::{Chained, PATIENCE};

/// Another policy applies from the next session on. A policy with an error changes nothing, and the
/// position of the error is reported.
#[test]
fn a_policy_is_watched_and_applied() -> Result<()> {
    let c = Chained::new(Lab::builder("chainpol"), Family::V4)?;
    let file = c.lab.client.dir().join("policy.toml");
    let rules = |c: &Chained| -> Result<Value> { c.fleet.json(&c.lab.client, &["policy", "list"]) };
    fs::write(&file, "[[rule]]\nchain = [\"10.0.2.1\", \"10.0.2.1\"]\n")?;
    wait::until("the error to be told", PATIENCE, || {
        let error = rules(&c).ok()?["error"].to_string();
        error.contains("twice").then_some(())
    })?;
    assert_eq!(rules(&c)?["rules"].as_array().map(Vec::len), Some(1));
    fs::write(&file, "")?;
    wait::until("the empty policy", PATIENCE, || {
        let rules = rules(&c).ok()?;
        rules["rules"].as_array()?.is_empty().then_some(())
    })?;
    let other = c.lab.client.dir().join("other.toml");
    fs::write(&other, "[[rule]]\nchain = []\n[[rule]]\nchain = []\n")?;
    let path = other.to_string_lossy().into_owned();
    c.fleet
        .dyscoctl(&c.lab.client, &["policy", "check", &path])?;
    let applied = c.fleet.json(&c.lab.client, &["policy", "apply", &path])?;
    assert_eq!(applied["rules"].as_array().map(Vec::len), Some(2));
    assert_eq!(fs::read_to_string(&file)?, fs::read_to_string(&other)?);
    c.finish()
}

/// A file that is gone may return: its rules stay in force, and the message says how to clear them.
#[test]
fn a_policy_that_is_gone_stays_in_force() -> Result<()> {
    let mut c = Chained::new(Lab::builder("chaingone"), Family::V4)?;
    let file = c.lab.client.dir().join("policy.toml");
    let away = file.with_extension("toml~");
    let rules = |c: &Chained| c.fleet.json(&c.lab.client, &["policy", "list"]);
    let is_gone = |c: &Chained| -> Result<()> {
        wait::until("its absence to be told", PATIENCE, || {
            let error = rules(c).ok()?["error"].to_string();
            (error.contains("it is gone") && error.contains("apply /dev/null")).then_some(())
        })?;
        let now = rules(c)?["rules"].clone();
        ensure!(now.as_array().map(Vec::len) == Some(1), "{now:#}");
        Ok(())
    };
    fs::rename(&file, &away)?;
    is_gone(&c)?;
    c.renew(Role::Client, Process::stop, || Ok(()))?;
    is_gone(&c)?;
    fs::rename(&away, &file)?;
    wait::until("the policy to be there again", PATIENCE, || {
        rules(&c).ok()?["error"].is_null().then_some(())
    })?;
    fs::remove_file(&file)?;
    is_gone(&c)?;
    c.fleet
        .dyscoctl(&c.lab.client, &["policy", "apply", "/dev/null"])?;
    let now = rules(&c)?;
    assert!(now["error"].is_null(), "{now:#}");
    assert_eq!(now["rules"].as_array().map(Vec::len), Some(0));
    fs::remove_file(&file)?;
    c.renew(Role::Client, Process::stop, || Ok(()))?;
    assert!(rules(&c)?["error"].is_null());
    let log = fs::read_to_string(c.lab.client.dir().join("dyscod.log"))?;
    let cleared = log.matches(" 0 rules are in force").count();
    assert!(cleared <= 1, "only what was asked for clears them:\n{log}");
    c.finish()
}

/// A file that cannot be watched is found nevertheless.
#[test]
fn a_policy_may_come_later_with_its_folder() -> Result<()> {
    let later = |_| "[chain]\npolicy = \"/run/later/policy.toml\"\n".to_owned();
    let c = Chained::with(
        Lab::builder("chainlater"),
        Family::V4,
        "",
        &[Role::Server],
        later,
    )?;
    c.lab.server.run(|| {
        fs::create_dir("/run/later")?;
        fs::write("/run/later/policy.toml", "[[rule]]\nchain = []\n")
    })?;
    wait::until("the policy to be found", PATIENCE, || {
        let list = c.fleet.json(&c.lab.server, &["policy", "list"]).ok()?;
        (list["rules"].as_array()?.len() == 1).then_some(())
    })?;
    c.finish()
}

/// The rules that an earlier daemon has put in force are known, and so are their hosts.
#[test]
fn a_policy_that_is_broken_at_the_start_leaves_the_rules_of_before() -> Result<()> {
    let mut c = Chained::new(Lab::builder("chainbroken"), Family::V4)?;
    let file = c.lab.client.dir().join("policy.toml");
    let good = fs::read_to_string(&file)?;
    c.renew(Role::Client, Process::stop, || {
        fs::write(&file, "[[rule]]\nchain = [\"10.0.2.1\", \"10.0.2.1\"]\n").map_err(Into::into)
    })?;
    let list = |c: &Chained| c.fleet.json(&c.lab.client, &["policy", "list"]);
    let listed = list(&c)?;
    let error = listed["error"].to_string();
    assert!(error.contains("twice"), "{listed:#}");
    let proxy = Role::Proxy.address(Family::V4).to_string();
    assert_eq!(listed["rules"][0]["chain"], serde_json::json!([proxy]));
    let log = fs::read_to_string(c.lab.client.dir().join("dyscod.log"))?;
    assert!(log.contains("the rules of before stay in force"), "{log}");
    // The daemon contacts the rule's host although the file does not name it.
    c.renew(Role::Proxy, Process::stop, || Ok(()))?;
    wait::until("the host to be there", PATIENCE, || {
        let listed = list(&c).ok()?;
        listed["rules"][0]["missing"]
            .as_array()?
            .is_empty()
            .then_some(())
    })?;
    c.wait_neighbours(Role::Proxy, 4)?;
    // This is the same rule with its own name.
    fs::write(&file, format!("{good}name = \"web\"\n"))?;
    wait::until("the repaired file", PATIENCE, || {
        let listed = list(&c).ok()?;
        (listed["error"].is_null() && listed["rules"][0]["name"] == "web").then_some(())
    })?;
    c.carries(3)
}
