//! Ends of sessions, and their collection: no entry lives longer than its session and two MSL.

mod ended;
mod quiet;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dysco_common::Session;
use dysco_common::view::{Change, Collected, View};

use super::retention::{TWO_MSL, UNCHANGED, is_orphan, retention};
use super::{Plane, Ports, Sockets, ThisHost, clock, gauges, held, ports};
use crate::metrics::SessionGauges;

/// Use of the table, in percent, from which it is crowded. New sessions then need the room of ended
/// ones, whose last packets may be lost.
const CROWDED: u64 = 75;

/// Slots that end, and the times at which they are collected.
#[derive(Default)]
pub(super) struct Collector {
    ending: HashMap<u32, Ending>,
    /// Sessions that no socket of this host ends, and the times at which they last moved.
    quiet: HashMap<u32, Ending>,
    /// Slots of sessions whose reset was reported, and the times at which these sessions began.
    reset: HashMap<u32, u64>,
    /// Number of slots in use, for each part of the table.
    taken: Vec<u64>,
}

/// Slot whose session has ended as far as was seen.
#[derive(Clone, Copy)]
struct Ending {
    created_ns: u64,
    since: Instant,
    due: Instant,
    activity: Activity,
    /// Time at which the activity was last seen to change.
    moved: Option<Instant>,
    /// True if the host that may hold the session's port was notified.
    notified: bool,
}

/// Values that change while the session moves: packets (of a changed session), sequence numbers,
/// and the clocks of its ends.
type Activity = [u32; 7];

impl Ending {
    fn new(s: &Session, activity: Activity, due: Instant) -> Ending {
        Ending {
            created_ns: s.created_ns,
            since: Instant::now(),
            due,
            activity,
            moved: None,
            notified: false,
        }
    }

    /// Records the present activity. After a change, last packets may be under way for two MSL.
    fn see(&mut self, activity: Activity, now: Instant) {
        if self.activity != activity {
            (self.activity, self.moved) = (activity, Some(now));
        }
    }

    /// Returns true if a packet of the session may still be under way.
    fn moves(&self, now: Instant) -> bool {
        self.moved.is_some_and(|at| now < at + TWO_MSL)
    }

    /// Returns true if the time of the entry is over. In a crowded table it is over sooner, except
    /// for tombstones.
    fn is_due(&self, s: &Session, crowded: bool) -> bool {
        let hurries = crowded && !s.view().is_tombstone();
        let now = Instant::now();
        self.due <= now || hurries && self.since + UNCHANGED <= now
    }
}

fn activity(s: &Session) -> Activity {
    let packets = s.new_out.wrapping_add(s.new_in);
    let (out, back) = ([s.snd_max, s.snd_ack], [s.rcv_max, s.rcv_ack]);
    [
        packets,
        out[0],
        out[1],
        back[0],
        back[1],
        s.tsval_out,
        s.tsval_in,
    ]
}

impl Collector {
    /// Records how many slots of a part are in use. Returns true if the table is crowded.
    fn is_crowded(&mut self, part: u32, taken: usize, capacity: u32) -> bool {
        let part = part as usize;
        if self.taken.len() <= part {
            self.taken.resize(part + 1, 0);
        }
        self.taken[part] = taken as u64;
        self.taken.iter().sum::<u64>() * 100 > u64::from(capacity) * CROWDED
    }

    /// Ends a slot at once, because its session has lost its socket.
    pub(super) fn abandoned(&mut self, slot: u32, s: &Session) {
        self.ending
            .insert(slot, Ending::new(s, activity(s), Instant::now()));
    }

    /// Ends a slot that became the tombstone of one of a session's paths. Packets that are under
    /// way there arrive soon.
    pub(super) fn left(&mut self, slot: u32, s: &Session) {
        let due = Instant::now() + UNCHANGED;
        self.ending.insert(slot, Ending::new(s, activity(s), due));
    }

    /// Ends a tombstone whose session is over elsewhere, as soon as none of its packets can be
    /// under way.
    pub(super) fn over(&mut self, slot: u32, s: &Session) {
        let now = Instant::now();
        let fresh = Ending::new(s, activity(s), now + UNCHANGED);
        let ending = self.ending.entry(slot).or_insert(fresh);
        if ending.created_ns != s.created_ns {
            *ending = fresh;
        }
        ending.due = ending.due.min(now.max(ending.since + UNCHANGED));
    }

    /// Ends a slot that became a tombstone, after two MSL.
    pub(crate) fn became_tombstone(&mut self, slot: u32, s: &Session) {
        self.ending
            .insert(slot, Ending::new(s, activity(s), Instant::now() + TWO_MSL));
    }
}

