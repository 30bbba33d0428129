//! Choice of the sessions whose sockets a request concerns.

use dysco_api::{Failure, FailureCode, SessionId, Tune, TuneAction, TuneOptions};
use dysco_common::{FlowKey, Session};
use dysco_explain::Cause;
use dysco_proxy::tuning::Wish;

use super::end::no_socket;
use crate::engine::Plane;
use crate::engine::listing::{named, shows};

/// A session that a request concerns.
pub(super) struct Target {
    pub session: SessionId,
    /// Addresses of the session; local is this host's end.
    pub key: FlowKey,
    /// Wish for the socket, or the reason for which there is none.
    pub wish: Result<Wish, Cause>,
}

/// Returns the sessions that a request concerns. A filter selects none that are over, and only
/// sessions with tuned sockets if these are to be put back.
pub(super) fn targets(here: &Plane, request: &Tune) -> Result<Vec<Target>, Failure> {
    if request.action == TuneAction::Set(TuneOptions::default()) {
        let cause = Cause::new("the request names no option").hint("name one to set");
        return Err(Failure::new(
            FailureCode::BadRequest,
            cause.of("tune sessions"),
        ));
    }
    let mut slots = match request.sessions.as_slice() {
        [] if request.all || !request.filter.is_empty() => selected(here, &request.action),
        names => named(here, names)?,
    };
    slots.retain(|slot| request.filter.is_empty() || shows(here, *slot, &request.filter));
    slots.sort_unstable();
    slots.dedup();
    let targets = slots.into_iter().map(|slot| target(here, slot, request));
    Ok(targets.collect())
}

fn selected(here: &Plane, action: &TuneAction) -> Vec<u32> {
    let all = here.agent.sessions_in(0..here.agent.capacity());
    let wanted = |(slot, s): &(u32, Session)| {
        let lives = s.is_current() && !s.has_ended() && !s.view().is_tombstone();
        let tuned = || here.tunings.get(here.session_id(*slot, s)).is_some();
        lives && (*action != TuneAction::Restore || tuned())
    };
    all.filter(wanted).map(|(slot, _)| slot).collect()
}

fn target(here: &Plane, slot: u32, request: &Tune) -> Target {
    let s = here.agent.session(slot);
    let session = here.session_id(slot, &s);
    let known = here.tunings.get(session);
    let wish = match (no_socket(&s), &request.action, known) {
        (Some(cause), _, _) => Err(cause),
        (None, TuneAction::Set(options), _) => Ok(Wish::Set(options.clone())),
        (None, TuneAction::Restore, Some(entry)) => Ok(Wish::Restore {
            cookie: entry.cookie,
            set: entry.set.clone(),
        }),
        (None, TuneAction::Restore, None) => Err(Cause::new("dyscod has not tuned its socket")
            .hint("see 'dyscoctl tune --list' for those that it has tuned")),
    };
    Target {
        session,
        key: s.key,
        wish,
    }
}
