//! Ports of sessions that their proxy has left. The proxy's kernel would choose them for new
//! connections to the same server, whose end of the first session lives. They are therefore held as
//! long as that session.
//!
//! If this host relays, its own entry shows how long. After a bypass the tombstone's session
//! lives elsewhere, and the server's host is asked: the tombstone stays as long as that host has
//! the session. The ports to hold are found in the entries, by a restarted daemon and where a port
//! could not be held before.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dysco_common::view::{Leaver, View};
use dysco_common::{FlowKey, Session};
use dysco_control::Incoming;
use dysco_proto::{HostEvent, Subsession};
use dysco_proxy::port::HeldPort;

use super::chains::message::Message;
use super::jobs::ProxyLeft;
use super::{Plane, measure};
use crate::metrics;

/// Time without word from its host after which a session is taken for over: the host has lost its
/// memory, or is gone.
const SILENT_FOR: Duration = Duration::from_secs(3600);
/// Maximum number in one message, which has to fit into a frame (`dysco_proto::MAX_MESSAGE`).
const SOME: usize = 64;
/// Maximum number of ports that are tried again at once.
const AGAIN: usize = 64;

/// Held ports, by the slots of the sessions that they were chosen for.
pub(super) struct Ports {
    held: HashMap<u32, Port>,
    /// Maximum number of held ports: each is an open file.
    most: usize,
    not_held: u64,
    /// Slot from which the next port that could not be held is looked for.
    next: u32,
    /// Sessions that other hosts are to be asked about.
    asking: HashMap<IpAddr, HashSet<Subsession>>,
}

struct Port {
    created_ns: u64,
    connection: FlowKey,
    /// Time at which the session was last known to live.
    lived: Instant,
    /// True if the server's host says that the session is over.
    over: bool,
    _held: HeldPort,
}

impl Ports {
    /// Makes an empty table. Half of the files that this process may open are for ports.
    pub(super) fn new() -> Ports {
        use nix::sys::resource::{Resource, getrlimit};
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(files, _)| files);
        Ports {
            held: HashMap::new(),
            most: usize::try_from(files / 2).unwrap_or(usize::MAX),
            not_held: 0,
            next: 0,
            asking: HashMap::new(),
        }
    }

    /// Returns the number of held ports, and of those that could not be held at the last attempt.
    pub(super) fn counts(&self) -> metrics::Ports {
        metrics::Ports {
            held: self.held.len() as u64,
            not_held: self.not_held,
        }
    }

    /// Returns the held five-tuples, which no session's socket has.
    pub(super) fn connections(&self) -> impl Iterator<Item = &FlowKey> {
        self.held.values().map(|port| &port.connection)
    }

    /// Records that the session of a slot goes on without this host from now on.
    pub(super) fn leaves(&mut self, slot: u32) {
        if let Some(port) = self.held.get_mut(&slot) {
            port.lived = Instant::now();
        }
    }

    fn has_room(&self) -> bool {
        self.held.len() < self.most
    }

    pub(super) fn release(&mut self, slot: u32) {
        self.held.remove(&slot);
    }

    /// Returns true if this session's port is held.
    fn has(&self, slot: u32, created_ns: u64) -> bool {
        let port = self.held.get(&slot);
        port.is_some_and(|port| port.created_ns == created_ns)
    }
}

/// Returns true if a proxy of this host opened this session and has left it.
fn is_left(s: &Session) -> bool {
    let left = match s.view() {
        View::Relayed(_) | View::Returned => true,
        View::Left(Leaver::Proxy) => s.is_current(),
        _ => false,
    };
    // Once both ends have closed it, another session may take its port: the host that still has the
    // old one answers for it.
    left && !is_closed(s) && s.life.opened_here != 0
}

/// Returns true if no other host has to confirm that the session is over, so that its port need
/// not be held.
pub(super) fn frees_port(s: &Session) -> bool {
    s.life.opened_here != 0 && is_closed(s)
}

/// Returns true if both ends have closed the session. A reset does not count: anybody may send one.
fn is_closed(s: &Session) -> bool {
    s.life.fin_in != 0 && s.life.fin_out != 0
}

/// Returns true if a SYN of another session would be lost where this is the entry of its
/// five-tuple.
fn is_used(entry: Option<&Session>) -> bool {
    entry.is_some_and(|s| s.view().redirects_packets() && !s.has_ended())
}

