//! Test whether a new path is wide enough for the segments that the two ends may send. A router's
//! message about a packet that is too long would not find its socket, so the length is tried first.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dysco_common::Session;
use dysco_common::two_paths::has_length;
use dysco_proto::{ChangeId, HostEvent, Reason};

use crate::engine::mtu::{headers, longest_within, mtu_between};
use crate::engine::{ChainUpdates, Plane, packets, raw};

/// MTUs that the kernel reported a moment ago: many sessions between two hosts change at once.
#[derive(Default)]
pub(super) struct Mtus(RefCell<HashMap<(IpAddr, IpAddr), (u16, Instant)>>);

/// Time for which, and number of routes of which, an MTU is remembered.
const BELIEVED: Duration = Duration::from_secs(1);
const MANY: usize = 1024;

impl Mtus {
    /// Returns the MTU, headers included; 0 if no route leads there.
    fn between(&self, from: IpAddr, to: IpAddr) -> u16 {
        let mut known = self.0.borrow_mut();
        if let Some((mtu, at)) = known.get(&(from, to))
            && at.elapsed() < BELIEVED
        {
            return *mtu;
        }
        if known.len() >= MANY {
            known.clear();
        }
        let Ok(mtu) = mtu_between(from, to) else {
            return 0;
        };
        known.insert((from, to), (mtu, Instant::now()));
        mtu
    }
}

/// Times at which a length is shown on a path that opens. Where the path has a queue, its answer
/// takes long, and another segment of full length only prolongs that.
#[derive(Default)]
pub(super) struct LengthProbes {
    /// Time at which the path was opened or answered here.
    opened: Option<Instant>,
    /// Time that the answer took.
    round_trip: Duration,
    sent_at: Option<Instant>,
}

impl LengthProbes {
    /// Records the time at which a SYN or its answer is sent.
    pub(super) fn opens(&mut self, now: Instant) {
        self.opened = Some(now);
    }

    /// Records the round-trip time at the first answer.
    pub(super) fn answered(&mut self, now: Instant) {
        if let Some(at) = self.opened.take() {
            self.round_trip = now - at;
        }
    }

    /// Returns the time that the first answer took.
    pub(crate) fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// Returns true if the answer to the length shown last is late, so that the request is
    /// repeated.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        { self.sent_at }.is_none_or(|at| now - at >= 2 * self.round_trip)
    }

    /// Returns true if the length may be shown in answer to the other end's request. That end
    /// repeats its request when the answer is late, and not before.
    pub(crate) fn may_send(&mut self, now: Instant) -> bool {
        let may = { self.sent_at }.is_none_or(|at| now - at >= self.round_trip.mul_f64(1.5));
        if may {
            self.sent_at = Some(now);
        }
        may
    }
}

impl ChainUpdates {
    /// Returns the longest segment that the local end may send, TCP options included: no longer
    /// than the other end accepts or this host sends. That may be more than the local end has
    /// announced to accept, and more than the kernel has assumed for a while about its own route.
    fn longest(&self, plane: &Plane, s: &Session) -> u16 {
        let relay = s.relayed_by().map(|relay| plane.agent.session(relay));
        let beyond = relay.and_then(|relay| relay.joined_to());
        if let Some(beyond) = beyond {
            // The local end is on the other side of the relay.
            return plane.agent.session(beyond).local.mss.min(s.remote.mss);
        }
        // If the end of the session is elsewhere, the route is this host's part of the path.
        let way = match s.joined_to() {
            Some(_) => &s.path,
            None => &s.key,
        };
        let (from, to) = (way.local(), way.remote());
        let mtu = self.mtus.between(from.ip(), to.ip());
        let sends = longest_within(mtu, to.is_ipv6());
        s.remote.mss.min(sends.max(s.local.mss))
    }

    /// Shows on a path that is being opened how long segments of this end may be.
    pub(super) fn show_length(&mut self, plane: &mut Plane, slot: u32) {
        let found = self.by_slot.get(&slot).copied();
        let Some(change) = found else { return };
        let Some(paths) = self.paths.get_mut(&change) else {
            return;
        };
        // A path that a former process has opened is not continued.
        let Some(begins) = paths.begins else { return };
        if !paths.length_probes.may_send(Instant::now()) {
            return;
        }
        let s = plane.agent.session(slot);
        let seen = paths.seen.coming;
        let packet = packets::long_primer(&s, begins, self.longest(plane, &s), seen);
        match raw::send(&packet, s.path.remote()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                self.is_narrow_here(plane, change);
            }
            Err(error) => tracing::warn!(path = ?s.path, %error, "cannot send on a new path"),
        }
    }

    /// Returns why a new path that has been answered is not taken: the length has not been shown on
    /// it. Returns nothing if it has.
    pub(super) fn too_narrow(&self, plane: &Plane, change: ChangeId) -> Option<Reason> {
        let (_, second_path) = self.slots(plane, change)?;
        let s = plane.agent.session(second_path?);
        let paths = self.paths.get(&change)?;
        (!has_length(&s)).then(|| Reason::ChainTooNarrow {
            way: paths.way(),
            bytes: self.longest(plane, &s) + headers(s.key.remote().is_ipv6()),
        })
    }

    /// Handles a segment that is too long to leave this host.
    fn is_narrow_here(&mut self, plane: &mut Plane, change: ChangeId) {
        let Some(reason) = self.too_narrow(plane, change) else {
            return;
        };
        let Some(paths) = self.paths.get_mut(&change) else {
            return;
        };
        if paths.opening.take().is_some() {
            let result = Err(reason);
            plane.tell_machine(HostEvent::Prepared { change, result });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_length_is_not_probed_again_before_an_answer_can_arrive() {
        let begin = Instant::now();
        let mut length_probes = LengthProbes::default();
        // Nothing is known of the path.
        assert!(
            length_probes.is_late(begin)
                && length_probes.may_send(begin)
                && length_probes.may_send(begin)
        );

        let mut length_probes = LengthProbes::default();
        length_probes.opens(begin);
        length_probes.answered(begin + 40 * MS);
        // Only the first answer shows the round-trip time of the path.
        length_probes.answered(begin + 400 * MS);
        let sent_at = begin + 50 * MS;
        assert!(length_probes.may_send(sent_at));
        assert!(
            !length_probes.may_send(sent_at + 59 * MS) && !length_probes.is_late(sent_at + 79 * MS)
        );
        // The waiting end asks again after the other end may answer again.
        assert!(length_probes.is_late(sent_at + 80 * MS));
        assert!(length_probes.may_send(sent_at + 60 * MS));
        assert!(!length_probes.may_send(sent_at + 119 * MS));
    }
}
