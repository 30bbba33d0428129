//! Sessions that are older than this process: entered from the state that the kernel has of
//! their sockets.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use dysco_common::adopt::{NotAdopted, Socket, tcp_state};
use dysco_common::rule::wanted;
use dysco_common::{FlowKey, FlowRef, Path, Session, State, View};

use crate::Agent;
use crate::error::AgentError;
use crate::links::{Header, links};
use crate::maps::{Key, Ref, lock, map_error};

/// Flag of an insertion that fails if the key exists (`BPF_NOEXIST`).
const NO_EXIST: u64 = 1;

/// Result of an adoption.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Adoption {
    /// Slots of the sessions that were entered.
    pub adopted: Vec<u32>,
    /// Number of sessions that were known already.
    pub known: usize,
    /// Number of sessions for which there was no room.
    pub no_room: usize,
    /// Number of sessions that the rules select but that were not adopted, by reason.
    pub left: BTreeMap<NotAdopted, usize>,
}

/// Returns the interfaces whose packets the programs do not read, because of their header. Returns
/// none if the kernel does not list its interfaces.
fn unread() -> HashSet<u32> {
    let all = links().unwrap_or_default().into_iter();
    all.filter(|link| link.header == Header::Other)
        .map(|link| link.index)
        .collect()
}

/// Result of a look at the sockets.
struct Look {
    wanted: Vec<Session>,
    left: BTreeMap<NotAdopted, usize>,
}

impl Agent {
    /// Enters the established sessions of this host's sockets that the rules select and that are
    /// not known. Blocks for some microseconds a socket, and for a tenth of a second in all.
    ///
    /// A session is entered in the state `Adopted`, in which packets only raise its numbers. It
    /// becomes `Tracked` when packets of both ends have passed ([`Agent::confirm`]). If this
    /// host translates addresses, the session's packets have another five-tuple than its socket,
    /// and never pass under that of the socket.
    pub fn adopt(&self) -> Result<Adoption, AgentError> {
        let look = self.look()?;
        let mut done = Adoption {
            left: look.left,
            ..Adoption::default()
        };
        for session in &look.wanted {
            if self.in_use(&session.key) {
                done.known += 1;
                continue;
            }
            match self.enter(session)? {
                Some(slot) => done.adopted.push(slot),
                // It has opened anew a moment ago.
                None if self.in_use(&session.key) => done.known += 1,
                None => done.no_room += 1,
            }
        }
        if !done.adopted.is_empty() {
            self.look_again(&mut done)?;
        }
        Ok(done)
    }

    fn look(&self) -> Result<Look, AgentError> {
        let (mut all, mut listeners) = (Vec::new(), HashSet::new());
        self.each_socket(|socket| match socket.state {
            tcp_state::LISTEN => {
                listeners.insert((socket.key.local.ip(), socket.key.local_port));
            }
            _ => all.push(socket),
        })?;
        let mut look = Look {
            wanted: Vec::new(),
            left: BTreeMap::new(),
        };
        let unread = unread();
        for socket in &all {
            match self.judge(socket, listens(&listeners, &socket.key), &unread) {
                Ok(Some(session)) => look.wanted.push(session),
                Ok(None) => {}
                Err(why) => *look.left.entry(why).or_default() += 1,
            }
        }
        Ok(look)
    }

    /// Passes each TCP socket of this host to `take`.
    fn each_socket(&self, take: impl FnMut(Socket)) -> Result<(), AgentError> {
        // The lock is released before the sockets are read.
        let listing = lock(&self.loaded).list_sockets()?;
        listing.each(take)
    }

