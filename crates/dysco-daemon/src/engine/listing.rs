//! Contents of the local API's listings.

use std::time::Duration;

use dysco_api::{
    ENDED, Failure, FailureCode, Filter, Mode, PathReport, Removable, Role, SessionId, SessionName,
    SessionReport,
};
use dysco_common::view::{ChainState, Change, Leaver, Removal, View};
use dysco_common::{Element, Session};
use dysco_explain::Cause;
use dysco_proto::Reason;
use dysco_proxy::Pair;

use super::{Plane, clock};

impl Plane {
    pub(super) fn session_id(&self, slot: u32, s: &Session) -> SessionId {
        // The stamp counts units of about a millisecond: no slot is used twice in that time.
        SessionId::new(slot, (s.created_ns >> 20) as u32)
    }

    pub(super) fn slot_named(&self, name: &SessionName) -> Option<u32> {
        match name {
            SessionName::Id(id) => {
                let id = &self.names.now(*id);
                let slot = id.slot();
                let fits = slot < self.agent.capacity();
                (fits && self.session_id(slot, &self.agent.session(slot)) == *id).then_some(slot)
            }
            // The host of a NAT knows one session by two five-tuples.
            SessionName::Tuple { local, remote } => self
                .agent
                .find_called(&dysco_common::FlowKey::new(*local, *remote)),
        }
    }

    /// Returns the listed values of a session.
    pub(super) fn report_of(&self, slot: u32, s: &Session) -> SessionReport {
        SessionReport {
            history: self.history.of(self.session_id(slot, s)),
            ..self.brief_report(slot, s, clock::boot_time())
        }
    }

    /// Returns the same without the history. `boot` is the time since the machine began.
    pub(super) fn brief_report(&self, slot: u32, s: &Session, boot: Duration) -> SessionReport {
        let id = self.session_id(slot, s);
        let pair = self.proxy.of(&s.key);
        let pair = pair.as_ref();
        let view = s.view();
        let other = pair.map(|p| if p.a.key == s.key { p.b.key } else { p.a.key });
        let other = other.and_then(|key| self.agent.find(&key));
        // By the relay's own entry, where the path has another entry.
        let joined = match s.relayed_by() {
            Some(relay) => self.linked(relay, &self.agent.session(relay)),
            None => self.linked(slot, s),
        };
        let chained = passes_chain(s);
        let hosts = self.hosts_of(slot, s);
        let mode = self.mode_of(s, joined);
        let changed = (mode.is_some() || chained) && !view.is_tombstone();
        // Data sent to a relayed session arrives by the other entry.
        let relayed = joined.filter(|_| view.is_relayed());
        let bytes_out = relayed.map_or(s.bytes_out, |other| self.agent.session(other).bytes_in);
        SessionReport {
            namespace: None,
            id,
            local: s.key.local(),
            remote: s.key.remote(),
            state: state_of(s, hosts.as_deref()).to_owned(),
            ended: s.has_ended(),
            role: role_of(s, pair),
            adopted: s.is_adopted(),
            since_s: boot
                .saturating_sub(Duration::from_nanos(s.created_ns))
                .as_secs_f64(),
            bytes_in: s.bytes_in,
            bytes_out,
            path: changed.then(|| PathReport::of(&s.path)),
            opened_as: s.is_behind_nat().then(|| PathReport::of(&s.name())),
            chain: hosts.filter(|hosts| !hosts.is_empty()),
            mode,
            pair: joined
                .or(other)
                .map(|slot| self.session_id(slot, &self.agent.session(slot)))
                .map(|id| self.names.now(id)),
            proxy: pair.map(|p| self.proxy.relayer(p)),
            label: pair.and_then(|p| self.proxy.label(p.id.pid, &p.a.key)),
            tuned: match super::tuning::end::no_socket(s) {
                None => self.tunings.listed(id),
                Some(_) => Vec::new(),
            },
            services: self.has_services(s),
            removable: self.removable(s, pair),
            history: Vec::new(),
        }
    }

