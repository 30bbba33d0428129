//! Apparent proofs: a buffer that is full all the time, and a relay that continues without its
//! shim. Neither loses its proxy, and no byte is wrong.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::world::{SERVER_PORT, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Close, Plan, Reading, Side, all_intact};
use dysco_netns::{Family, Lab, Role, echo, relays, wait};
use nix::sys::signal::Signal;
use serde_json::Value;

const PORT: u16 = 8090;
const PATIENCE: Duration = Duration::from_secs(90);

fn reason(done: &Value) -> String {
    done["removals"][0]["reason"].to_string()
}

/// The server reads more slowly than the client sends: the relay holds the same amount at all
/// times.
#[test]
fn a_buffer_that_is_always_full_proves_nothing() -> Result<()> {
    let mut w = World::new(Lab::builder("full"), Family::V4)?;
    let to = Role::Server.at(Family::V4, SERVER_PORT);
    let relay = relays::nginx_stream(&w.lab.proxy, Role::Proxy.at(Family::V4, PORT), to)?;
    // The relay must get its share of the processors, or it never comes to rest.
    let plan = Plan::paced(2_000_000, Close::First(Side::Client));
    let group = w.open_at(PORT, 1, &plan)?;
    group.set_reading(Side::Server, Reading::Slow(600_000));
    group.run();
    group.wait_progress(1 << 20)?;
    let words = ["--listen", ":8090", "--all", "--timeout", "60s"];
    for mode in ["bypass", "local"] {
        w.mode = mode;
        let done = w.remove(&words)?;
        ensure!(done["summary"]["refused"] == 1, "{done:#}\n{}", w.state());
        let why = reason(&done);
        let told = ["may hold data", "server reads slower", "less busy"];
        ensure!(told.iter().all(|word| why.contains(word)), "{why}");
    }
    group.wait_progress(1 << 20)?;

    // Once the server reads, the relay is shown to be empty.
    group.set_reading(Side::Server, Reading::Fast);
    wait::until("the removal", PATIENCE, || {
        let done = w.remove(&words).ok()?;
        (done["summary"]["removed"] == 1).then_some(())
    })
    .with_context(|| w.state())?;
    group.wait_progress(4 << 20)?;
    all_intact(&group.finish()?)?;
    drop(relay);
    w.finish()
}

/// Sends some bytes, and receives them as the relay has forwarded them.
fn hears(stream: &mut TcpStream, letter: u8) -> Result<u8> {
    let said = [letter; 5_000];
    stream.write_all(&said)?;
    let mut heard = said;
    stream.read_exact(&mut heard)?;
    let first = heard[0];
    ensure!(heard.iter().all(|byte| *byte == first), "{heard:?}");
    Ok(first)
}

/// The relay has spliced in both directions, and now reads and rewrites, in a way that its shim
/// does not follow.
fn rewrites(how: &str, seen: &str) -> Result<()> {
    let mut w = World::new(Lab::builder(how), Family::V4)?;
    w.mode = "local";
    let (listen, to) = (
        Role::Proxy.at(Family::V4, PORT),
        Role::Server.at(Family::V4, 9001),
    );
    echo::serve(&w.lab.server, to)?;
    let program = relays::rewriter(how, listen, to)?;
    let mut relay = w.lab.proxy.spawn(w.fleet.under_shim(program))?;
    relay.wait_ready("the relay to listen", || w.lab.proxy.listens(PORT))?;
    let mut stream = echo::connect(&w.lab.client, 0, listen)?;
    let name = format!("{listen}>{}", stream.local_addr()?);
    let words = ["--session", &name];
    let asked =
        |dry: bool| w.remove(&[&words[..], if dry { &["--dry-run"] } else { &[] }].concat());
    wait::until("the splices to be told", PATIENCE, || {
        ensure_spliced(&mut stream).ok()?;
        (asked(true).ok()?["summary"]["removable"] == 1).then_some(())
    })
    .with_context(|| w.state())?;

    relay.signal(Signal::SIGUSR1)?;
    wait::until("the relay to rewrite", PATIENCE, || {
        (hears(&mut stream, b'a').ok()? == b'A').then_some(())
    })?;
    // Reports of the shim may still be in flight.
    for dry in [true, false, true] {
        let done = asked(dry)?;
        ensure!(done["summary"]["refused"] == 1, "{done:#}\n{}", w.state());
        ensure!(reason(&done).contains(seen), "{done:#}");
        ensure!(hears(&mut stream, b'b')? == b'B', "the relay is out");
    }
    drop((stream, relay));
    w.finish()
}

fn ensure_spliced(stream: &mut TcpStream) -> Result<()> {
    ensure!(hears(stream, b'a')? == b'a', "it rewrites already");
    Ok(())
}

#[test]
fn a_relay_whose_child_closed_its_numbers_is_seen_to_rewrite() -> Result<()> {
    rewrites("vfork", "not proven")
}

#[test]
fn a_relay_that_goes_on_by_other_numbers_is_seen_to_rewrite() -> Result<()> {
    rewrites("dupfd", "not proven")
}

/// The shim sees nothing of it, and the kernel does.
#[test]
fn a_relay_that_goes_on_past_libc_is_seen_to_rewrite() -> Result<()> {
    rewrites("raw", "receiving calls")
}

#[test]
fn a_process_that_goes_on_for_its_parent_is_seen_to_rewrite() -> Result<()> {
    rewrites("child", "not proven")
}
