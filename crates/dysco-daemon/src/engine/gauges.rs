//! Numbers of the engine, for metrics and `status`.

use std::time::{SystemTime, UNIX_EPOCH};

use dysco_api::Mode;
use dysco_common::Session;
use dysco_pki::Credentials;

use super::listing::left_by;
use super::{Engine, Plane};
use crate::metrics::{Certificate, Changes, SessionGauges, Snapshot};

/// Values that are kept for metrics alone.
pub(super) struct Gauges {
    started: f64,
    certificates: Vec<Certificate>,
    /// Sessions of each part of the table at the last count.
    parts: Vec<SessionGauges>,
}

impl Gauges {
    pub(super) fn new(credentials: &Credentials) -> Gauges {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        Gauges {
            started: since_1970.map_or(0.0, |time| time.as_secs_f64()),
            certificates: certificates(credentials),
            parts: Vec::new(),
        }
    }

    /// Records the certificates that the daemon uses from now on.
    pub(super) fn renew(&mut self, credentials: &Credentials) {
        self.certificates = certificates(credentials);
    }

    /// Records the count of the sessions of a part of the table.
    pub(super) fn counted(&mut self, part: u32, sessions: SessionGauges) {
        let part = part as usize;
        if self.parts.len() <= part {
            self.parts.resize(part + 1, SessionGauges::default());
        }
        self.parts[part] = sessions;
    }

    fn sessions(&self) -> SessionGauges {
        let mut all = SessionGauges::default();
        for part in &self.parts {
            for (state, n) in &part.by_state {
                *all.by_state.entry(state).or_default() += n;
            }
            all.bypass += part.bypass;
            all.local += part.local;
            all.returned += part.returned;
            all.entries += part.entries;
        }
        all
    }
}

fn certificates(credentials: &Credentials) -> Vec<Certificate> {
    let all = ["authority", "host"]
        .into_iter()
        .zip(credentials.not_after());
    all.map(|(name, not_after)| Certificate { name, not_after })
        .collect()
}

/// Counts an entry, and its session if the entry is that of the session's path.
pub(super) fn count(sessions: &mut SessionGauges, plane: &Plane, slot: u32, s: &Session) {
    sessions.entries += 1;
    if !s.is_current() {
        return;
    }
    let state = plane.listed_state(slot, s);
    *sessions.by_state.entry(state).or_default() += 1;
    match left_by(s) {
        Some(Mode::Bypass) => sessions.bypass += 1,
        Some(Mode::Local) => sessions.local += 1,
        Some(Mode::Return) => sessions.returned += 1,
        Some(Mode::Auto) | None => {}
    }
}

impl Engine {
    /// Returns the snapshot from numbers that are kept anyway: no session is looked at.
    pub(super) fn snapshot(&self) -> Snapshot {
        let messages = self.core.machine.stats();
        let attached = self.core.host.plane.agent.attached().into_iter();
        Snapshot {
            started: self.gauges.started,
            certificates: self.gauges.certificates.clone(),
            interfaces: attached
                .map(|at| (at.interface, at.index.is_some()))
                .collect(),
            sessions: SessionGauges {
                room: self.core.host.plane.agent.room().into(),
                ..self.gauges.sessions()
            },
            packets: self.core.host.plane.agent.counters(),
            changes: Changes {
                under_way: messages.changes as u64,
                waiting: self.chain_requests.waiting(),
                ended: self.core.tally.counts(),
            },
            ports: self.core.host.ports.counts(),
            peers: self.peers(),
            store: self.core.host.store_gauges(),
            chain_neighbours: self.core.host.plane.agent.hops().len() as u64,
            control: self.core.host.plane.control.counters(),
            messages,
            malformed: self.core.host.plane.state.malformed,
            shim: self.core.host.plane.proxy.stats(),
            api: crate::api::counts(),
        }
    }
}
