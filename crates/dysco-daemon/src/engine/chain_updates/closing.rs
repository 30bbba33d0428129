//! The end of a path for the firewalls on it, which would otherwise remember it for days.
//!
//! A host that gives up a path notifies the next host on the path, and each host does so: none
//! waits for an answer, and one of two packets may be lost. The next host may not have given up the
//! path itself, but drops these packets in any state of the session. They take nothing from that
//! host either: nothing passes here by the path any more.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use dysco_common::Session;
use dysco_common::session::part;

use super::open::announced_next;
use crate::engine::{ChainUpdates, Plane, packets, raw};

/// Delay of the packets, so that the changes that are requested next do not wait for them; a
/// tombstone stays longer.
const LATER: Duration = Duration::from_secs(1);
/// Maximum number of paths in each sweep: other work must not wait for more.
const AT_ONCE: usize = 128;

/// Tombstones whose paths have not been ended yet: since when, and when their sessions began.
pub(super) type PathsToClose = VecDeque<(Instant, u32, u64)>;

impl ChainUpdates {
    /// Queues the path of this tombstone to be ended.
    pub(super) fn end_for_firewalls(&mut self, plane: &Plane, slot: u32) {
        let created_ns = plane.agent.session(slot).created_ns;
        let closing = (Instant::now(), slot, created_ns);
        self.paths_to_close.push_back(closing);
    }

    /// Ends the paths that are due.
    pub(in crate::engine) fn close_due_paths(&mut self, plane: &Plane) {
        for _ in 0..AT_ONCE {
            let first = self.paths_to_close.front();
            let Some((_, slot, created_ns)) = first.filter(|f| f.0.elapsed() >= LATER).copied()
            else {
                return;
            };
            self.paths_to_close.pop_front();
            let s = plane.agent.session(slot);
            if s.view().is_tombstone() && s.created_ns == created_ns {
                plane.close_path(slot, &s);
            }
        }
    }
}

impl Plane {
    /// Ends a path, if it was more than requested.
    fn close_path(&self, slot: u32, s: &Session) {
        if is_direct(s) {
            self.end_direct(s);
        } else if s.new_in != 0 && self.agent.has_path(slot) {
            let send = |packet: &[u8]| raw::send(packet, s.path.remote());
            send_all(&packets::path_ends(s, last(s)), send);
        }
    }

    /// Ends the path by the session's own five-tuple. This host's connection tracking knows the
    /// session by that five-tuple all the time, and no closing packet may pass connection
    /// tracking. If the other end's host does not drop the packets, because they arrive by an
    /// interface without its data plane, its stack must not accept the reset: the number is one too
    /// high.
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
            // The next host reports the end, too.
            tracing::debug!(%error, "cannot end a path for firewalls");
        }
    }
}

/// Returns true if it was the path of a session that had never had another.
fn is_direct(s: &Session) -> bool {
    s.two.part == part::BEFORE && s.path.is_none() && !s.is_chained()
}

/// Returns the highest number of this end that the path's firewalls have seen, in this end's
/// numbers. For a path that was only opened, it is the number up to which they let the end advance.
fn last(s: &Session) -> u32 {
    if s.two.part == part::NEXT && s.new_out == 0 {
        announced_next(s)
    } else {
        s.snd_max
    }
}
