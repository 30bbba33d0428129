//! Sessions by the host that opened them: this one, or another that decides about their chains.

use dysco_common::Session;
use dysco_common::view::Route;
use dysco_proto::Subsession;

use crate::engine::{Plane, measure};

impl Plane {
    /// Returns the session as the host that opened it knows it, if that is another host.
    pub(in crate::engine) fn opened_elsewhere(&self, s: &Session) -> Option<Subsession> {
        let passes = s.joined_to().is_some() && !s.view().is_relayed();
        match (s.life.opened_here != 0, passes) {
            (true, false) => None,
            (true, true) => Some(measure::opened(&s.name())),
            (false, _) => Some(measure::accepted(&s.name())),
        }
    }

    /// Returns the slots of the sessions that pass this host by a chain, on the side from which
    /// they come.
    pub(in crate::engine) fn passing_here(&self) -> Vec<u32> {
        let comes = |s: &Session| s.life.opened_here == 0 && s.is_current();
        let all = self.agent.sessions().into_iter();
        all.filter(|(_, s)| comes(s) && passes(s))
            .map(|(slot, _)| slot)
            .collect()
    }
}

/// Returns true if this is a live session's only entry, on the host that opened it.
pub(in crate::engine) fn opens(s: &Session) -> bool {
    has_opened(s) && !s.has_ended()
}

/// Returns true if this is a session's only entry, on the host that opened it, even if it has
/// ended.
pub(in crate::engine) fn has_opened(s: &Session) -> bool {
    s.life.opened_here != 0 && s.is_current() && (s.joined_to().is_none() || s.view().is_relayed())
}

/// Returns true if this is one of the two entries of a session that passes this host by its chain.
pub(in crate::engine) fn passes(s: &Session) -> bool {
    has_passed(s) && !s.has_ended()
}

/// Returns true if this is such an entry, or was until its session ended.
pub(in crate::engine) fn has_passed(s: &Session) -> bool {
    s.view().route().is_some_and(Route::passes_on)
}