    /// Returns the chain of a session that passes one. Only the host that opened it knows the hosts.
    fn hosts_of(&self, slot: u32, s: &Session) -> Option<Vec<Element>> {
        passes_chain(s).then(|| self.agent.chain_of(slot)).flatten()
    }

    /// Returns the word by which `dyscoctl sessions` lists the state of a session.
    pub(super) fn listed_state(&self, slot: u32, s: &Session) -> &'static str {
        match s.has_ended() {
            true => ENDED,
            false => state_of(s, self.hosts_of(slot, s).as_deref()),
        }
    }

    /// Returns how a proxy has left a session, if one has. `joined` is the entry beside it, if this
    /// host relays the session.
    fn mode_of(&self, s: &Session, joined: Option<u32>) -> Option<Mode> {
        let view = s.view();
        let returns = s.two.returns != 0
            || joined.is_some_and(|other| self.agent.session(other).two.returns != 0);
        let mode = match view {
            View::Relayed(_) | View::Changing(Change::RelayTwoPaths(_)) if returns => {
                Some(Mode::Return)
            }
            _ => mode_of(view).filter(|_| !s.is_chained()),
        };
        // A proxy may have left the session before it was given the chain.
        let mode = mode.or(s.was_bypassed().then_some(Mode::Bypass));
        mode.or(s.is_beside_relay().then_some(Mode::Local))
    }

    /// Returns true if services are in a session, or have left and added bytes.
    fn has_services(&self, s: &Session) -> bool {
        s.has_detour() || self.agent.packet_services(s).is_some()
    }

    pub(super) fn removable(&self, s: &Session, pair: Option<&Pair>) -> Removable {
        let no = |reason: Cause| Removable::no(vec![reason]);
        match (s.view(), pair) {
            (view, _) if s.has_ended() && !view.is_tombstone() => no("it has ended".into()),
            (_, None) if super::chain_updates::opener::passes(s) => Removable::Yes,
            (view @ (View::Left(_) | View::Relayed(_)), _) => no(who_has_left(view).into()),
            (_, None) => Removable::no(unrelayed(s)),
            (_, Some(pair)) => match self.seeming_objections(pair).as_slice() {
                // A session that has only not been heard is asked for a packet first.
                [] | [Reason::NotHeard(_), ..] => Removable::Yes,
                reasons => Removable::no(reasons.iter().map(Reason::cause).collect()),
            },
        }
    }
}

/// Returns true if the filter matches the session of a slot. No filter looks at the history.
pub(super) fn shows(here: &Plane, slot: u32, filter: &Filter) -> bool {
    let session = here.agent.session(slot);
    filter.matches(&here.brief_report(slot, &session, clock::boot_time()))
}

/// Returns the slots of the sessions with these names.
///
/// # Errors
/// If this host has no session of a name.
pub(super) fn named(here: &Plane, names: &[SessionName]) -> Result<Vec<u32>, Failure> {
    names
        .iter()
        .map(|name| here.slot_named(name).ok_or_else(|| no_such_session(name)))
        .collect()
}

pub(super) fn no_such_session(name: &SessionName) -> Failure {
    Failure {
        code: FailureCode::NotFound,
        what: format!("find the session '{name}'"),
        why: "this host has no such session".into(),
        hint: "see 'dyscoctl sessions' for those it has".into(),
    }
}

/// Returns the mode by which a proxy has left a session. A relayed session has two entries, of
/// which only the accepted one has a mode: counts have the session once.
pub(super) fn left_by(s: &Session) -> Option<Mode> {
    let view = s.view();
    let counts = match view {
        View::NewPath(route) if route.relay.is_none() => route.bypassed,
        View::NewPath(_) | View::Relayed(_) | View::Left(_) => s.life.opened_here == 0,
        View::Returned => true,
        _ => false,
    };
    mode_of(view).filter(|_| counts)
}