impl ThisHost {
    /// Collects ended sessions in one of `parts` parts of the table. Returns the count of the
    /// part's sessions.
    pub(super) fn sweep_table(&mut self, part: u32, parts: u32) -> SessionGauges {
        let now = Instant::now();
        let boot = clock::boot_time();
        let sessions = self.plane.agent.sessions_of(part, parts);
        let capacity = self.plane.agent.capacity();
        let crowded = self
            .plane
            .collector
            .is_crowded(part, sessions.len(), capacity);
        let mut counted = SessionGauges::default();
        for (slot, s) in sessions {
            gauges::count(&mut counted, &self.plane, slot, &s);
            self.returns.sweep_return(&mut self.plane, slot, &s, now);
            self.on_link.see(&s);
            self.chain_updates.check_paths(&self.plane, &s);
            if s.view() == View::Adopted {
                // The session was heard, and the ring was full.
                self.plane.agent.confirm(slot);
            }
            // Its event was lost, or came to a process before this one.
            self.hold(slot, &s);
            let known = self.plane.collector.ending.get(&slot).copied();
            let retention = self.plane.retention(&s, boot, crowded);
            // The other entry of a session that is being made or changed may not have been seen.
            let stays = s.is_current() || retention.is_some();
            let known = known.filter(|e| e.created_ns == s.created_ns && stays);
            let mut ending = match (known, retention) {
                (Some(ending), _) => ending,
                (None, Some(retention)) => {
                    Ending::new(&s, self.plane.activity(slot, &s), now + retention)
                }
                (None, None) => {
                    self.plane.collector.ending.remove(&slot);
                    self.sweep_quiet(slot, &s, now, crowded);
                    continue;
                }
            };
            ending.see(self.plane.activity(slot, &s), now);
            if ending.since + UNCHANGED <= now {
                if ports::frees_port(&s) {
                    self.ports.release(slot);
                }
                // The session may have ended before its change had, or the first message was lost.
                if !std::mem::replace(&mut ending.notified, true) {
                    self.plane.tell_over(&s);
                }
            }
            self.plane.collector.ending.insert(slot, ending);
            self.plane.collector.quiet.remove(&slot);
            if ending.is_due(&s, crowded) {
                self.collect_unless_needed((slot, &s), ending, now, crowded);
            }
        }
        counted
    }

    /// Forgets a session that has ended and is due, unless a port or a socket still needs it.
    fn collect_unless_needed(
        &mut self,
        (slot, s): (u32, &Session),
        mut ending: Ending,
        now: Instant,
        crowded: bool,
    ) {
        if !crowded && self.ports.keeps_ports(&self.plane, slot, s) {
            // Another host is asked about the session each time.
            let again = Ending::new(s, self.plane.activity(slot, s), now + TWO_MSL);
            self.plane.collector.ending.insert(slot, again);
        } else if self.sockets.still_needed(slot, s, &ending, now) {
            ending.due = now + UNCHANGED;
            self.plane.collector.ending.insert(slot, ending);
        } else {
            self.collect(slot, s);
        }
    }

    /// Forgets a session, with the one that it is joined to: neither carries data without the
    /// other.
    pub(super) fn collect(&mut self, slot: u32, s: &Session) {
        let other = self.plane.linked(slot, s);
        self.forget(slot, s);
        if let Some(other) = other {
            self.forget(other, &self.plane.agent.session(other));
        }
    }

    /// Forgets an entry, and notifies a change that still had it.
    fn forget(&mut self, slot: u32, s: &Session) {
        self.plane.collector.ending.remove(&slot);
        self.plane.collector.quiet.remove(&slot);
        self.plane.collector.reset.remove(&slot);
        self.returns.forget(slot);
        self.ports.release(slot);
        self.services.collected(&self.plane, slot);
        self.plane.forget_session(self.plane.session_id(slot, s));
        self.plane.agent.collect(slot);
        let of = |h: &held::Held| h.slots().any(|held| held == (slot, s.created_ns));
        let change = self
            .proxy_changes
            .held
            .iter()
            .find(|(_, h)| of(h))
            .map(|(c, _)| *c);
        if let Some(change) = change {
            self.proxy_changes.tell_gone(&mut self.plane, change);
        }
        let of_chain = self
            .chain_updates
            .chain_gone(&mut self.plane, slot, s.created_ns);
        if change.is_none() && !of_chain {
            self.plane.tell_elsewhere(s);
        }
    }
}

impl Sockets {
    /// Returns true if an entry whose session seems to have ended is still needed. A FIN that was
    /// seen may not have arrived, and anybody may have sent a reset. Without its entry, a changed
    /// session that lives would reach no socket. The entry ends when nothing of it moves and its
    /// socket is gone.
    fn still_needed(&self, slot: u32, s: &Session, ending: &Ending, now: Instant) -> bool {
        let changed = s.view().meaning().collected == Collected::OnceSilent;
        changed && (ending.moves(now) || self.listed(slot, s.created_ns))
    }
}

impl Ports {
    /// Returns true if the entry, or the one that it is joined to, holds a port.
    fn keeps_ports(&mut self, plane: &Plane, slot: u32, s: &Session) -> bool {
        let other = plane.linked(slot, s);
        let other = other.map(|other| (other, plane.agent.session(other)));
        self.keeps_port(slot, s) || other.is_some_and(|(slot, s)| self.keeps_port(slot, &s))
    }
}

impl Plane {
    /// Returns the activity in both directions, where these are separate entries.
    fn activity(&self, slot: u32, s: &Session) -> Activity {
        let mut activity = activity(s);
        let heard = |slot: u32, s: &Session| {
            let other = self.linked(slot, s).map(|o| self.agent.session(o).new_in);
            other.unwrap_or(0)
        };
        activity[0] = activity[0].wrapping_add(heard(slot, s));
        // A session that passes here by either of its two paths lives.
        if let View::Changing(Change::Passing(route)) = s.view()
            && let Some(other) = route.other
        {
            let o = self.agent.session(other);
            let moved = o
                .new_in
                .wrapping_add(o.new_out)
                .wrapping_add(heard(other, &o));
            activity[0] = activity[0].wrapping_add(moved);
        }
        activity
    }

    /// Returns how long an entry is still needed. The path of a relayed session is needed as long
    /// as the relay.
    fn retention(&self, s: &Session, boot: Duration, crowded: bool) -> Option<Duration> {
        let other = s.other_path().map(|slot| self.agent.session(slot));
        if is_orphan(s, other.as_ref()) {
            return Some(UNCHANGED);
        }
        let Some(relay) = s.relayed_by() else {
            return retention(s, boot, crowded);
        };
        let gone = self.agent.session(relay).created_ns != s.created_ns;
        gone.then_some(Duration::ZERO)
    }
}
