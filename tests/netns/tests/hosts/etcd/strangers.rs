//! TLS: a host believes only an etcd of its authority, and etcd accepts only hosts of it.

use anyhow::{Result, ensure};
use dysco_netns::fleet::Fleet;
use serde_json::Value;

use super::{World, rule};

#[test]
fn neither_side_speaks_with_a_stranger() -> Result<()> {
    let w = World::build("etcd-tls", 1)?;
    let etcd = w.etcd()?;
    let url = etcd.url();
    etcd.put("/dysco/policy", &rule("secret", "10.0.3.1"))?;
    // Keys of another authority for the same host.
    let dir = w.host(0).dir().join("other");
    let other = Fleet::new_in(dir.join("authority"), w.host(0))?;
    let (authority, keys) = (dir.join("authority"), dir.join("keys"));
    let issue = [
        "pki",
        "issue",
        "--dir",
        super::path(&authority),
        "--name",
        "client",
        "--address",
        "10.0.1.1",
        "--out",
        super::path(&keys),
    ];
    other.dyscoctl(w.host(0), &issue)?;

    let lost = |s: &Value| s["error"]["why"].is_string();
    let of_other = |name: &str| keys.join(name).display().to_string();
    // etcd's certificate is not of this authority.
    let daemon = w.start(0, &url, &format!("ca = {:?}", of_other("ca.crt")))?;
    let state = w.wait(0, "the refusal of etcd", lost)?;
    let error = state["error"].to_string();
    ensure!(
        error.contains("invalid peer certificate") && error.contains("[fleet]"),
        "{state:#}"
    );
    ensure!(
        state["connected"] == false && w.rules(0)?.is_empty(),
        "{state:#}"
    );
    drop(daemon);

    // This host's certificate is not of etcd's authority.
    let own = format!(
        "cert = {:?}\nkey = {:?}",
        of_other("host.crt"),
        of_other("host.key")
    );
    let daemon = w.start(0, &url, &own)?;
    let state = w.wait(0, "the refusal by etcd", lost)?;
    ensure!(
        state["connected"] == false && w.rules(0)?.is_empty(),
        "{state:#}"
    );
    drop(daemon);

    let daemon = w.start(0, &url, "")?;
    w.wait_rule(0, "secret")?;
    drop((daemon, etcd));
    w.star.finish(())
}
