//! A host whose interface is a bridge, and whose netfilter sees bridged packets before the data
//! plane: its firewall could drop the packets of a new path.

use crate::steered::ways::{busy, get_on, takes_only};
use crate::steered::{At, Steered};
use anyhow::{Result, ensure};
use dysco_netns::Family;
use dysco_netns::stream::{Plan, all_intact};

/// The chain is refused, whichever of its hosts that is, until netfilter sees no bridged packets.
#[test]
fn a_bridge_whose_packets_netfilter_sees() -> Result<()> {
    for at in [At::Client, At::Fw1, At::Server] {
        let world = Steered::bridged(Family::V4, at)?;
        let (group, session) = busy(&world, &Plan::default())?;
        let refused = world.reconfigure(&session, &[At::Fw1], &[])?;
        let reason = refused["reason"].to_string();
        ensure!(
            reason.contains("bridge-nf-call-iptables=0"),
            "{at:?}: {refused:#}\n{}",
            world.logs()
        );
        get_on(&world, &group)?;

        world.filter_bridged(at, false)?;
        let done = world.reconfigure(&session, &[At::Fw1], &[])?;
        ensure!(done["outcome"] == "changed", "{at:?}: {done:#}");
        takes_only(&world, &group, &[At::Fw1])?;
        all_intact(&group.finish()?)?;
        world.finish()?;
    }
    Ok(())
}
