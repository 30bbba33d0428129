//! A daemon that loads other settings while it runs, and a daemon that is removed.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::{Host, Lab, Role};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Runs `dyscoctl reload`. Returns its exit code and its report.
fn reload(fleet: &Fleet, host: &Host, more: &[&str]) -> Result<(Option<i32>, Value)> {
    let words = [&["reload", "-o", "json"], more].concat();
    let ran = fleet.try_dyscoctl(host, &words)?;
    let text = match ran.code {
        Some(0 | 5) if !ran.stdout.is_empty() => &ran.stdout,
        _ => &ran.stderr,
    };
    let report = serde_json::from_str(text).with_context(|| format!("no JSON: {ran:?}"))?;
    Ok((ran.code, report))
}

fn keys(report: &Value, of: &str) -> Vec<String> {
    let changes = report[of].as_array().cloned().unwrap_or_default();
    let key = |change: &Value| change["key"].as_str().unwrap_or_default().to_owned();
    changes.iter().map(key).collect()
}

/// Replaces a text in a file.
fn edit(file: &Path, from: &str, to: &str) -> Result<()> {
    let text = fs::read_to_string(file)?;
    ensure!(text.contains(from), "no {from} in {text}");
    Ok(fs::write(file, text.replace(from, to))?)
}

fn interfaces(fleet: &Fleet, host: &Host) -> Result<Vec<String>> {
    let status = fleet.json(host, &["status"])?;
    let all = status["interfaces"].as_array().cloned().unwrap_or_default();
    let name = |i: &Value| i["name"].as_str().unwrap_or_default().to_owned();
    Ok(all.iter().map(name).collect())
}

/// Keys that [`edit_all`] changes, and that a reload takes up.
const CHANGED: [&str; 5] = [
    "chain.policy",
    "host.interfaces",
    "log.filter",
    "removal.automatic",
    "track",
];

/// Edits the host's configuration: keys that a reload takes up, one that it does not, and the
/// policy.
fn edit_all(host: &Host) -> Result<()> {
    let file = host.dir().join("dyscod.toml");
    edit(&file, "[\"eth0\"]", "[\"eth0\", \"port\"]")?;
    edit(&file, "automatic = false", "automatic = true")?;
    edit(&file, "max_sessions = 1024", "max_sessions = 2048")?;
    edit(&file, "filter = \"info\"", "filter = \"warn\"")?;
    let rule = "[[rule]]\nname = \"web\"\nchain = [\"10.0.9.1\"]\n";
    fs::write(host.dir().join("other.toml"), rule)?;
    edit(&file, "policy.toml", "other.toml")?;
    fs::write(
        &file,
        fs::read_to_string(&file)? + "[[track]]\nports = 80\n",
    )?;
    Ok(())
}

/// Any fault leaves everything unchanged: of the file, of a key, of the policy, of the kernel.
fn no_fault_changes_anything(fleet: &Fleet, host: &Host) -> Result<()> {
    let file = host.dir().join("dyscod.toml");
    let key = host.dir().join("pki/host.key");
    let mode = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(&key, mode)
    };
    let faulty = |told: &str, exit: i32| -> Result<()> {
        let (code, report) = reload(fleet, host, &[])?;
        ensure!(code == Some(exit), "{report:#}");
        ensure!(report.to_string().contains(told), "{report:#}");
        ensure!(interfaces(fleet, host)? == ["eth0"], "{report:#}");
        let rules = fleet.json(host, &["policy", "list"])?;
        ensure!(rules["rules"] == serde_json::json!([]), "{rules:#}");
        Ok(())
    };
    edit(&file, "ports = 80", "ports = 0")?;
    faulty("holds port 0", 2)?;
    edit(&file, "ports = 0", "ports = 80")?;
    mode(0o644)?;
    faulty("others may read it", 2)?;
    mode(0o600)?;
    edit(&host.dir().join("other.toml"), "10.0.9.1", "nobody")?;
    faulty("is no element of a chain, and names are not looked up", 2)?;
    edit(&host.dir().join("other.toml"), "nobody", "10.0.9.1")?;
    // The programs are attached to one interface, and cannot be attached to the other.
    host.output("ip", &["link", "add", "low", "type", "veth"])?;
    host.output(
        "ip",
        &["link", "add", "mac0", "link", "low", "type", "macvlan"],
    )?;
    edit(&file, "\"port\"]", "\"port\", \"mac0\", \"low\"]")?;
    faulty("low", 2)?;
    edit(&file, ", \"mac0\", \"low\"]", "]")
}