    /// Returns the entry of a socket's session; `None` if no rule selects the session.
    fn judge(
        &self,
        socket: &Socket,
        listened: bool,
        unread: &HashSet<u32>,
    ) -> Result<Option<Session>, NotAdopted> {
        let session = socket.session(boot_time(), listened);
        let opened_here = match &session {
            Ok(s) => s.life.opened_here != 0,
            // To count the session if either role may be meant.
            Err(_) => !listened,
        };
        if !wanted(&self.rules(), &socket.key, opened_here) {
            return Ok(None);
        }
        let session = match session {
            // The session is known, and continues without a socket here.
            Err(NotAdopted::Repair) if self.in_use(&socket.key) => return Ok(None),
            session => session?,
        };
        let passes_by = |index| !self.is_on(index) || unread.contains(&index);
        match socket.ifindex_in.or_else(|| loopback(&socket.key)) {
            Some(index) if passes_by(index) => Err(NotAdopted::Interface),
            _ => Ok(Some(session)),
        }
    }

    /// Gives a session a slot, and enters its five-tuple for the programs. Returns `None` if
    /// there is no room.
    fn enter(&self, session: &Session) -> Result<Option<u32>, AgentError> {
        let Ok(slot) = lock(&self.free).pop(0) else {
            return Ok(None);
        };
        // No program finds the entry yet.
        self.memory().seed(slot, session);
        let key = Key(session.key.short());
        let value = Ref(FlowRef::new(&session.key, slot, Path::Old));
        if lock(&self.flows).insert(key, value, NO_EXIST).is_err() {
            self.memory().clear(slot);
            self.memory().set_state(slot, State::Free);
            lock(&self.free)
                .push(slot, 0)
                .map_err(map_error("push a slot", "FREE"))?;
            return Ok(None);
        }
        self.memory().show(slot);
        Ok(Some(slot))
    }

    /// Updates the entries after the first look at the sockets, because no program saw packets
    /// before the entry existed. Raises the numbers to their present values, and forgets
    /// sessions that have ended.
    fn look_again(&self, done: &mut Adoption) -> Result<(), AgentError> {
        let entered = done.adopted.iter().map(|slot| (self.session(*slot), *slot));
        let mut entered: HashMap<FlowKey, (Session, u32)> =
            entered.map(|(s, slot)| (s.key, (s, slot))).collect();
        self.each_socket(|socket| {
            let Some((before, slot)) = entered.get(&socket.key).copied() else {
                return;
            };
            let Ok(now) = socket.session(before.created_ns, before.life.opened_here == 0) else {
                return;
            };
            // Only if it is not another session of the same five-tuple.
            if now.local.isn == before.local.isn && now.remote.isn == before.remote.isn {
                self.memory().raise(slot, &now);
                entered.remove(&socket.key);
            }
        })?;
        let gone: HashSet<u32> = entered.into_values().map(|(_, slot)| slot).collect();
        for slot in &gone {
            self.collect(*slot);
        }
        done.adopted.retain(|slot| !gone.contains(slot));
        Ok(())
    }

    /// Tracks an adopted session from here on, if packets of both ends have passed. Returns true
    /// if it has become tracked by this call.
    pub fn confirm(&self, slot: u32) -> bool {
        let s = self.session(slot);
        let heard = s.life.seen_out & s.life.seen_in != 0;
        let confirmed = s.view() == View::Adopted && heard;
        if confirmed {
            self.memory().set_state(slot, State::Tracked);
        }
        confirmed
    }
}

/// Returns the interface of a session of this host with itself. An accepted socket that has
/// received nothing yet does not know its interface.
fn loopback(key: &FlowKey) -> Option<u32> {
    /// `LOOPBACK_IFINDEX`, the same in every namespace.
    const INDEX: u32 = 1;
    let own = key.remote == key.local || key.remote.ip().is_loopback();
    own.then_some(INDEX)
}

/// True if a socket of this host listens on the address, or on every address.
fn listens(listeners: &HashSet<(std::net::IpAddr, u16)>, key: &FlowKey) -> bool {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    let any = [
        key.local.ip(),
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    ];
    any.into_iter()
        .any(|ip| listeners.contains(&(ip, key.local_port)))
}

/// Returns CLOCK_BOOTTIME in nanoseconds, the clock of the programs' session timestamps.
fn boot_time() -> u64 {
    use nix::time::{ClockId, clock_gettime};
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |t| Duration::from(t).as_nanos() as u64)
}
