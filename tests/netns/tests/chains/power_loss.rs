//! A host loses its power, and all contents of its data plane, while its neighbours continue to
//! run.

use crate::steered::policy::rule;
use crate::steered::{At, Steered};
use anyhow::{Context, Result, ensure};
use dysco_netns::Family;
use dysco_netns::stream::{Plan, all_intact};

const CHAIN: [At; 2] = [At::Fw1, At::Fw2];

/// The host starts to number subsessions again: its neighbour still has sessions with the first of
/// these numbers, whose end it has not received.
#[test]
fn a_client_that_is_back_opens_sessions() -> Result<()> {
    let policy = rule(Family::V4, &CHAIN);
    let mut world = Steered::with_policy(Family::V4, &policy)?;
    world.wait_neighbours(&CHAIN)?;
    let before = world.open(4, &Plan::default())?;
    before.run();
    before.wait_progress(1 << 20)?;
    // No more packets of them leave the host, and no socket answers packets that still arrive.
    let ports: Vec<_> = before
        .locals()
        .iter()
        .map(|l| l.port().to_string())
        .collect();
    let ports = ports.join(", ");
    let text = format!(
        "table inet gone {{
           chain out {{
             type filter hook output priority 0;
             tcp sport {{ {ports} }} drop
             tcp flags & rst == rst drop
           }}
           chain in {{ type filter hook input priority 0; tcp dport {{ {ports} }} drop; }}
         }}\n"
    );
    world.host(At::Client).input("nft", &["-f", "-"], &text)?;
    world.kill(At::Client)?;
    let pins = ["-r", "/sys/fs/bpf/dysco"];
    world.host(At::Client).output("rm", &pins)?;
    world.restart(At::Client)?;
    world.wait_neighbours(&CHAIN)?;
    // Only sessions from the sockets may be listed: a real loss of power removes these as well.
    let mut listed = world.sessions(At::Client)?;
    listed.retain(|s| s["adopted"] != true);
    ensure!(listed.is_empty(), "it still knows {listed:?}");

    // Each message about them is lost once.
    world.set_faults(At::Fw1, "drop:Has")?;
    world.set_faults(At::Client, "drop:HasNot")?;
    let after = world
        .open(4, &Plan::default())
        .with_context(|| world.logs())?;
    after.run();
    after.wait_progress(8 << 20)?;
    let status = world.json(At::Client, &["status"])?;
    let sent = status["counters"]["chain_syns_sent"].as_u64();
    ensure!(sent >= Some(4), "they took no chain: {status}");
    for (at, message) in [(At::Fw1, "Has"), (At::Client, "HasNot")] {
        let lost = world.lost(at, message)?;
        ensure!(lost == 1, "{message} of {at:?} was lost {lost} times");
    }
    all_intact(&after.finish()?)?;
    world.finish()
}
