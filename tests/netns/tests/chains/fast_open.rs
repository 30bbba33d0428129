//! TCP Fast Open: data in the SYN, in addition to the payload that leads it through its chain.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use crate::steered::policy::rule;
use crate::steered::{At, Steered};
use anyhow::{Context, Result, ensure};
use dysco_netns::{Family, counters, echo, wait};

const PATIENCE: Duration = Duration::from_secs(60);
const PORT: u16 = 9100;

/// Number of bytes that fit into a packet of 1,500 bytes, but not together with the payload.
const MUCH: usize = 1300;

/// Returns two firewalls and an echo server behind them, with its address.
fn world(family: Family) -> Result<(Steered, SocketAddr)> {
    // No cookies are needed, on all listening sockets.
    let settings = [
        (At::Client, "net.ipv4.tcp_fastopen", "5"),
        (At::Server, "net.ipv4.tcp_fastopen", "1538"),
    ];
    let policy = rule(family, &At::FIREWALLS).replace(&crate::steered::PORT.to_string(), "9100");
    let world = Steered::with_settings(family, &policy, &settings)?;
    world.wait_neighbours(&At::FIREWALLS)?;
    let to = SocketAddr::new(At::Server.address(family), PORT);
    echo::serve(world.host(At::Server), to)?;
    Ok((world, to))
}

/// Checks that both firewalls have passed all packets, and refused none.
fn has_passed(world: &Steered) -> Result<()> {
    for fw in At::FIREWALLS {
        ensure!(world.counted(fw, "passed")? > 0, "{fw:?} has seen nothing");
        ensure!(world.refused(fw)? == 0, "{}", world.logs());
    }
    Ok(())
}

/// The data of a SYN passes the chain with the SYN, after the payload, and reaches the server once.
fn with_data_in_the_syn(family: Family) -> Result<()> {
    let (world, to) = world(family)?;
    for said in 0..5 {
        let mut stream = echo::connect_with_data(world.host(At::Client), to)?;
        echo::talk(&mut stream, said, 50).with_context(|| world.logs())?;
    }
    let taken = counters::tcp(world.host(At::Server))?;
    ensure!(
        taken.get("TcpExt.TCPFastOpenPassive") == Some(&5),
        "{taken:?}\n{}",
        world.logs()
    );
    has_passed(&world)?;
    world.finish()
}

#[test]
fn data_of_a_syn_is_not_lost() -> Result<()> {
    with_data_in_the_syn(Family::V4)
}

#[test]
fn data_of_a_syn_is_not_lost_v6() -> Result<()> {
    with_data_in_the_syn(Family::V6)
}

fn with_much_data_in_the_syn(family: Family) -> Result<()> {
    let (world, to) = world(family)?;
    for times in 1..=3 {
        let mut stream = echo::connect_with_data(world.host(At::Client), to)?;
        let said: Vec<_> = (0..MUCH).map(|i| (i % 251) as u8).collect();
        stream.write_all(&said)?;
        let mut heard = vec![0; MUCH];
        stream
            .read_exact(&mut heard)
            .with_context(|| world.logs())?;
        ensure!(said == heard, "what came back is not what was said");
        echo::talk(&mut stream, 7, 20).with_context(|| world.logs())?;
        // The SYN has left at once, without the data.
        wait::until("data to be left out", PATIENCE, || {
            let status = world.json(At::Client, &["status"]).ok()?;
            let counters = &status["counters"];
            let left_out = counters["chain_fast_open_data_left_out"].as_u64();
            (left_out == Some(times) && counters["chain_syns_sent"] == times).then_some(())
        })
        .with_context(|| world.logs())?;
    }
    has_passed(&world)?;
    world.finish()
}

#[test]
fn data_that_a_syn_has_no_room_for_is_sent_behind_it() -> Result<()> {
    with_much_data_in_the_syn(Family::V4)
}

#[test]
fn data_that_a_syn_has_no_room_for_is_sent_behind_it_v6() -> Result<()> {
    with_much_data_in_the_syn(Family::V6)
}
