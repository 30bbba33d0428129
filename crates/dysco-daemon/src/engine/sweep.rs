//! Work that the engine does from time to time.

use std::time::Instant;

use super::Engine;
use super::inputs::SWEEP_PARTS;

impl Engine {
    /// Does the work of one tick. `part` is the part of the table whose turn it is.
    pub(super) fn sweep(&mut self, part: u32) {
        self.sweep_part(part);
        self.core.host.moves.sweep_moves(&mut self.core.host.plane);
        self.chain_requests.sweep_asks(&mut self.core);
        self.chain_requests.wake_chains(&mut self.core);
        let plane = &mut self.core.host.plane;
        plane.monitors.sweep(&plane.agent);
        self.reload.warn_of_keys(Instant::now());
    }

    /// Collects ended sessions in one part of the table. With the first part, starts waiting work.
    fn sweep_part(&mut self, part: u32) {
        self.core.host.plane.flush_sessions();
        self.core
            .host
            .chain_updates
            .close_due_paths(&self.core.host.plane);
        if part == 0 {
            let host = &mut self.core.host;
            host.flush_store();
            host.services.end_runs(&host.plane);
            host.services.sweep_packets(&host.plane);
            host.services.wake_resting(&mut host.plane);
            self.core.host.plane.agent.release_quarantine();
            self.core.host.plane.sweep_interfaces();
            self.core
                .host
                .on_link
                .keep_neighbours(&self.core.host.plane);
            self.core.host.sockets.sweep_sockets(&self.core.host.plane);
            self.removals.removals_due(&mut self.core);
            self.removals.sweep_automatic(&mut self.core);
            self.core
                .host
                .chains
                .sweep_chains(&mut self.core.host.plane);
        }
        let counted = self.core.host.sweep_table(part, SWEEP_PARTS);
        self.gauges.counted(part, counted);
        self.core.host.ports.ask_about_ports(&self.core.host.plane);
    }
}