impl Ports {
    /// Holds the ports of all sessions that a proxy of this host has left.
    pub(super) fn hold_ports(&mut self, plane: &Plane) {
        for (slot, s) in plane.agent.sessions() {
            if is_left(&s) {
                self.try_port(slot, &s);
            }
        }
    }

    fn try_port(&mut self, slot: u32, s: &Session) {
        let held = match self.has_room() {
            true => HeldPort::hold(&s.key),
            false => Err(io::ErrorKind::QuotaExceeded.into()),
        };
        self.port_held(slot, s, held);
    }

    /// Tries again to hold ports of five-tuples that no listed socket has: a few at a time, others
    /// the next time.
    pub(super) fn hold_missing_ports(
        &mut self,
        sessions: &[(u32, Session)],
        listed: &HashSet<FlowKey>,
    ) {
        let missing = |(slot, s): &&(u32, Session)| is_left(s) && !self.has(*slot, s.created_ns);
        let missing: Vec<_> = sessions.iter().filter(missing).collect();
        let free = missing.iter().filter(|(_, s)| !listed.contains(&s.key));
        let next = self.next;
        let (later, first): (Vec<_>, Vec<_>) = free.copied().partition(|(slot, _)| *slot < next);
        let tried: Vec<_> = first.into_iter().chain(later).take(AGAIN).collect();
        self.not_held = (missing.len() - tried.len()) as u64;
        for (slot, s) in tried {
            self.try_port(slot, &s);
            self.next = slot + 1;
        }
    }

    /// Records that a proxy has left a session, and tells the machine.
    pub(super) fn proxy_left(&mut self, plane: &mut Plane, left: ProxyLeft) {
        let ProxyLeft {
            change,
            opened,
            port,
            result,
        } = left;
        if let Some(port) = port {
            self.hold_port(plane, &opened, port);
        }
        plane.tell_machine(HostEvent::Closed { change, result });
    }

    /// Records the port of a session whose sockets the proxy has lost: the port of the socket that
    /// it opened is held, or could not be.
    fn hold_port(&mut self, plane: &Plane, sub: &Subsession, held: io::Result<HeldPort>) {
        let slot = plane.find(sub);
        let slot = slot.map(|slot| (slot, plane.agent.session(slot)));
        if let Some((slot, s)) = slot.filter(|(_, s)| is_left(s)) {
            self.port_held(slot, &s, held);
        }
    }

    fn port_held(&mut self, slot: u32, s: &Session, held: io::Result<HeldPort>) {
        if self.has(slot, s.created_ns) {
            return;
        }
        let error = match held {
            Ok(held) if self.has_room() => {
                let port = Port {
                    created_ns: s.created_ns,
                    connection: s.key,
                    lived: Instant::now(),
                    over: false,
                    _held: held,
                };
                self.held.insert(slot, port);
                return;
            }
            Ok(_) => io::ErrorKind::QuotaExceeded.into(),
            Err(error) => error,
        };
        self.not_held += 1;
        tracing::debug!(session = ?s.key, %error, "a port is not held: a SYN by it is lost");
    }

    /// Returns true if a tombstone still holds a port. Its server's host is asked, and answers
    /// later.
    pub(super) fn keeps_port(&mut self, slot: u32, s: &Session) -> bool {
        if !s.view().is_tombstone() || !self.has(slot, s.created_ns) {
            return false;
        }
        let port = self.held.get(&slot);
        if port.is_none_or(|port| port.over || port.lived.elapsed() > SILENT_FOR) {
            return false;
        }
        let asking = self.asking.entry(s.key.remote().ip()).or_default();
        asking.insert(measure::opened(&s.key));
        true
    }

    /// Asks other hosts about the sessions that have been collected for them.
    pub(super) fn ask_about_ports(&mut self, plane: &Plane) {
        for (host, all) in std::mem::take(&mut self.asking) {
            let all: Vec<Subsession> = all.into_iter().collect();
            for some in all.chunks(SOME) {
                plane.send_about_chains(host, &Message::Lives(some.to_vec()));
            }
        }
    }

