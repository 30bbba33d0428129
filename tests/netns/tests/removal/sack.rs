//! Value of the translation of SACK blocks: without SACK at one end, a sender that loses packets
//! has to wait for its timer repeatedly.

use std::time::Duration;

use crate::world::World;
use anyhow::{Result, ensure};
use dysco_netns::stream::{Amount, Close, Plan, Side, all_intact};
use dysco_netns::{Family, Lab, Role, counters, wait};

const BYTES: u64 = 20 << 20;

/// Cost of losses to the sender of an upload of [`BYTES`].
#[derive(Debug)]
struct Cost {
    timeouts: u64,
    discarded: u64,
}

/// Uploads over a new path that loses packets.
fn upload(w: &World) -> Result<Cost> {
    let plan = Plan {
        up: Amount::Bytes(BYTES),
        down: Amount::Bytes(BYTES / 100),
        close: Close::First(Side::Client),
        rate: Some(8 << 20),
        ..Plan::default()
    };
    let group = w.open(1, &plan)?;
    group.run();
    group.wait_progress(50_000)?;
    w.remove_these(&w.ends(&group)?)?;
    let count = |name: &str| -> Result<u64> {
        let all = counters::tcp(&w.lab.client)?;
        Ok(all.get(&format!("TcpExt.{name}")).copied().unwrap_or(0))
    };
    let read = || -> Result<[u64; 2]> {
        let timeouts = count("TCPTimeouts")?;
        Ok([timeouts, count("TCPSACKDiscard")?])
    };
    let before = read()?;
    w.lab.set_loss(2.0)?;
    wait::until("the upload", Duration::from_secs(120), || {
        (group.received(Side::Server) == BYTES).then_some(())
    })?;
    let after = read()?;
    w.lab.set_loss(0.0)?;
    all_intact(&group.finish()?)?;
    Ok(Cost {
        timeouts: after[0] - before[0],
        discarded: after[1] - before[1],
    })
}

#[test]
fn sack_left_untranslated_at_one_end_costs_timeouts() -> Result<()> {
    let w = World::new(Lab::builder("sack"), Family::V4)?;
    let right = upload(&w)?;
    w.fault(Role::Client, "spoil:Sack")?;
    let spoilt = upload(&w)?;
    println!("translated: {right:?}, untranslated: {spoilt:?}");
    ensure!(right.discarded == 0, "{right:?}");
    ensure!(spoilt.discarded > 20, "{spoilt:?}");
    ensure!(
        spoilt.timeouts > 5 + 3 * right.timeouts,
        "{right:?} {spoilt:?}"
    );
    w.finish()
}
