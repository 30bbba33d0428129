//! Two equal lines of hosts: one that only forwards, and one whose hosts run `dyscod`
//! and steer sessions along the same hosts by a policy. A second turn of the
//! first says what two equal ways differ by.

use std::time::Duration;

use anyhow::{Context, Result};
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::{Line, wait};
use serde_json::Value;

use crate::apart::Between;

/// The ways that are compared.
pub const PLAIN: usize = 0;
pub const CONTROL: usize = 1;
pub const CHAINED: usize = 2;
pub const KINDS: usize = 3;
const _: () = assert!(PLAIN == crate::turns::BASE);

const PATIENCE: Duration = Duration::from_secs(30);
/// Each host of a chain has two entries of a session.
const ROOM: &str = "[data_plane]\nmax_sessions = 131072\n";
const WARM: u16 = 9009;

/// Both lines. The fields end in this order.
pub struct Ways {
    daemons: Vec<Daemon>,
    fleet: Fleet,
    chained: Line,
    plain: Line,
}

impl Ways {
    /// Builds both, with so many middleboxes' hosts.
    pub fn build(middleboxes: usize) -> Result<Ways> {
        let plain = Line::build("plain", middleboxes)?;
        let chained = Line::build("chained", middleboxes)?;
        let fleet = Fleet::of_line(&chained)?;
        let policy = chained.client().dir().join("policy.toml");
        let server = chained.address(middleboxes + 1);
        let chain = (1..=middleboxes).map(|at| chained.address(at).to_string());
        let chain: Vec<_> = chain.collect();
        let rule = format!("[[rule]]\ndestination = \"{server}\"\nchain = {chain:?}\n");
        std::fs::write(&policy, rule).context("failed to write the policy")?;
        let start = |at: usize| match at {
            0 => {
                let extra = format!("{ROOM}[chain]\npolicy = \"{}\"\n", policy.display());
                fleet.start_on(&chained, at, &extra)
            }
            _ => fleet.start_on(&chained, at, ROOM),
        };
        let daemons = (0..middleboxes + 2).map(start).collect::<Result<_>>()?;
        let ways = Ways {
            daemons,
            fleet,
            chained,
            plain,
        };
        ways.warm_up()?;
        Ok(ways)
    }

    /// The line of a kind.
    pub fn line(&self, kind: usize) -> &Line {
        if kind == CHAINED {
            &self.chained
        } else {
            &self.plain
        }
    }

    /// Whether the links leave segmentation and checksums to their devices.
    pub fn set_offload(&self, on: bool) -> Result<()> {
        self.plain.set_offload(on)?;
        self.chained.set_offload(on)
    }

    /// From end to end of a kind's line, to a port of the server.
    pub fn between(&self, kind: usize, port: u16) -> Between<'_> {
        let line = self.line(kind);
        let at = line.server_at(port);
        Between {
            client: line.client(),
            to: at,
            server: line.server(),
            at,
        }
    }

    /// Ends all.
    pub fn end(self, parts: impl Sized) -> Result<()> {
        drop(parts);
        self.plain.finish(())?;
        self.chained.finish(self.daemons)
    }

    /// Opens sessions until one has come along the whole chain: the daemons have
    /// keys of each other then.
    fn warm_up(&self) -> Result<()> {
        let Between {
            client, server, to, ..
        } = self.between(CHAINED, WARM);
        let listener = server.run(move || std::net::TcpListener::bind(to));
        let listener = listener.with_context(|| format!("failed to listen on {to}"))?;
        let before = self.arrived()?;
        wait::until("a session along the whole chain", PATIENCE, || {
            let opened = client
                .run(move || std::net::TcpStream::connect_timeout(&to, Duration::from_millis(200)));
            (opened.is_ok() && self.arrived().is_ok_and(|n| n > before)).then_some(())
        })?;
        drop(listener);
        Ok(())
    }

    /// SYNs that have come along the chain to the server.
    fn arrived(&self) -> Result<u64> {
        let status: Value = self.fleet.json(self.chained.server(), &["status"])?;
        let count = status["counters"]["chain_syns_received"].as_u64();
        count.context("dyscoctl did not say how many SYNs came")
    }
}