/// Returns a text that says who has left whom, for an entry that is over here or relays.
fn who_has_left(view: View) -> &'static str {
    match view {
        View::Left(Leaver::Chain) => "the session has left this host",
        _ => "the proxy has left it",
    }
}

/// Returns the reasons against a removal from a session that no proxy here relays, the decisive one
/// first. Services keep a session as it is, and the shim tells nothing of a silent one.
fn unrelayed(s: &Session) -> Vec<Cause> {
    let served = s.has_detour() || s.view() == View::Held;
    let services = served.then(super::services::words::in_the_way);
    services.into_iter().chain([no_proxy(s)]).collect()
}

/// Returns the reason against a removal from a session that no proxy here relays.
fn no_proxy(s: &Session) -> Cause {
    match super::chain_updates::opener::opens(s) && s.chain_state() == ChainState::Open {
        true => Cause::new("no proxy of this host relays it").hint(
            "change its chain from here (remove-middlebox HOST, insert-middlebox, reconfigure)",
        ),
        false => Cause::new("no proxy of this host relays it, as far as a shim has told"),
    }
}

/// Returns true if a session was given a chain, which may have no hosts by now.
fn passes_chain(s: &Session) -> bool {
    (s.view().route()).is_some_and(|path| path.chain != ChainState::None)
}

/// Returns the listed state of a session that has not ended. `hosts` is its chain, if known.
fn state_of(s: &Session, hosts: Option<&[Element]>) -> &'static str {
    let chained = passes_chain(s);
    match s.chain_state() {
        ChainState::Opening if chained => "opening",
        _ if chained && is_in_chain(s, hosts) => "chained",
        _ => s.view().meaning().listed,
    }
}

/// Returns true if a session of which this host has a subsession passes any host between its ends.
/// The host that opened it knows its chain. A host of the chain has two entries. The host that
/// accepted it sees whether it comes from the other end directly.
pub(super) fn is_in_chain(s: &Session, chain: Option<&[Element]>) -> bool {
    match chain {
        Some(elements) => !elements.is_empty(),
        None => s.joined_to().is_some() || s.path.remote != s.name().remote,
    }
}

/// Returns the mode by which a proxy has left, or is leaving, a session in this state.
fn mode_of(view: View) -> Option<Mode> {
    view.meaning().mode.map(|mode| match mode {
        Removal::Bypass => Mode::Bypass,
        Removal::Local => Mode::Local,
        Removal::Return => Mode::Return,
    })
}

/// Returns the role of this host in a session.
fn role_of(s: &Session, pair: Option<&Pair>) -> Role {
    match (s.view(), pair) {
        (View::Left(_) | View::Relayed(_) | View::Changing(Change::RelayTwoPaths(_)), _)
        | (_, Some(_)) => Role::Middlebox,
        _ if s.is_beside_relay() => Role::Middlebox,
        _ if s.is_chained() && s.joined_to().is_some() => Role::Middlebox,
        _ if s.life.opened_here != 0 => Role::LeftAnchor,
        _ => Role::RightAnchor,
    }
}

#[cfg(test)]
mod tests {
    use dysco_common::session::{Life, Two};
    use dysco_common::view::Case;
    use dysco_common::{FlowKey, State};

    use super::*;

    fn key(remote: [u8; 4], port: u16) -> FlowKey {
        FlowKey::new(([10, 0, 3, 1], 9000).into(), (remote, port).into())
    }

    /// Returns the entry of a server's host for a session that came by this host.
    fn accepted_from(remote: [u8; 4]) -> Session {
        Session {
            state: State::NewPath as u32,
            key: key([10, 0, 1, 1], 40_000),
            path: key(remote, 61_000),
            two: Two {
                chained: 2,
                ..Two::default()
            },
            ..Session::default()
        }
    }