/// The reload is requested by the signal, and the service manager is notified.
fn the_signal_reloads(fleet: &Fleet, host: &Host, daemon: &Daemon) -> Result<()> {
    let file = host.dir().join("dyscod.toml");
    let notify = host.dir().join("notify");
    fs::remove_file(&notify)?;
    let manager = UnixDatagram::bind(&notify)?;
    manager.set_read_timeout(Some(Duration::from_secs(20)))?;
    edit(&file, ", \"port\"]", "]")?;
    daemon.process.signal(Signal::SIGHUP)?;
    let hear = || -> Result<String> {
        let mut word = [0; 256];
        let len = manager.recv(&mut word).context("no word")?;
        Ok(String::from_utf8_lossy(&word[..len]).into_owned())
    };
    let word = hear()?;
    ensure!(
        word.contains("RELOADING=1") && word.contains("MONOTONIC_USEC="),
        "{word}"
    );
    ensure!(hear()?.contains("READY=1"));
    ensure!(interfaces(fleet, host)? == ["eth0"]);
    let pins = host.output("ls", &["/sys/fs/bpf/dysco/v8"])?;
    ensure!(!pins.contains("link_port"), "{pins}");
    ensure!(pins.contains("link_eth0"), "{pins}");
    Ok(())
}

#[test]
fn a_reload_takes_up_everything_or_nothing() -> Result<()> {
    let lab = Lab::builder("reload").build()?;
    let (fleet, host) = (Fleet::new(&lab)?, &lab.proxy);
    host.output("ip", &["link", "add", "port", "type", "veth"])?;
    let policy = host.dir().join("policy.toml");
    let extra = format!(
        "[chain]\npolicy = {policy:?}\n\n[removal]\nautomatic = false\n\n\
         [data_plane]\nmax_sessions = 1024\n\n[log]\nfilter = \"info\"\n"
    );
    let daemon = fleet.start(&lab, Role::Proxy, &extra)?;
    let (code, report) = reload(&fleet, host, &[])?;
    ensure!(code == Some(0), "{report:#}");
    ensure!(keys(&report, "changed").is_empty(), "{report:#}");

    edit_all(host)?;
    // A dry run reports everything, and does nothing.
    for _ in 0..2 {
        let (code, report) = reload(&fleet, host, &["--dry-run"])?;
        ensure!(code == Some(5), "{report:#}");
        ensure!(keys(&report, "changed") == CHANGED, "{report:#}");
        let left = keys(&report, "needs_restart");
        ensure!(left == ["data_plane.max_sessions"], "{report:#}");
        ensure!(
            report["files"] == serde_json::json!(["policy"]),
            "{report:#}"
        );
    }
    ensure!(interfaces(&fleet, host)? == ["eth0"]);

    no_fault_changes_anything(&fleet, host)?;
    let (code, report) = reload(&fleet, host, &[])?;
    ensure!(code == Some(5), "{report:#}");
    ensure!(keys(&report, "changed") == CHANGED, "{report:#}");
    ensure!(interfaces(&fleet, host)? == ["eth0", "port"]);
    let rules = fleet.json(host, &["policy", "list"])?;
    ensure!(rules["rules"][0]["name"] == "web", "{rules:#}");
    let (_, report) = reload(&fleet, host, &[])?;
    ensure!(keys(&report, "changed").is_empty(), "{report:#}");
    ensure!(keys(&report, "needs_restart") == ["data_plane.max_sessions"]);

    the_signal_reloads(&fleet, host, &daemon)?;
    lab.finish(daemon)
}