    /// Handles the answer of a server's host which sessions live.
    pub(super) fn lives_answered(
        &mut self,
        plane: &mut Plane,
        answer: Vec<(Subsession, bool)>,
        incoming: &Incoming,
    ) {
        for (sub, lives) in answer {
            let slot = plane.find(&sub);
            let Some(slot) = slot.filter(|_| incoming.from.holds(sub.right.ip())) else {
                continue;
            };
            let s = plane.agent.session(slot);
            if !self.has(slot, s.created_ns) || !s.view().is_tombstone() {
                continue;
            }
            let Some(port) = self.held.get_mut(&slot) else {
                continue;
            };
            if lives {
                port.lived = Instant::now();
            } else {
                port.over = true;
                plane.collector.over(slot, &s);
            }
        }
    }
}

impl Plane {
    /// Answers a host that asks which of the sessions that it has opened to this one live.
    pub(super) fn tell_lives(&self, all: Vec<Subsession>, incoming: &Incoming) {
        let its = |sub: &Subsession| incoming.from.holds(sub.left.ip());
        let answer = all.into_iter().take(SOME).filter(its).map(|sub| {
            let slot = self.agent.find(&FlowKey::new(sub.right, sub.left));
            let entry = slot.map(|slot| self.agent.session(slot));
            (sub, is_used(entry.as_ref()))
        });
        let answer = answer.collect();
        self.send_about_chains(incoming.via, &Message::Lived(answer));
    }

    /// Notifies the proxy's host that both ends of a session have closed it, if a proxy has left it
    /// and its port is held there. That host need not ask.
    pub(super) fn tell_over(&self, s: &Session) {
        let proxy = s.key.remote().ip();
        let by_proxy = s.view().new_path().is_some_and(|route| route.bypassed);
        if by_proxy && is_closed(s) && s.life.opened_here == 0 {
            let answer = vec![(measure::accepted(&s.key), false)];
            self.send_about_chains(proxy, &Message::Lived(answer));
        }
    }
}

#[cfg(test)]
mod tests {
    use dysco_common::State;
    use dysco_common::session::part;

    use super::*;

    fn entry(state: State) -> Session {
        Session {
            state: state as u32,
            ..Session::default()
        }
    }

    #[test]
    fn whose_ports_are_held() {
        for state in [State::Relay, State::Return, State::Tombstone] {
            let mut s = entry(state);
            assert!(!is_left(&s), "{state:?}: the client chose the port");
            s.life.opened_here = 1;
            assert!(is_left(&s) && !frees_port(&s), "{state:?}");
            // One end may still send as long as it likes.
            s.life.fin_in = 1;
            assert!(is_left(&s) && !frees_port(&s), "{state:?}");
            s.life.fin_out = 1;
            assert!(
                !is_left(&s) && frees_port(&s),
                "{state:?}: both have closed"
            );
        }
        let mut s = entry(State::NewPath);
        s.life.opened_here = 1;
        assert!(!is_left(&s), "it has a socket");
        // A host of a chain opened none; a path that a session has left is no proxy's.
        s.state = State::Tombstone as u32;
        (s.two.chained, s.two.part) = (2, part::CURRENT);
        assert!(!is_left(&s));
        (s.two.chained, s.two.part) = (0, part::BEFORE);
        assert!(!is_left(&s));
    }

    #[test]
    fn what_is_asked_and_answered_fits_into_a_frame() {
        let end: std::net::SocketAddr = "[2001:db8:1:2:3:4:5:6]:65535".parse().unwrap();
        let sub = Subsession {
            left: end,
            right: end,
        };
        for message in [
            Message::Lives(vec![sub; SOME]),
            Message::Lived(vec![(sub, true); SOME]),
        ] {
            let bytes = postcard::to_stdvec(&message).unwrap();
            assert!(bytes.len() < dysco_proto::MAX_MESSAGE);
        }
    }

    #[test]
    fn what_is_used() {
        assert!(!is_used(None));
        for state in [
            State::NewPath,
            State::TwoPaths,
            State::Tombstone,
            State::Relay,
        ] {
            assert!(is_used(Some(&entry(state))), "{state:?}");
        }
        // Another session has the five-tuple already, or may take it.
        for state in [State::Free, State::Opening, State::Tracked, State::Adopted] {
            assert!(!is_used(Some(&entry(state))), "{state:?}");
        }
        let mut s = entry(State::NewPath);
        (s.life.fin_in, s.life.fin_out) = (1, 1);
        assert_eq!(is_used(Some(&s)), !s.has_ended());
    }
}
