//! The daemon's state at a glance.

use dysco_api::{Mode, PeerReport, SessionCounts, StatusReport};
use dysco_common::view::{ChainState, View};
use dysco_control::{DownReason, PeerStatus};

use super::Engine;
use super::listing::{is_in_chain, left_by};

impl Engine {
    /// Returns the daemon's state.
    pub(super) fn status(&self) -> StatusReport {
        let mut sessions = SessionCounts::default();
        let all = self
            .core
            .host
            .plane
            .agent
            .sessions_in(0..self.core.host.plane.agent.capacity());
        for (slot, s) in all.filter(|(_, s)| s.is_current()) {
            sessions.live += u64::from(!s.has_ended());
            sessions.adopted += u64::from(s.is_adopted());
            let view = s.view();
            let left = left_by(&s);
            sessions.removed += u64::from(left.is_some());
            match left {
                Some(Mode::Bypass) => sessions.bypass += 1,
                Some(Mode::Return) => sessions.returned += 1,
                Some(Mode::Local) => sessions.local += 1,
                Some(Mode::Auto) | None => {}
            }
            let new_path = view.new_path();
            let chained = new_path.is_some_and(|route| route.chain != ChainState::None);
            let through =
                chained && is_in_chain(&s, self.core.host.plane.agent.chain_of(slot).as_deref());
            sessions.chained += u64::from(through);
            match view {
                View::Opening | View::Tracked | View::Adopted => sessions.tracked += 1,
                view if view.is_between_paths() => sessions.changing += 1,
                // Its chain has left the session, which passes directly from end to end.
                View::NewPath(route) if !through && left.is_none() && route.relay.is_none() => {
                    sessions.tracked += 1;
                }
                _ => {}
            }
        }
        let shim = self.core.host.plane.proxy.stats();
        StatusReport {
            host: self.core.host.plane.config.host.name.clone(),
            addresses: self.core.host.plane.config.host.addresses.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.core.host.plane.started.elapsed().as_secs(),
            interfaces: self.core.host.plane.interface_reports(),
            sessions,
            peers: self.peers().iter().map(peer).collect(),
            shim_socket: Some(self.core.host.plane.config.shim.socket.clone()),
            shim_processes: shim.processes,
            pairs: shim.pairs,
            counters: self.snapshot().listed(),
            keys: Some(self.reload.keys()),
            fleet: self.core.host.store_report(),
        }
    }
}

fn peer(status: &PeerStatus) -> PeerReport {
    PeerReport {
        address: status.address,
        up: status.up,
        rtt_us: status.rtt.map(|rtt| rtt.as_micros() as u64),
        reason: status.reason.as_ref().map(DownReason::cause),
    }
}
