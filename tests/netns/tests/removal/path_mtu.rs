//! The path of a session becomes narrower after its proxy has left. Routers report the segments
//! that they see, which have another five-tuple than the end knows. The end nevertheless receives
//! the errors, and sends shorter segments.

use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, HostOptions, Lab, Role};

const MIB: u64 = 1 << 20;

/// Limits the size of packets that the router sends to a host from now on. The router reports
/// longer ones to their sender.
fn narrow(w: &World, role: Role, bytes: u32) -> Result<()> {
    let (to, bytes) = (role.address(w.family).to_string(), bytes.to_string());
    let words = [
        "route",
        "replace",
        &to,
        "dev",
        role.name(),
        "mtu",
        "lock",
        &bytes,
    ];
    w.lab.router.output("ip", &words).map(drop)
}

/// Tests each of the two ends behind a narrow link, in this mode and with these daemons. The hosts
/// in `heard` translate the errors of the two directions, and count them under these names.
fn goes_on(mode: &'static str, daemons: &[Role], heard: [(Role, &str); 2]) -> Result<()> {
    goes_on_over(|h| h, mode, daemons, heard)
}

/// Runs the test of [`goes_on`] over links with these options.
fn goes_on_over(
    links: fn(HostOptions) -> HostOptions,
    mode: &'static str,
    daemons: &[Role],
    heard: [(Role, &str); 2],
) -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let lab = Lab::builder("pathmtu").hosts(links);
        let mut w = World::with(lab, family, daemons, DECLARED, |c| c)?;
        w.mode = mode;
        let group = w.open(2, &Plan::gentle())?;
        group.run();
        group.wait_progress(MIB)?;
        w.wait_removable(&w.ends(&group)?)?;
        w.remove_all_of(2)?;
        group.wait_progress(MIB)?;
        for (behind, (role, counter)) in [Role::Server, Role::Client].into_iter().zip(heard) {
            let before = w.counters(role)?[counter].as_u64();
            narrow(&w, behind, 1300)?;
            group
                .wait_progress(2 * MIB)
                .with_context(|| format!("{family:?}, narrow to {behind:?}: {}", w.state()))?;
            let now = w.counters(role)?[counter].as_u64();
            ensure!(
                now > before,
                "{counter} on {role:?}: {before:?}, then {now:?}"
            );
        }
        all_intact(&group.finish()?)?;
        w.finish()?;
    }
    Ok(())
}

#[test]
fn after_a_bypass() -> Result<()> {
    let heard = [Role::Client, Role::Server].map(|role| (role, "icmp_errors_translated"));
    goes_on("bypass", &Role::ALL, heard)
}

#[test]
fn where_the_proxys_host_relays() -> Result<()> {
    goes_on(
        "local",
        &[Role::Proxy],
        [(Role::Proxy, "icmp_errors_relayed"); 2],
    )
}

#[test]
fn where_replies_pass_the_proxys_host_by() -> Result<()> {
    let heard = [(Role::Proxy, "icmp_errors_relayed"); 2];
    goes_on("return", &[Role::Proxy, Role::Server], heard)
}

#[test]
fn after_a_bypass_without_ethernet() -> Result<()> {
    let heard = [Role::Client, Role::Server].map(|role| (role, "icmp_errors_translated"));
    goes_on_over(HostOptions::headerless, "bypass", &Role::ALL, heard)
}

#[test]
fn where_the_proxys_host_relays_without_ethernet() -> Result<()> {
    let heard = [(Role::Proxy, "icmp_errors_relayed"); 2];
    goes_on_over(HostOptions::headerless, "local", &[Role::Proxy], heard)
}
