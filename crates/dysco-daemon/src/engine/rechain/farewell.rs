//! The end of a path for the firewalls on it, which would know it for days.
//!
//! Who gives a path up says so to the next host on it, and each does: no answer is waited
//! for, and one of the two may be lost. That host may not have given it up itself, but
//! drops this, whatever it has of the session. What it takes from a session that nobody
//! has heard of the change of yet is nothing: this host passes nothing on by the path.

use dysco_common::Session;
use dysco_common::session::part;

use super::open::shown_next;
use crate::engine::{Engine, packets, raw};

impl Engine {
    /// Ends the path of a tombstone, if it was more than asked for. One by the session's
    /// own five-tuple is not ended: this host's own connection tracking has the session
    /// by that.
    pub(super) fn end_for_firewalls(&self, slot: u32) {
        let s = self.agent.session(slot);
        if s.new_in == 0 || !self.agent.has_path(slot) {
            return;
        }
        for packet in packets::path_ends(&s, last(&s)) {
            if let Err(error) = raw::send(&packet, s.path.remote()) {
                // The next host says it, too.
                tracing::debug!(path = ?s.path, %error, "cannot end a path for firewalls");
            }
        }
    }
}

/// The highest number that the path's firewalls have seen of this end, as this has it: of
/// a path that was only opened, what they let go ahead.
fn last(s: &Session) -> u32 {
    if s.two.part == part::NEXT && s.new_out == 0 {
        shown_next(s)
    } else {
        s.snd_max
    }
}
