//! Congestion marks of sessions that have lost their proxy: the marks reach a receiver that echoes
//! them, or the packets are dropped, which the sender notices too.

use crate::world::World;
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, Lab, Role, counters, wait};

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Returns a busy session whose proxy has left in this mode. The hosts in `with` request ECN, and
/// the others have none.
fn removed(family: Family, mode: &'static str, with: &[Role]) -> Result<(World, Group)> {
    let mut lab = Lab::builder("ecn");
    for role in Role::ALL {
        let word = if with.contains(&role) { "1" } else { "0" };
        lab = lab.host(role, move |h| h.sysctl("net.ipv4.tcp_ecn", word));
    }
    let mut w = World::new(lab, family)?;
    w.mode = mode;
    let group = w.open(1, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    w.remove_all_of(1)?;
    group.wait_progress(1 << 20)?;
    Ok((w, group))
}

/// Marks some packets from one host to another as a congested router would.
fn congest(w: &World, family: Family, from: Role, to: Role) -> Result<()> {
    let ip = match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    };
    let (from, to) = (from.name(), to.name());
    w.lab.add_rule(&format!(
        "iifname {from} oifname {to} {ip} ecn ect0 numgen inc mod 50 0 {ip} ecn set ce"
    ))
}

/// Number of delivered packets whose marks were echoed to the host's senders.
fn echoed(w: &World, role: Role) -> Result<u64> {
    let all = counters::tcp(w.lab.host(role))?;
    all.get("TcpExt.TCPDeliveredCE")
        .copied()
        .context("no count of echoed marks")
}

fn wait_more(what: &str, count: impl Fn() -> Result<u64>) -> Result<()> {
    let before = count()?;
    wait::until(what, PATIENCE, || (count().ok()? > before).then_some(()))
}

/// Both ends have negotiated ECN with the proxy.
fn marks_are_echoed(family: Family, mode: &'static str, by: [Role; 2]) -> Result<()> {
    let (w, group) = removed(family, mode, &Role::ALL)?;
    congest(&w, family, Role::Server, by[1])?;
    wait_more("the server to hear of marks", || echoed(&w, Role::Server))?;
    congest(&w, family, Role::Client, by[0])?;
    wait_more("the client to hear of marks", || echoed(&w, Role::Client))?;
    for role in Role::ALL {
        ensure!(w.counters(role)?["dropped_congestion_unanswered"] == 0);
    }
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn marks_are_echoed_past_the_proxy() -> Result<()> {
    marks_are_echoed(Family::V4, "bypass", [Role::Server, Role::Client])
}

#[test]
fn marks_are_echoed_past_the_proxy_v6() -> Result<()> {
    marks_are_echoed(Family::V6, "bypass", [Role::Server, Role::Client])
}

#[test]
fn marks_are_echoed_through_the_relay() -> Result<()> {
    marks_are_echoed(Family::V4, "local", [Role::Proxy, Role::Proxy])
}

/// One end and the proxy have negotiated ECN, the other end has not: marks of that other end's
/// packets become losses at the host that translates.
fn marks_are_losses(
    family: Family,
    mode: &'static str,
    sender: Role,
    next: Role,
    translates: Role,
) -> Result<()> {
    let (w, group) = removed(family, mode, &[sender, Role::Proxy])?;
    congest(&w, family, sender, next)?;
    wait_more("marks to show as losses", || {
        let all = w.counters(translates)?;
        let dropped = all["dropped_congestion_unanswered"].as_u64();
        dropped.context("no such counter")
    })?;
    let again = || {
        let all = counters::tcp(w.lab.host(sender))?;
        all.get("Tcp.RetransSegs").copied().context("no such count")
    };
    wait_more("lost ones to be sent again", again)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn a_server_whose_client_has_no_ecn_hears_of_congestion() -> Result<()> {
    marks_are_losses(
        Family::V4,
        "bypass",
        Role::Server,
        Role::Client,
        Role::Client,
    )
}

#[test]
fn a_server_whose_client_has_no_ecn_hears_of_congestion_v6() -> Result<()> {
    marks_are_losses(
        Family::V6,
        "bypass",
        Role::Server,
        Role::Client,
        Role::Client,
    )
}

#[test]
fn so_does_a_client_through_the_relay() -> Result<()> {
    marks_are_losses(Family::V4, "local", Role::Client, Role::Proxy, Role::Proxy)
}

#[test]
fn so_does_a_client_through_the_relay_v6() -> Result<()> {
    marks_are_losses(Family::V6, "local", Role::Client, Role::Proxy, Role::Proxy)
}