    /// Each listed state has a word that a filter accepts.
    #[test]
    fn every_word_for_a_state_is_one_that_a_filter_knows() {
        for case in Case::ALL.iter().filter(|case| **case != Case::Free) {
            let word = case.meaning().listed;
            assert!(dysco_api::STATES.contains(&word), "{word}");
        }
    }

    #[test]
    fn a_session_in_a_chain_is_listed_by_its_chain() {
        let passes = accepted_from([10, 0, 2, 1]);
        assert_eq!(state_of(&passes, None), "chained");
        assert_eq!(state_of(&passes, Some(&[])), "new-path");
    }

    #[test]
    fn only_what_passes_a_host_between_is_in_a_chain() {
        let firewall = [10, 0, 2, 1];
        assert!(is_in_chain(&accepted_from(firewall), None));
        let direct = accepted_from([10, 0, 1, 1]);
        assert!(!is_in_chain(&direct, None));
        // On the host that opened it, after its chain has left it and before.
        let opened = accepted_from([10, 0, 1, 1]);
        assert!(!is_in_chain(&opened, Some(&[])));
        assert!(is_in_chain(
            &opened,
            Some(&[Element::Host(firewall.into())])
        ));
        // On a host of the chain whose neighbours are the two ends.
        let between = Session {
            joined: 8,
            ..direct
        };
        assert!(is_in_chain(&between, None));
    }

    #[test]
    fn who_opened_a_session_in_a_chain_hears_that_it_can_be_changed() {
        let opened = |chained| {
            let mut s = accepted_from([10, 0, 2, 1]);
            (s.life.opened_here, s.two.chained) = (1, chained);
            s
        };
        assert!(
            no_proxy(&opened(2))
                .hint
                .is_some_and(|hint| hint.contains("change its chain"))
        );
        for other in [opened(0), accepted_from([10, 0, 2, 1])] {
            assert!(
                no_proxy(&other)
                    .to_string()
                    .contains("as far as a shim has told")
            );
        }
    }

    #[test]
    fn services_are_the_decisive_reason_against_a_removal() {
        let in_state = |state: State| Session {
            state: state as u32,
            ..Session::default()
        };
        let reasons = unrelayed(&in_state(State::Detour));
        assert_eq!(reasons.len(), 2, "{reasons:?}");
        assert_eq!(
            reasons[0],
            super::super::services::words::in_the_way(),
            "{reasons:?}"
        );
        assert_eq!(unrelayed(&in_state(State::Tracked)).len(), 1);
    }

    #[test]
    fn what_a_proxy_has_left_counts_once_and_by_its_way() {
        let entry = |state: State, opened_here: u8| Session {
            state: state as u32,
            key: key([10, 0, 1, 1], 40_000),
            life: Life {
                opened_here,
                ..Life::default()
            },
            ..Session::default()
        };
        for (state, way) in [
            (State::Tombstone, Mode::Bypass),
            (State::Relay, Mode::Local),
        ] {
            assert_eq!(left_by(&entry(state, 0)), Some(way));
            assert_eq!(left_by(&entry(state, 1)), None, "counted twice");
        }
        let anchor = Session {
            path: key([10, 0, 1, 1], 61_000),
            ..entry(State::NewPath, 0)
        };
        assert_eq!(left_by(&anchor), Some(Mode::Bypass));
        // A chain, and no proxy, has left these.
        assert_eq!(left_by(&accepted_from([10, 0, 1, 1])), None);
        let forgotten = Session {
            state: State::Tombstone as u32,
            ..accepted_from([10, 0, 2, 1])
        };
        assert_eq!(left_by(&forgotten), None);
        assert_eq!(
            who_has_left(forgotten.view()),
            "the session has left this host"
        );
        let by_proxy = entry(State::Tombstone, 0);
        assert_eq!(who_has_left(by_proxy.view()), "the proxy has left it");
        assert_eq!(left_by(&entry(State::Tracked, 0)), None);
    }
}
