//! Sessions that were there first: entered from what the kernel holds of their
//! sockets.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use dysco_common::adopt::{NotAdopted, Socket, tcp_state};
use dysco_common::rule::wanted;
use dysco_common::{FlowKey, FlowRef, Path, Session, State};

use crate::agent::{Agent, Key, Ref, lock, map_error};
use crate::error::AgentError;
use crate::links::links;
use crate::sockets::Sockets;

/// An entry is made only where there is none (`BPF_NOEXIST`).
const NO_EXIST: u64 = 1;

/// Result of an adoption.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Adoption {
    /// The slots of the sessions that were entered.
    pub adopted: Vec<u32>,
    /// Sessions that were known already.
    pub known: usize,
    /// Sessions that there was no room for.
    pub no_room: usize,
    /// Sessions that the rules want and that were left, by the reason.
    pub left: BTreeMap<NotAdopted, usize>,
}

/// Interfaces whose packets the programs do not read, for want of an Ethernet header. Where
/// the kernel does not tell, none.
fn unread() -> HashSet<u32> {
    let all = links().unwrap_or_default().into_iter();
    all.filter(|link| !link.ethernet)
        .map(|link| link.index)
        .collect()
}

/// Result of a look at the sockets.
struct Look {
    wanted: Vec<Session>,
    left: BTreeMap<NotAdopted, usize>,
}

impl Agent {
    /// Enters the established sessions of this host's sockets that the rules
    /// want and that are not known. Blocks for some microseconds a socket, and
    /// for a tenth of a second in all.
    ///
    /// A session is entered in the state `Adopted`, in which packets only raise
    /// its numbers. It becomes `Tracked` when both its ends were heard
    /// ([`Agent::confirm`]): where addresses are translated on this host its
    /// packets have another five-tuple than its socket, and never are.
    pub fn adopt(&self) -> Result<Adoption, AgentError> {
        let mut sockets = Sockets::open()?;
        let look = self.look(&mut sockets)?;
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
                None => done.no_room += 1,
            }
        }
        if !done.adopted.is_empty() {
            self.look_again(&mut sockets, &mut done)?;
        }
        Ok(done)
    }

    fn look(&self, sockets: &mut Sockets) -> Result<Look, AgentError> {
        let (mut all, mut listeners) = (Vec::new(), HashSet::new());
        sockets.each(|socket| match socket.state {
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

    /// The entry of a socket's session; nothing if no rule wants it.
    fn judge(
        &self,
        socket: &Socket,
        listened: bool,
        unread: &HashSet<u32>,
    ) -> Result<Option<Session>, NotAdopted> {
        let session = socket.session(boot_time(), listened);
        let opened_here = match &session {
            Ok(s) => s.life.opened_here != 0,
            // So as to count it where either may be meant.
            Err(_) => !listened,
        };
        if !wanted(&self.rules(), &socket.key, opened_here) {
            return Ok(None);
        }
        let session = match session {
            // Its session is known, and goes on without a socket here.
            Err(NotAdopted::Repair) if self.in_use(&socket.key) => return Ok(None),
            session => session?,
        };
        let passes_by = |index| !self.is_on(index) || unread.contains(&index);
        match socket.ifindex_in.or_else(|| loopback(&socket.key)) {
            Some(index) if passes_by(index) => Err(NotAdopted::Interface),
            _ => Ok(Some(session)),
        }
    }

    /// Gives a session a slot, and its five-tuple to the programs. `None` if
    /// there is no room.
    fn enter(&self, session: &Session) -> Result<Option<u32>, AgentError> {
        let Ok(slot) = lock(&self.free).pop(0) else {
            return Ok(None);
        };
        // Nobody finds it yet.
        self.memory().seed(slot, session);
        let key = Key(session.key.short());
        let value = Ref(FlowRef::new(&session.key, slot, Path::Old));
        if lock(&self.flows).insert(key, value, NO_EXIST).is_err() {
            // Opened anew this moment, or the table is full.
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
    fn look_again(&self, sockets: &mut Sockets, done: &mut Adoption) -> Result<(), AgentError> {
        let entered = done.adopted.iter().map(|slot| (self.session(*slot), *slot));
        let mut entered: HashMap<FlowKey, (Session, u32)> =
            entered.map(|(s, slot)| (s.key, (s, slot))).collect();
        sockets.each(|socket| {
            let Some((before, slot)) = entered.get(&socket.key).copied() else {
                return;
            };
            let Ok(now) = socket.session(before.created_ns, before.life.opened_here == 0) else {
                return;
            };
            // Not another session of the same five-tuple.
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

    /// Tracks an adopted session from here on, if both its ends were heard.
    /// True if it is tracked now, and was not before.
    pub fn confirm(&self, slot: u32) -> bool {
        let s = self.session(slot);
        let heard = s.life.heard_out & s.life.heard_in != 0;
        let confirmed = s.state == State::Adopted as u32 && heard;
        if confirmed {
            self.memory().set_state(slot, State::Tracked);
        }
        confirmed
    }
}

/// The interface of a session of this host with itself: an accepted socket
/// that nothing was sent to yet does not know.
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

/// CLOCK_BOOTTIME, as the programs stamp sessions.
fn boot_time() -> u64 {
    use nix::time::{ClockId, clock_gettime};
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |t| Duration::from(t).as_nanos() as u64)
}
