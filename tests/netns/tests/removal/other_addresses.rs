//! A proxy that opens its connections with the client's address (TPROXY): packets to that address
//! reach it by rules of its host alone, which no removal follows.

use crate::world::fates::SETTLED;
use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Host, Lab, Role, wait};

/// Lets the proxy receive packets to the client's address: those from its socket's server.
fn lead_to_proxy(w: &World) -> Result<()> {
    let ip = |host: &Host, words: &str| {
        let words: Vec<_> = words.split(' ').collect();
        host.output("ip", &words)
    };
    let (router, proxy) = (&w.lab.router, &w.lab.proxy);
    ip(router, "rule add iif server to 10.0.1.1 lookup 100")?;
    ip(router, "route add default via 10.0.2.1 table 100")?;
    ip(proxy, "rule add fwmark 1 lookup 100")?;
    ip(proxy, "route add local default dev lo table 100")?;
    let mark = "-t mangle -A PREROUTING -p tcp -m socket --transparent -j MARK --set-mark 1";
    let mark: Vec<_> = mark.split(' ').collect();
    proxy.output("iptables", &mark)?;
    for interface in ["all", "eth0"] {
        proxy.sysctl(&format!("net.ipv4.conf.{interface}.rp_filter"), "0")?;
    }
    Ok(())
}

#[test]
fn a_proxy_with_the_clients_address_stays_with_the_true_reason() -> Result<()> {
    let lab = Lab::builder("tproxy");
    let w = World::with(lab, Family::V4, &Role::ALL, DECLARED, |c| {
        c.line("source 0.0.0.0 usesrc clientip")
    })?;
    lead_to_proxy(&w)?;
    let group = w.open(2, &Plan::gentle())?;
    group.run();
    group.wait_progress(100_000)?;
    for mode in ["auto", "bypass", "local", "return"] {
        let mut done = serde_json::Value::Null;
        wait::until("the true reason", SETTLED, || {
            done = w.remove(&["--all", "--mode", mode]).ok()?;
            let removals = done["removals"].as_array()?;
            let told = |removal: &serde_json::Value| {
                let reason = removal["reason"].to_string();
                reason.contains("10.0.1.1") && reason.contains("TPROXY")
            };
            (removals.len() == 2 && removals.iter().all(told)).then_some(())
        })
        .with_context(|| format!("{mode}: {done:#}\n{}", w.state()))?;
        ensure!(done["summary"]["removed"] == 0, "{mode}: {done:#}");
    }
    group.wait_progress(100_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}
