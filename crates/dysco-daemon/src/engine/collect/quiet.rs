//! Sessions that no socket of this host ends: silence ends them.

use std::time::{Duration, Instant};

use dysco_common::Session;
use dysco_common::view::View;

use super::Ending;
use crate::engine::retention::UNCHANGED;
use crate::engine::{ThisHost, held};

/// Silence after which a crowded table gives up a session that nobody changed and that may have no
/// end here. The session goes on, and cannot be changed.
const QUIET_CROWDED: Duration = Duration::from_secs(300);

/// Silence after which the host that opened a session is asked whether the session still passes
/// here. A host that ordered this one to forget it may have known only one of its paths.
const SILENT: Duration = Duration::from_secs(10);

/// Time by which a session's socket is listed, if the session has one here.
const SEEN_BY: Duration = Duration::from_secs(60);

/// Session that no socket of this host ends.
enum Quiet {
    /// The session passes through this host.
    Passes,
    /// The session has a chain that begins or ends here, and no socket of it was seen.
    Led,
    /// Nobody changed the session, and no socket of it was seen.
    Unseen,
}

impl ThisHost {
    /// Looks at a session that passes this host and has no socket here. Ends that vanish send
    /// nothing: a session that is silent for long is taken for dead.
    pub(super) fn sweep_quiet(&mut self, slot: u32, s: &Session, now: Instant, crowded: bool) {
        let Some(quiet) = self.may_be_quiet(slot, s) else {
            self.plane.collector.quiet.remove(&slot);
            return;
        };
        let relay_idle = self.plane.config.removal.relay_idle;
        let idle = match quiet {
            Quiet::Unseen if crowded => relay_idle.clamp(SEEN_BY, QUIET_CROWDED),
            Quiet::Unseen | Quiet::Led => relay_idle.max(SEEN_BY),
            Quiet::Passes => relay_idle,
        };
        let passes = !matches!(quiet, Quiet::Unseen);
        let by_chain = matches!(quiet, Quiet::Passes) && s.is_chained();
        // One direction may have been closed before the session came to this host.
        let half_closed = s.life.fin_in | s.life.fin_out != 0;
        let asks = if half_closed { UNCHANGED } else { SILENT };
        let fresh = Ending::new(s, self.plane.activity(slot, s), now + asks);
        let quiet = self.plane.collector.quiet.entry(slot).or_insert(fresh);
        if (quiet.created_ns, quiet.activity) != (fresh.created_ns, fresh.activity) {
            *quiet = fresh;
        }
        let quiet = *quiet;
        if by_chain && s.life.opened_here == 0 && quiet.due <= now {
            self.chain_updates.ask_whether_over(&self.plane, s);
            // The interval doubles each time.
            let again = now + now.saturating_duration_since(quiet.since);
            self.plane.collector.quiet.insert(
                slot,
                Ending {
                    due: again,
                    ..quiet
                },
            );
        }
        if now.saturating_duration_since(quiet.since) < idle {
            return;
        }
        if passes {
            let id = self.plane.session_id(slot, s);
            let text = format!("{:?} was silent for {} s", s.key, idle.as_secs());
            self.plane.report("closed", Some(id), text);
        }
        self.collect(slot, s);
    }

    /// Returns the kind of session if no socket of this host ends it, as far as can be seen.
    fn may_be_quiet(&self, slot: u32, s: &Session) -> Option<Quiet> {
        let view = s.view();
        // The other path of a session is collected with the one that the session takes.
        if !s.is_current() && !view.is_relayed() {
            return None;
        }
        if view.is_relayed() || s.is_chained() && s.joined_to().is_some() {
            return Some(Quiet::Passes);
        }
        let of_two = !s.is_current() || s.other_path().is_some();
        if of_two || s.relay != 0 || self.sockets.had_one(slot, s.created_ns) {
            return None;
        }
        match view {
            View::Tracked | View::Adopted if !self.is_changing(slot) => Some(Quiet::Unseen),
            // A host that leads a session to a server without an agent, or opens it for another; or
            // the session's socket vanished while no daemon listed sockets.
            View::NewPath(_) | View::Returned | View::Detoured if self.sockets.are_listed() => {
                Some(Quiet::Led)
            }
            _ => None,
        }
    }

    /// Returns true if a change has this entry.
    pub(in crate::engine) fn is_changing(&self, slot: u32) -> bool {
        let mut held = self.proxy_changes.held.values().flat_map(held::Held::slots);
        let of_chain = self.chain_updates.has(slot) || self.chain_updates.leads_from(slot);
        of_chain || held.any(|(held, _)| held == slot)
    }
}
