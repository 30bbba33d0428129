//! An uninstallation restores a host.

use std::time::Duration;

use anyhow::{Result, ensure};
use dysco_netns::fleet::Fleet;
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Host, Lab, Role, wait};
use serde_json::Value;

use crate::world::{DECLARED, World};

/// Returns everything that a dyscod might have left on a host.
fn traces(host: &Host) -> Result<String> {
    let look = "ls -AR /sys/fs/bpf /run/dysco 2>/dev/null; tc qdisc show dev eth0; \
                tc filter show dev eth0 ingress; tc filter show dev eth0 egress; \
                cat /proc/sys/net/ipv4/ip_local_reserved_ports; ip neigh show nud permanent";
    host.output("sh", &["-c", look])
}

fn leaves_nothing(name: &'static str, attach: &str) -> Result<()> {
    let config = format!("{DECLARED}\n[data_plane]\nattach = \"{attach}\"\n");
    let builder = Lab::builder(name);
    let mut w = World::with(builder, Family::V4, &[Role::Proxy], &config, |c| c)?;
    w.mode = "local";
    let plan = Plan {
        rate: Some(1_000_000),
        ..Plan::default()
    };
    let group = w.open(1, &plan)?;
    group.run();
    group.wait_progress(100_000)?;
    w.remove_all_of(1)?;
    let host = &w.lab.proxy;
    let file = host.dir().join("dyscod.toml").display().to_string();
    let uninstall = |more: &[&str]| {
        let words = [&["uninstall", "--config", &file, "-o", "json"], more].concat();
        w.fleet.try_dyscoctl(host, &words)
    };

    // The host is needed, and nothing changes.
    let before = traces(host)?;
    let ran = uninstall(&["--dry-run"])?;
    let report: Value = serde_json::from_str(&ran.stdout)?;
    let why = &report["sessions"][0]["why"];
    ensure!(
        ran.code == Some(5) && why == "its proxy has left (local)",
        "{ran:?}"
    );
    let ran = uninstall(&[])?;
    ensure!(
        ran.code == Some(5) && ran.stderr.contains("sessions need it"),
        "{ran:?}"
    );
    ensure!(traces(host)? == before);
    group.wait_progress(100_000)?;
    all_intact(&group.finish()?)?;

    let ran = uninstall(&["--wait"])?;
    ensure!(ran.code == Some(0), "{ran:?}");
    // No dyscod has run on the client's host.
    let (left, clean) = (traces(host)?, traces(&w.lab.client)?);
    ensure!(left == clean && before != clean, "{left}\n{clean}");
    ensure!(host.dir().join("pki/host.key").exists() && host.dir().join("dyscod.toml").exists());
    let ran = uninstall(&[])?;
    ensure!(
        ran.code == Some(0) && ran.stdout.contains("\"removes\": []"),
        "{ran:?}"
    );
    let daemon = w.daemon(Role::Proxy)?;
    wait::until("dyscod to end", Duration::from_secs(20), || {
        (!daemon.runs()).then_some(())
    })?;
    w.daemons.clear();
    w.finish()
}

#[test]
fn uninstall_leaves_nothing_of_tcx() -> Result<()> {
    leaves_nothing("gone", "auto")
}

#[test]
fn uninstall_leaves_nothing_of_clsact() -> Result<()> {
    leaves_nothing("goneclsact", "clsact")
}

/// The sessions of another release are unknown, so that the user has to say that they may stop.
#[test]
fn the_data_plane_of_another_release_goes_by_force() -> Result<()> {
    let lab = Lab::builder("goneother").build()?;
    let fleet = Fleet::new(&lab)?;
    let host = &lab.proxy;
    let file = fleet.prepare(&lab, Role::Proxy, "")?.display().to_string();
    host.output("mkdir", &["-p", "/sys/fs/bpf/dysco/v1"])?;
    let uninstall = |more: &[&str]| {
        let words = [&["uninstall", "--config", &file, "-o", "json"], more].concat();
        fleet.try_dyscoctl(host, &words)
    };
    let ran = uninstall(&[])?;
    let named = ran.stderr.contains("dysco/v1") && ran.stderr.contains("uninstall --force");
    ensure!(ran.code != Some(0) && named, "{ran:?}");
    let ran = uninstall(&["--dry-run"])?;
    let report: Value = serde_json::from_str(&ran.stdout)?;
    ensure!(
        ran.code == Some(5) && report["unknown"] == "/sys/fs/bpf/dysco/v1",
        "{ran:?}"
    );
    ensure!(host.output("ls", &["/sys/fs/bpf/dysco"])?.contains("v1"));
    let ran = uninstall(&["--force"])?;
    ensure!(ran.code == Some(0), "{ran:?}");
    ensure!(!traces(host)?.contains("v1"));
    lab.finish(())
}
