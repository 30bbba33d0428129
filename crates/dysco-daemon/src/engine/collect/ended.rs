//! Ends of sessions, told to the changes of these sessions and to operators.

use dysco_common::Session;
use dysco_common::view::View;
use dysco_proto::{HostEvent, Subsession};

use crate::engine::plane::Notice;
use crate::engine::{ChainUpdates, Plane, measure};

impl ChainUpdates {
    /// Handles the event that both FINs of a session have passed, or a reset.
    pub(in crate::engine) fn session_ended(&self, plane: &mut Plane, slot: u32, reset: bool) {
        let s = plane.agent.session(slot);
        let view = s.view();
        if reset && plane.collector.reset.insert(slot, s.created_ns) == Some(s.created_ns) {
            return;
        }
        // After the cutoff, the acknowledgements of the FINs show that all data is drained. Before
        // the cutoff, and after a reset, there is nothing to wait for.
        let unchanged = view.is_unchanged() || view == View::Returned;
        // A change of its chain ends by itself, or when the entry is collected: one end must not
        // leave a path that the other is about to take and sends its last packets on.
        let ends = unchanged && !self.leads_from(slot);
        if reset || ends {
            let opened = s.life.opened_here != 0;
            let of = if opened {
                measure::opened
            } else {
                measure::accepted
            };
            let names = [Some(s.key), s.alias()];
            // A younger session may have the name, and the end of this one is not that one's.
            let names = names.iter().flatten().map(of);
            let names: Vec<_> = names.filter(|name| plane.is_named(&s, name)).collect();
            // A host of its chain may be an anchor on this side: see `dysco_proto::tail`.
            let between = s.is_chained() && s.joined_to().is_some() && !opened;
            let inner = between.then(|| measure::opened(&s.name()));
            for subsession in names.into_iter().chain(inner) {
                plane.tell_machine(HostEvent::SessionGone { subsession });
            }
        }
        if view.is_relayed() {
            let both = [Some(slot), plane.linked(slot, &s)].into_iter().flatten();
            let both: Vec<u32> = both.collect();
            both.iter()
                .for_each(|slot| plane.agent.end_with_relay(*slot));
            if reset {
                self.relay_was_reset(plane, &both);
            }
        }
        plane.tell_over(&s);
        // A relayed session is reported once.
        if s.is_beside_relay() {
            return;
        }
        if view.is_relayed() || view.route().is_some() {
            // A relayed session has the name of the accepted one.
            let other = plane.linked(slot, &s).filter(|_| s.life.opened_here != 0);
            let (slot, s) = other.map_or((slot, s), |o| (o, plane.agent.session(o)));
            let id = plane.session_id(slot, &s);
            let how = if reset { "was reset" } else { "has ended" };
            plane.report("closed", Some(id), format!("{:?} {how}", s.key));
        }
    }
}

impl Plane {
    /// True unless this name of a session leads to another one by now.
    fn is_named(&self, s: &Session, name: &Subsession) -> bool {
        // Another path of the session has its start time as well.
        let found = self.find(name);
        found.is_none_or(|slot| self.agent.session(slot).created_ns == s.created_ns)
    }

    /// Returns the entry that a session is joined to, if that entry is joined back to it.
    pub(in crate::engine) fn linked(&self, slot: u32, s: &Session) -> Option<u32> {
        let other = s.joined_to()?;
        let back = self.agent.session(other).joined_to();
        (back == Some(slot)).then_some(other)
    }

    /// Notifies the machine that a session was collected which no change of this host held.
    pub(super) fn tell_elsewhere(&mut self, s: &Session) {
        if !s.is_current() || s.view().is_tombstone() {
            return;
        }
        let names = [Some(s.key), s.alias()];
        let names = names.iter().flatten().map(measure::opened);
        self.notices.extend(names.map(Notice::Collected));
    }
}
