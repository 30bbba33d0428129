//! The end of a path for the firewalls on it, which would know it for days.
//!
//! Who gives a path up says so to the next host on it, and each does: no answer is waited
//! for, and one of the two may be lost. That host may not have given it up itself, but
//! drops this, whatever it has of the session. Nor does this take anything from it: nothing
//! passes here by the path any more.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use dysco_common::session::part;
use dysco_common::{Session, State};

use super::open::shown_next;
use crate::engine::{Engine, packets, raw};

/// It is said so much later, when the changes that are asked for next do not wait for it;
/// a tombstone stays longer.
const LATER: Duration = Duration::from_secs(1);
/// So many paths at once, of each sweep: other work must not wait for more.
const AT_ONCE: usize = 128;

/// Tombstones whose paths have not been ended yet: since when, and when their sessions
/// began.
pub(super) type Farewells = VecDeque<(Instant, u32, u64)>;

impl Engine {
    /// The path of this tombstone is to be ended.
    pub(super) fn end_for_firewalls(&mut self, slot: u32) {
        let created_ns = self.agent.session(slot).created_ns;
        let farewell = (Instant::now(), slot, created_ns);
        self.rechain.farewells.push_back(farewell);
    }

    /// Ends those paths for which it is time.
    pub(in crate::engine) fn say_farewells(&mut self) {
        for _ in 0..AT_ONCE {
            let first = self.rechain.farewells.front();
            let Some((_, slot, created_ns)) = first.filter(|f| f.0.elapsed() >= LATER).copied()
            else {
                return;
            };
            self.rechain.farewells.pop_front();
            let s = self.agent.session(slot);
            if s.state == State::Tombstone as u32 && s.created_ns == created_ns {
                self.say_farewell(slot, &s);
            }
        }
    }

    /// Ends a path, if it was more than asked for.
    fn say_farewell(&self, slot: u32, s: &Session) {
        if is_direct(s) {
            self.end_direct(s);
        } else if s.new_in != 0 && self.agent.has_path(slot) {
            let send = |packet: &[u8]| raw::send(packet, s.path.remote());
            send_all(&packets::path_ends(s, last(s)), send);
        }
    }

    /// The same of the path by the session's own five-tuple, by which this host's
    /// connection tracking has it all the time: no packet of this may pass that. And one
    /// that the other end's host should not hear where it drops them, by an interface that
    /// is not ours, is not a reset that its stack believes: the number is one beyond.
    fn end_direct(&self, s: &Session) {
        let path = s.key;
        let packets = packets::path_ends(&Session { path, ..*s }, s.snd_max.wrapping_add(1));
        let (from, to) = (path.local().ip(), path.remote());
        if let Some(ifindex) = self.state.route(from, to.ip()) {
            return send_all(&packets, |p| raw::send_unrouted(p, to, ifindex));
        }
        let routes = self.routes.clone();
        tokio::spawn(async move {
            if let Ok(route) = routes.get(from, to.ip()).await {
                send_all(&packets, |p| raw::send_unrouted(p, to, route.ifindex));
            }
        });
    }
}

fn send_all(packets: &[Vec<u8>], send: impl Fn(&[u8]) -> io::Result<()>) {
    for packet in packets {
        if let Err(error) = send(packet) {
            // The next host says it, too.
            tracing::debug!(%error, "cannot end a path for firewalls");
        }
    }
}

/// Was it the path of a session that had never had another?
fn is_direct(s: &Session) -> bool {
    s.two.part == part::BEFORE && s.path.is_none() && s.two.chained == 0
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
