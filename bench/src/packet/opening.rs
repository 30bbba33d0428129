//! Sessions that open, without a chain and along a chain with one middlebox. Each of their packets
//! passes a program once, with a five-tuple that is new to the program. Each time therefore
//! includes two readings of a clock, and caches with other contents. `once_empty` and
//! `once_tracked` include them too.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_common::chain::{Chain, Hop, Shared};
use dysco_common::policy::{Families, InForce, PolicyRule};
use dysco_common::siphash::Key;
use dysco_common::{Addr, FlowKey};
use dysco_netns::idle;

use super::frame::{ANSWERS, OPENS, Packet, USUAL, ends};
use super::programs::{OK, PASS, Plain, Programs, REDIRECT, Way};

/// Maximum number of slots of a session on a host: one for a session that opens here, one for a
/// session that is opened to here, and two for a session that passes.
pub(super) const SLOTS: u32 = 4;

const KEY: Key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
const KEY_ID: u64 = 0xfeed;
/// Source and destination of the chain's sessions, and the hosts' addresses in its subsessions.
const CLIENT: [u8; 4] = [10, 1, 0, 1];
const SERVER: [u8; 4] = [10, 1, 0, 9];
const OPENER: [u8; 4] = [10, 2, 0, 1];
const MIDDLEBOX: [u8; 4] = [10, 2, 0, 5];
const PORT: u16 = 8080;

/// The steps, in order.
pub(super) const STEPS: [&str; 11] = [
    "once_empty",
    "once_tracked",
    "once_syn_out",
    "once_syn_ack_in",
    "once_syn_in",
    "once_syn_ack_out",
    "once_chain_syn_out",
    "once_chain_syn_in",
    "once_chain_syn_on_out",
    "once_chain_syn_ack_in",
    "once_chain_syn_ack_back_out",
];

/// Prepares the host that opens sessions along a chain, and the middlebox's host.
pub(super) fn prepare(opener: &mut Programs, middlebox: &mut Programs) -> Result<()> {
    let hop = |from| Hop {
        key_id: KEY_ID,
        key: KEY,
        local: Addr::v4(from),
        ifindex: 1,
        reserved: 0,
    };
    let generation = 1;
    let rule = PolicyRule {
        destination: Addr::v4(SERVER),
        destination_mask: Addr::new([0xff; 16]),
        first_port: PORT,
        last_port: PORT,
        families: Families::Both as u8,
        generation,
        chain: Chain::of(&[Addr::v4(MIDDLEBOX)]).context("a chain is too long")?,
        ..PolicyRule::default()
    };
    opener.set("POLICY", Plain(rule))?;
    let first = 0;
    opener.set("IN_FORCE", InForce { generation, first }.word())?;
    opener.insert("HOPS", Plain(Addr::v4(MIDDLEBOX)), Plain(hop(OPENER)))?;
    let shared = Shared {
        key: KEY,
        ..Shared::default()
    };
    middlebox.insert("KEYS", KEY_ID, Plain(shared))?;
    middlebox.insert("OWN", Plain(Addr::v4(MIDDLEBOX)), 1_u8)?;
    middlebox.insert("HOPS", Plain(Addr::v4(SERVER)), Plain(hop(MIDDLEBOX)))
}

/// Opens sessions with one number, and records the time of each step.
pub(super) struct Opening<'a> {
    pub opener: &'a Programs,
    /// Programs of the middlebox, and of sessions without a chain.
    pub host: &'a Programs,
    /// Five-tuple of a session that is tracked here.
    pub tracked: &'a FlowKey,
    pub took: Vec<Vec<f64>>,
}

impl Opening<'_> {
    /// Opens the sessions with this number.
    pub(super) fn open(&mut self, number: u16) -> Result<()> {
        let usual = USUAL.comes(self.tracked);
        let mut took = vec![idle::run(&usual, 1)?];
        self.step(&mut took, self.host, Way::In, &usual, PASS)?;
        self.plain(number, &mut took)?;
        self.chained(number, &mut took)?;
        for (all, took) in self.took.iter_mut().zip(took) {
            all.push(took.as_nanos() as f64);
        }
        Ok(())
    }

    fn plain(&self, number: u16, took: &mut Vec<Duration>) -> Result<()> {
        let (port, there) = (20_000 + number, SocketAddr::from(([10, 0, 0, 2], 80)));
        let opened = FlowKey::new(([10, 0, 0, 1], port).into(), there);
        let accepted = FlowKey::new(([10, 0, 0, 1], 80).into(), ([10, 0, 0, 2], port).into());
        let (way_in, out) = (Way::In, Way::Out);
        let host = self.host;
        self.step(took, host, out, &OPENS.leaves(&opened), PASS)?;
        self.step(took, host, way_in, &answers(1).comes(&opened), PASS)?;
        self.step(took, host, way_in, &OPENS.comes(&accepted), PASS)?;
        self.step(took, host, out, &answers(1).leaves(&accepted), PASS)?;
        Ok(())
    }

    fn chained(&self, number: u16, took: &mut Vec<Duration>) -> Result<()> {
        let from = (CLIENT, 20_000 + number).into();
        let key = FlowKey::new(from, (SERVER, PORT).into());
        // This number identifies a session that passes through a host.
        let seq = 0x1_0001 * (1 + u32::from(number));
        let syn = Packet { seq, ..OPENS }.leaves(&key);
        let (opener, host) = (self.opener, self.host);
        let steered = self.step(took, opener, Way::Out, &syn, REDIRECT)?;
        let given = self.step(took, host, Way::In, &steered, OK)?;
        ensure!(given == syn, "the session's SYN was not restored");
        let onward = self.step(took, host, Way::Out, &given, REDIRECT)?;
        let (local, remote) = ends(&onward)?;
        let answer = answers(seq).comes(&FlowKey::new(local, remote));
        let answer = self.step(took, host, Way::In, &answer, OK)?;
        self.step(took, host, Way::Out, &answer, REDIRECT)?;
        Ok(())
    }

    /// Passes one packet to a program, which must return this verdict. Returns the resulting frame.
    fn step(
        &self,
        took: &mut Vec<Duration>,
        programs: &Programs,
        way: Way,
        frame: &[u8],
        verdict: u32,
    ) -> Result<Vec<u8>> {
        let (said, time, out) = programs.pass(way, frame, 0)?;
        let name = STEPS.get(took.len()).copied().unwrap_or_default();
        ensure!(said == verdict, "{name}: verdict {said}, not {verdict}");
        took.push(time);
        Ok(out)
    }
}

/// Returns the answer to a SYN with this number.
fn answers(seq: u32) -> Packet {
    let ack = seq.wrapping_add(1);
    Packet { ack, ..ANSWERS }
}
