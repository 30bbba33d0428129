//! Equal lines of hosts: a line that only forwards, and a line whose hosts run `dyscod` and steer
//! sessions along the same hosts by a policy. A second line that only forwards is the control. A
//! line with programs that do nothing in place of Dysco's shows the minimum cost of any data plane
//! by TC.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, Result};
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::idle::{self, Hook};
use dysco_netns::{Line, wait};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::apart::Between;

/// The compared kinds.
pub(crate) const PLAIN: usize = 0;
pub(crate) const CONTROL: usize = 1;
pub(crate) const CHAINED: usize = 2;
pub(crate) const EMPTY: usize = 3;
pub(crate) const KINDS: usize = 4;
const _: () = assert!(PLAIN == crate::turns::BASE);
/// Names of the kinds.
const NAMES: [&str; KINDS] = ["plain", "control", "chained", "empty"];

const PATIENCE: Duration = Duration::from_secs(30);
/// Configuration of the data plane: each host of a chain has two entries per session.
const ROOM: &str = "[data_plane]\nmax_sessions = 131072\n";
const WARM: u16 = 9009;

/// The lines, by kind. The fields are dropped in this order.
pub(crate) struct Ways {
    daemons: Vec<Daemon>,
    /// Programs that do nothing.
    idle: Vec<OwnedFd>,
    fleet: Fleet,
    lines: [Line; KINDS],
}

/// Attaches programs that do nothing to all links of a line.
fn empty(line: &Line) -> Result<Vec<OwnedFd>> {
    let mut idle = Vec::new();
    for (at, host) in line.hosts().iter().enumerate() {
        for link in line.links(at) {
            for hook in [Hook::Ingress, Hook::Egress] {
                idle.push(idle::attach(host, link, hook)?);
            }
        }
    }
    Ok(idle)
}

impl Ways {
    /// Builds the lines, with this number of middleboxes' hosts.
    pub(crate) fn build(middleboxes: usize) -> Result<Ways> {
        let build = |name| Line::build(name, middleboxes);
        let [plain, control, chained, empty_one] = NAMES.map(build);
        let lines = [plain?, control?, chained?, empty_one?];
        let (chained, idle) = (&lines[CHAINED], empty(&lines[EMPTY])?);
        let fleet = Fleet::of_line(chained)?;
        let policy = chained.client().dir().join("policy.toml");
        let server = chained.address(middleboxes + 1);
        let chain = (1..=middleboxes).map(|at| chained.address(at).to_string());
        let chain: Vec<_> = chain.collect();
        let rule = format!("[[rule]]\ndestination = \"{server}\"\nchain = {chain:?}\n");
        std::fs::write(&policy, rule).context("failed to write the policy")?;
        let start = |at: usize| match at {
            0 => {
                let extra = format!("{ROOM}[chain]\npolicy = \"{}\"\n", policy.display());
                fleet.start_on(chained, at, &extra)
            }
            _ => fleet.start_on(chained, at, ROOM),
        };
        let daemons = (0..middleboxes + 2).map(start).collect::<Result<_>>()?;
        let ways = Ways {
            daemons,
            idle,
            fleet,
            lines,
        };
        ways.warm_up()?;
        Ok(ways)
    }

    /// Line of a kind.
    pub(crate) fn line(&self, kind: usize) -> &Line {
        &self.lines[kind]
    }

    /// Stops the daemons, or continues them. The programs work in both cases.
    pub(crate) fn stop(&self, stop: bool) -> Result<()> {
        let signal = if stop {
            Signal::SIGSTOP
        } else {
            Signal::SIGCONT
        };
        let mut daemons = self.daemons.iter();
        daemons.try_for_each(|daemon| daemon.process.signal(signal))
    }

    /// Sets whether the links leave segmentation and checksums to their devices.
    pub(crate) fn set_offload(&self, on: bool) -> Result<()> {
        self.lines.iter().try_for_each(|line| line.set_offload(on))
    }

    /// Limits the rate of all links.
    pub(crate) fn limit(&self, rate: &str) -> Result<()> {
        self.lines.iter().try_for_each(|line| line.limit(rate))
    }

    /// Endpoints of a kind's line, to a port of the server.
    pub(crate) fn between(&self, kind: usize, port: u16) -> Between<'_> {
        let line = self.line(kind);
        let at = line.server_at(port);
        Between {
            client: line.client(),
            to: at,
            server: line.server(),
            at,
        }
    }

    /// Ends everything.
    pub(crate) fn end(self, parts: impl Sized) -> Result<()> {
        drop((parts, self.daemons, self.idle));
        let mut lines = self.lines.into_iter();
        lines.try_for_each(|line| line.finish(()))
    }

    /// Opens sessions until one has passed the whole chain: then the daemons have keys of each
    /// other.
    fn warm_up(&self) -> Result<()> {
        let Between {
            client, server, to, ..
        } = self.between(CHAINED, WARM);
        let listener = server.run(move || std::net::TcpListener::bind(to));
        let listener = listener.with_context(|| format!("failed to listen on {to}"))?;
        listener
            .set_nonblocking(true)
            .context("failed to prepare a listener")?;
        let before = self.arrived()?;
        wait::until("a session along the whole chain", PATIENCE, || {
            let opened = client
                .run(move || std::net::TcpStream::connect_timeout(&to, Duration::from_millis(200)));
            // A queue full of sessions without a chain would admit no further session.
            while listener.accept().is_ok() {}
            (opened.is_ok() && self.arrived().is_ok_and(|n| n > before)).then_some(())
        })?;
        drop(listener);
        Ok(())
    }

    /// Number of SYNs that have arrived at the server along the chain.
    fn arrived(&self) -> Result<u64> {
        let status: Value = self.fleet.json(self.line(CHAINED).server(), &["status"])?;
        let count = status["counters"]["chain_syns_received"].as_u64();
        count.context("dyscoctl did not report the number of SYNs")
    }
}
