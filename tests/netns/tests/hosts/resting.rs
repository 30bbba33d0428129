//! Services at both ends that leave a session which gains nothing by them, and come back.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::scope;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::{Family, Role, wait};
use dysco_pattern::Pattern;
use serde_json::json;

use crate::both_ends::BothEnds;

const PATIENCE: Duration = Duration::from_secs(60);
const SELECTED: [&str; 3] = ["--filter", "port=9001", "--wait"];

/// A session through which a test sends what it wants.
struct Wire {
    client: TcpStream,
    server: TcpStream,
    sent: u64,
}

impl Wire {
    fn open(both: &BothEnds) -> Result<Wire> {
        let at = Role::Server.at(Family::V4, 9001);
        let lab = &both.here.lab;
        let listener = lab.server.run(move || TcpListener::bind(at))?;
        let client = lab.client.run(move || TcpStream::connect(at))?;
        let (server, _) = listener.accept()?;
        Ok(Wire {
            client,
            server,
            sent: 0,
        })
    }

    /// Sends bytes to the client, and checks that they arrive.
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let (mut from, mut to) = (&self.server, &self.client);
        let mut got = vec![0; bytes.len()];
        scope(|scope| {
            let writer = scope.spawn(move || from.write_all(bytes));
            to.read_exact(&mut got)?;
            writer.join().unwrap_or(Ok(()))
        })?;
        self.sent += bytes.len() as u64;
        ensure!(got == bytes, "other bytes arrive");
        Ok(())
    }

    /// Sends bytes that do not become smaller.
    fn send_noise(&mut self) -> Result<()> {
        let mut noise = vec![0; 128 << 10];
        Pattern::new(3).fill(self.sent, &mut noise);
        self.send(&noise)
    }

    /// Sends bytes that become smaller.
    fn send_text(&mut self) -> Result<()> {
        self.send(&b"one line is like the next\n".repeat(5_000))
    }
}

/// Sends until the services of the session have a state.
fn until(
    both: &BothEnds,
    wire: &mut Wire,
    state: &str,
    send: fn(&mut Wire) -> Result<()>,
) -> Result<()> {
    let mut seen = json!(null);
    wait::until(state, PATIENCE, || {
        send(wire).ok()?;
        seen = both.here.service(&["list"]).ok()?;
        (seen[0]["state"] == state).then_some(())
    })
    .with_context(|| format!("{seen:#}"))
}

#[test]
fn compress_leaves_noise_and_comes_back_to_text() -> Result<()> {
    let both = BothEnds::new("svcrests", Family::V4)?;
    let here = &both.here;
    let mut wire = Wire::open(&both)?;
    let put = here.service(&[&["put", "+compress"][..], &SELECTED].concat())?;
    ensure!(put["summary"]["put"] == 1, "{put:#}");
    until(&both, &mut wire, "resting", Wire::send_noise)?;
    both.wait_there(0)?;
    let again = here.service(&[&["put", "+compress"][..], &SELECTED].concat())?;
    ensure!(again["summary"]["unchanged"] == 1, "{again:#}");

    until(&both, &mut wire, "in", Wire::send_text)?;
    for _ in 0..20 {
        wire.send_text()?;
    }
    let called = both.call_there()?;
    let read = &called["answer"];
    let [before, after] = ["before", "after"].map(|key| read[key].as_u64().unwrap_or(0));
    ensure!(
        read["compresses"] == true && before > 1_000_000 && after < before / 10,
        "{read:#}"
    );

    let taken = here.service(&[&["take"][..], &SELECTED].concat())?;
    ensure!(taken["summary"]["taken"] == 1, "{taken:#}");
    both.wait_there(0)?;
    wire.send_text()?;
    both.finish()
}

/// Services that are taken out while they rest do not come back.
#[test]
fn services_that_rest_are_taken_out() -> Result<()> {
    let both = BothEnds::new("svcrestout", Family::V6)?;
    let here = &both.here;
    let mut wire = Wire::open(&both)?;
    here.service(&[&["put", "+compress"][..], &SELECTED].concat())?;
    until(&both, &mut wire, "resting", Wire::send_noise)?;
    let taken = here.service(&[&["take", "+compress"][..], &SELECTED].concat())?;
    ensure!(taken["summary"]["taken"] == 1, "{taken:#}");
    ensure!(here.service(&["list"])? == json!([]));
    wire.send_noise()?;
    // Others come in as they would without a rest.
    here.service(&[&["put", "+compress"][..], &SELECTED].concat())?;
    until(&both, &mut wire, "resting", Wire::send_noise)?;
    let put = here.service(&[&["put", "+crypt"][..], &SELECTED].concat())?;
    ensure!(put["summary"]["put"] == 1, "{put:#}");
    wire.send_noise()?;
    let listed = here.service(&["list"])?;
    ensure!(listed[0]["services"] == json!(["crypt"]), "{listed:#}");
    both.finish()
}
