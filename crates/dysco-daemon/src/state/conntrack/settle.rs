//! When a new entry has learnt its windows, and judges packets by them again.

use super::entry::at;
use super::write::{flag, set_flags};
use super::{ConntrackState, FiveTuple, Netfilter, StateError, Zone, failed};

/// In so many intervals both ends must have been inside the windows.
const ROUNDS: u32 = 3;

/// An entry that does not judge windows yet. Ask it from time to time, a few
/// round trips apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settling {
    session: FiveTuple,
    zone: Zone,
    /// The old host did not judge the windows of these ends either.
    liberal: [bool; 2],
    rounds: u32,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    /// It judges windows as any other.
    Yes,
    /// Both ends have not been heard often enough.
    NotYet,
    /// The entry has ended.
    Gone,
}

impl Settling {
    pub(super) fn new(session: FiveTuple, state: &ConntrackState) -> Settling {
        Settling {
            session,
            zone: state.zone,
            liberal: [state.tcp.original.liberal, state.tcp.reply.liberal],
            rounds: 0,
        }
    }

    /// The session it is of.
    pub fn session(&self) -> FiveTuple {
        self.session
    }

    /// Looks whether both ends have sent packets inside the windows since it
    /// was last asked. Once they have several times, the windows are judged
    /// again.
    pub fn settle(&mut self) -> Result<Settled, StateError> {
        let Some(entry) = at(&self.session, self.zone)? else {
            return Ok(Settled::Gone);
        };
        if entry.flags.iter().any(|flags| flags & flag::SEEN == 0) {
            return Ok(Settled::NotYet);
        }
        self.rounds += 1;
        if self.rounds < ROUNDS {
            self.set(flag::SEEN, [0; 2])?;
            return Ok(Settled::NotYet);
        }
        let kept = self.liberal.map(|on| if on { flag::LIBERAL } else { 0 });
        self.set(flag::LIBERAL, kept)?;
        Ok(Settled::Yes)
    }

    fn set(&self, mask: u8, flags: [u8; 2]) -> Result<(), StateError> {
        let message = set_flags(&self.session, self.zone, mask, flags);
        let done = Netfilter::with(|netfilter| netfilter.act(message, 0));
        done.map_err(failed("settle an entry of connection tracking"))
    }
}
