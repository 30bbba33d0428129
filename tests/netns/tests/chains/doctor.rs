//! `dyscoctl doctor` on a host without faults, and on a host with faults.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use crate::steered::policy::rule;
use crate::steered::{At, Steered};
use anyhow::{Context, Result, ensure};
use dysco_netns::Family;
use serde_json::Value;

use At::{Client, Fw1};

/// Returns the exit code and the findings on the client's host.
fn examine(world: &Steered) -> Result<(Option<i32>, Value)> {
    let config = world.host(Client).dir().join("dyscod.toml");
    let config = config.display().to_string();
    let ran = world.try_ctl(Client, &["doctor", "--config", &config, "-o", "json"])?;
    let found = serde_json::from_str(&ran.stdout).with_context(|| format!("no JSON: {ran:?}"))?;
    Ok((ran.code, found))
}

/// True if a finding with this verdict contains all these words.
fn is_reported(found: &Value, verdict: &str, words: &[&str]) -> bool {
    let mut all = found["findings"].as_array().into_iter().flatten();
    all.any(|f| {
        let text = format!("{}: {} -> {}", f["about"], f["found"], f["hint"]);
        f["verdict"] == verdict && words.iter().all(|word| text.contains(word))
    })
}

fn is_ill(world: &Steered, words: &[&str]) -> Result<()> {
    let (code, found) = examine(world)?;
    let reported = is_reported(&found, "ill", words);
    ensure!(code == Some(8) && reported, "{words:?}: {code:?} {found:#}");
    Ok(())
}

fn is_well(world: &Steered) -> Result<()> {
    let (code, found) = examine(world)?;
    let none = found["ill"] == 0 && found["doubtful"] == 0;
    ensure!(code == Some(0) && none, "{code:?} {found:#}");
    Ok(())
}

#[test]
fn a_host_is_well_or_told_what_to_do() -> Result<()> {
    let policy = rule(Family::V4, &[Fw1]);
    let mut world = Steered::with_policy(Family::V4, &policy)?;
    world.wait_neighbours(&[Fw1])?;
    is_well(&world)?;

    world.write_policy("[[rule]]\nchain = 1\n")?;
    is_ill(&world, &["policy", "policy.toml, line 2"])?;
    world.write_policy(&policy)?;

    world.kill(Client)?;
    // dyscod could be started.
    let (code, found) = examine(&world)?;
    let silent = found["ill"] == 0 && is_reported(&found, "doubtful", &["dyscod", "start it"]);
    ensure!(code == Some(0) && silent, "{code:?} {found:#}");

    let dir = world.host(Client).dir().to_owned();
    let key = dir.join("pki/host.key");
    fs::set_permissions(&key, Permissions::from_mode(0o644))?;
    is_ill(&world, &["keys", "chmod 0600"])?;
    fs::set_permissions(&key, Permissions::from_mode(0o600))?;

    let file = dir.join("dyscod.toml");
    let text = fs::read_to_string(&file)?;
    fs::write(&file, text.replace("eth0", "eth9"))?;
    is_ill(&world, &["configuration", "dyscod.toml, line 3", "eth9"])?;
    fs::write(&file, text)?;

    let former = ["/sys/fs/bpf/dysco/v1"];
    world.host(Client).output("mkdir", &former)?;
    is_ill(&world, &["pins", "dyscoctl uninstall --force"])?;
    world.host(Client).output("rmdir", &former)?;

    world.restart(Client)?;
    world.wait_neighbours(&[Fw1])?;
    is_well(&world)?;
    world.finish()
}
