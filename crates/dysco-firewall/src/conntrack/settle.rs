//! Resumption of window checks in a new entry, once the kernel has learnt its windows.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use super::entry::at;
use super::write::{flag, set_flags};
use super::{ConntrackState, FiveTuple, Netfilter, StateError, Zone, failed};

/// Number of intervals in which both ends must have been inside the windows.
const ROUNDS: u32 = 3;

/// Entries that do not judge windows yet: the ends that the old host did not judge either, and
/// the number of the [`Settling`]. The flag of the entry alone does not show this.
type Unsettled = HashMap<(FiveTuple, Zone), ([bool; 2], u64)>;

static UNSETTLED: LazyLock<Mutex<Unsettled>> = LazyLock::new(Mutex::default);

fn unsettled() -> MutexGuard<'static, Unsettled> {
    // A thread that panicked has left the map consistent.
    UNSETTLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the ends that the old host did not judge either, for an entry that does not judge
/// windows yet.
pub(super) fn own_liberal(session: FiveTuple, zone: Zone) -> Option<[bool; 2]> {
    unsettled()
        .get(&(session, zone))
        .map(|(liberal, _)| *liberal)
}

/// An entry that does not judge windows yet. The caller asks it from time to time, a few round
/// trips apart.
#[derive(Debug)]
pub struct Settling {
    session: FiveTuple,
    zone: Zone,
    /// True for each end whose windows the old host did not judge either.
    liberal: [bool; 2],
    rounds: u32,
    /// Number of this value: the state may be installed again meanwhile.
    number: u64,
}

/// Progress of settling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    /// The entry judges windows like any other.
    Yes,
    /// Both ends have not been seen often enough.
    NotYet,
    /// The entry has ended, or was installed again under another `Settling`.
    Gone,
}

impl Settling {
    pub(super) fn new(session: FiveTuple, state: &ConntrackState) -> Settling {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let settling = Settling {
            session,
            zone: state.zone,
            liberal: [state.tcp.original.liberal, state.tcp.reply.liberal],
            rounds: 0,
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
        };
        let what = (settling.liberal, settling.number);
        unsettled().insert((session, state.zone), what);
        settling
    }

    /// Returns the session of the entry.
    pub fn session(&self) -> FiveTuple {
        self.session
    }

    /// Checks whether both ends have sent packets inside the windows since the last call. After
    /// several such calls, the kernel judges the windows again.
    pub fn settle(&mut self) -> Result<Settled, StateError> {
        let Some(entry) = at(&self.session, self.zone)?.filter(|_| self.is_last()) else {
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

    fn is_last(&self) -> bool {
        let last = unsettled().get(&(self.session, self.zone)).copied();
        last.is_some_and(|(_, number)| number == self.number)
    }

    fn set(&self, mask: u8, flags: [u8; 2]) -> Result<(), StateError> {
        let message = set_flags(&self.session, self.zone, mask, flags);
        let done = Netfilter::with(|netfilter| netfilter.act(message, 0));
        done.map_err(failed("settle an entry of connection tracking"))
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        if self.is_last() {
            unsettled().remove(&(self.session, self.zone));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::{entry, plain};

    #[test]
    fn what_the_old_host_did_is_known_until_the_last_has_settled() {
        let session = plain().session;
        let state = |liberal: bool| {
            let mut state = entry();
            state["tcp"]["reply"]["liberal"] = json!(liberal);
            serde_json::from_value::<ConntrackState>(state).expect("a state")
        };
        let zone = state(false).zone;
        assert_eq!(own_liberal(session, zone), None);
        let first = Settling::new(session, &state(true));
        assert_eq!(own_liberal(session, zone), Some([false, true]));
        let second = Settling::new(session, &state(false));
        assert!(!first.is_last() && second.is_last());
        drop(first);
        assert_eq!(own_liberal(session, zone), Some([false, false]));
        drop(second);
        assert_eq!(own_liberal(session, zone), None);
    }
}
