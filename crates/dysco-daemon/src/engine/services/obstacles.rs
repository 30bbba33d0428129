//! Obstacles to services in a session itself, whichever the services are.

use dysco_common::Session;
use dysco_common::session::offer;
use dysco_common::view::{ChainState, Change, View};
use dysco_explain::Cause;

use super::choice::busy;
use crate::engine::Plane;
use crate::engine::tuning::end::no_socket;

/// Returns all reasons for which no service can enter a session, the decisive one first.
pub(super) fn obstacles(plane: &Plane, slot: u32, s: &Session) -> Vec<Cause> {
    let mut all: Vec<Cause> = no_socket(s).into_iter().collect();
    all.extend(elsewhere(plane, slot, s));
    if offer::are_foreign(s.local.flags, s.remote.flags) {
        all.push("it uses an option that binds it to its two ends: TCP-MD5, TCP-AO, MPTCP".into());
    }
    if !plane.config.host.addresses.contains(&s.key.local().ip()) {
        all.push(
            Cause::new("its end is not on this host").hint("ask on the host of one of its ends"),
        );
    }
    if plane.config.host.addresses.contains(&s.key.remote().ip()) {
        all.push("both of its ends are on this host, so that its packets take no interface".into());
    }
    all
}

/// Returns the reason for which the session's packets do not pass here unchanged.
fn elsewhere(plane: &Plane, slot: u32, s: &Session) -> Option<Cause> {
    if s.has_ended() {
        return None;
    }
    match s.view() {
        View::Tracked | View::NewPath(_) if plane.holds_chain_of(slot) => Some(changes()),
        View::Tracked | View::Adopted if s.is_chained() => Some(changes()),
        View::Tracked | View::Held => None,
        View::Adopted => Some(
            Cause::new("no packet of it has been seen since dyscod adopted it")
                .hint("ask again once it has moved"),
        ),
        View::Detoured if plane.agent.may_enter_detour(slot) => None,
        View::Opening => Some(Cause::new("it is not open yet").hint("ask again once it is open")),
        View::NewPath(_) if s.is_adopted() => Some(
            "it takes a path of its own, and dyscod has not seen the numbers it began with".into(),
        ),
        View::NewPath(route) if route.chain == ChainState::Opening => {
            Some(Cause::new("it is not open yet").hint("ask again once it is open"))
        }
        View::NewPath(route) if route.relay.is_some() || route.joined.is_some() => Some(
            Cause::new("this host passes it on, and has no end of it")
                .hint("ask on the host of one of its ends"),
        ),
        View::NewPath(_) if plane.agent.may_enter_detour(slot) => None,
        View::NewPath(_) if s.detours_before_path() => Some(busy()),
        View::NewPath(_)
        | View::Changing(Change::Joining | Change::Switching(_) | Change::Passing(_)) => {
            Some(changes())
        }
        View::Changing(Change::TwoPaths(_) | Change::RelayTwoPaths(_)) => {
            Some(Cause::new("a proxy is leaving it").hint("ask again in a moment"))
        }
        View::Returned => Some("a proxy has left it, and its replies take another path".into()),
        View::Detoured => Some(busy()),
        View::Free | View::Closed | View::Relayed(_) | View::Left(_) => None,
    }
}

fn changes() -> Cause {
    Cause::new("its chain is being changed").hint("ask again in a moment")
}
