//! Work that the engine does from time to time.

use std::time::Instant;

use super::{Engine, SWEEP_PARTS};

impl Engine {
    /// Does the work of one tick. `part` is the part of the table whose turn it is.
    pub(super) fn sweep(&mut self, part: u32) {
        self.sweep_part(part);
        self.host.sweep_moves();
        self.sweep_asks();
        self.wake_chains();
        self.host.sweep_monitors();
        self.reload.warn_of_keys(Instant::now());
        self.turns.look();
    }

    /// Collects ended sessions in one part of the table. With the first part, starts waiting work.
    fn sweep_part(&mut self, part: u32) {
        self.host.history.flush();
        self.host.say_farewells();
        if part == 0 {
            self.host.agent.release_quarantine();
            self.host.sweep_interfaces();
            self.host.keep_neighbours();
            self.host.sweep_sockets();
            self.removals_due();
            self.sweep_automatic();
            self.host.sweep_chains();
        }
        let counted = self.host.sweep_table(part, SWEEP_PARTS);
        self.gauges.counted(part, counted);
        self.host.ask_about_ports();
    }
}
