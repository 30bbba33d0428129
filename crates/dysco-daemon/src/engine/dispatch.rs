//! The way of an answer to the owner that it concerns.

use dysco_proto::{ChangeId, Subsession};

use super::Engine;
use super::answers::Answer;
use super::host::ThisHost;

impl Engine {
    pub(super) fn take_answer(&mut self, answer: Answer) {
        let ThisHost {
            plane,
            proxy_changes,
            chain_updates,
            chains,
            moves,
            returns,
            ports,
            services,
            ..
        } = &mut self.core.host;
        match answer {
            Answer::Event(event) => plane.tell_machine(event),
            Answer::Measured(all) => {
                for (change, pair, result) in all {
                    proxy_changes.measured(plane, change, &pair, result);
                }
            }
            Answer::Left(all) => {
                for left in all {
                    ports.proxy_left(plane, left);
                }
            }
            Answer::Holder(change, opened, holder) => {
                proxy_changes.holder_found(plane, change, opened, holder)
            }
            Answer::Route(change, routed) => proxy_changes.routed(plane, change, routed),
            Answer::Ways(change, ways) => proxy_changes.ways_found(plane, change, ways),
            Answer::Uplink(way) => chain_updates.uplink_found(plane, *way),
            Answer::DsrRoute(dsr) => returns.dsr_route_found(plane, *dsr),
            Answer::Unopened(change, unsent) => {
                proxy_changes.path_unopened(plane, change, unsent);
            }
            Answer::PathChecked(change) => proxy_changes.path_checked(plane, change),
            Answer::Confirmed(change) => proxy_changes.look_confirmed(plane, change),
            Answer::Muted(change) => proxy_changes.muted(plane, change),
            Answer::PathDead(change, unsent) => chain_updates.path_dead(plane, change, unsent),
            Answer::Forgotten(change, from) => chain_updates.forgotten(plane, change, from),
            Answer::Cleared(enlisting) => self.core.host.cleared(enlisting),
            Answer::Removed => {}
            Answer::Unknown(session) => chain_updates.search_state(plane, *session),
            Answer::Searched(then) => self.searched(then),
            Answer::Adopted(done) => self.adopting.end(plane, done),
            Answer::Asked(change, sub) => self.heard(change, sub),
            Answer::Sockets(open) => self.core.host.sockets_listed(open),
            Answer::Way(way) => self.core.host.way_found(&way),
            Answer::PolicyWritten => chains.policy_written(plane),
            Answer::Store(event) => self.core.host.take_store(*event),
            Answer::Windows(read) => self.removals.go_on_dry(&mut self.core, *read),
            Answer::Held(begun) => self.removals.go_on_removing(&mut self.core, *begun),
            Answer::Seen(seen) => self.removals.seen(&mut self.core, *seen),
            Answer::Tuned(step) => self.tuner.take(plane, *step),
            Answer::Service(done) => services.take(plane, *done),
            Answer::State(done) => moves.state_done(plane, done),
            Answer::Reread(read) => self.reload(*read),
        }
    }

    /// Sends the answers that waited for a search, and begins the next one.
    fn searched(&mut self, then: Vec<Answer>) {
        self.core.host.chain_updates.search_ended();
        for answer in then {
            self.take_answer(answer);
        }
        let host = &mut self.core.host;
        host.chain_updates.search_next(&host.plane);
    }

    /// Measures again, if the change has not ended meanwhile.
    fn heard(&mut self, change: ChangeId, sub: Subsession) {
        if self.core.machine.changes().any(|c| c.change == change) {
            let host = &mut self.core.host;
            host.proxy_changes.measure(&mut host.plane, change, sub);
        }
    }
}
