//! Slots in which sessions were found last. A guess saves the system call of a lookup in the flow
//! map, which a drain makes many times for each session.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use dysco_common::{FlowKey, ShortKey};

use crate::memory::Memory;

/// One word for each place of a hint ([`ShortKey::hint`]), as the programs have theirs. A guess may
/// be wrong at any time: the session's entry confirms it, or the caller asks the flow map.
pub(crate) struct Guesses(Box<[AtomicU32]>);

impl Guesses {
    /// Returns guesses for about this number of sessions.
    pub fn new(sessions: u32) -> Guesses {
        let places = sessions.clamp(1, 1 << 24).next_power_of_two();
        Guesses((0..places).map(|_| AtomicU32::new(0)).collect())
    }

    fn place(&self, short: &ShortKey) -> Option<&AtomicU32> {
        let mask = self.0.len() - 1;
        self.0.get(short.hint() as usize & mask)
    }

    /// Stores the slot in which a session was found.
    pub fn set(&self, key: &FlowKey, slot: u32) {
        if let Some(place) = self.place(&key.short()) {
            place.store(slot, Relaxed);
        }
    }

    /// Returns the slot of the session with this own five-tuple, if the guess is right: the slot's
    /// entry shows the five-tuple, which only the entry that the flow map leads to does.
    pub fn confirmed(&self, key: &FlowKey, memory: &Memory) -> Option<u32> {
        let short = key.short();
        let slot = self.place(&short)?.load(Relaxed);
        let right = slot < memory.len() && memory.shows(slot, &short);
        (right && memory.read(slot).key == *key).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::{Ipv6Addr, SocketAddr};
    use std::os::fd::AsFd;

    use dysco_common::{Session, State};
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    const SLOTS: u32 = 4;

    fn memory() -> Memory {
        let file = memfd_create("sessions", MFdFlags::empty()).unwrap();
        nix::unistd::ftruncate(&file, 1 << 16).unwrap();
        Memory::map(file.as_fd(), SLOTS).unwrap()
    }

    fn key(local: &str, remote: &str) -> FlowKey {
        let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
        FlowKey::new(at(local), at(remote))
    }

    fn enter(memory: &Memory, slot: u32, key: FlowKey) {
        let session = Session {
            state: State::Tracked as u32,
            key,
            ..Session::default()
        };
        memory.seed(slot, &session);
        memory.show(slot);
    }

    #[test]
    fn a_guess_is_confirmed_only_by_the_entry_that_a_lookup_would_find() {
        let (memory, guesses) = (memory(), Guesses::new(SLOTS));
        let one = key("10.0.1.1:40000", "10.0.2.1:9000");
        assert_eq!(guesses.confirmed(&one, &memory), None);
        enter(&memory, 3, one);
        assert_eq!(guesses.confirmed(&one, &memory), None, "nobody has looked");
        guesses.set(&one, 3);
        assert_eq!(guesses.confirmed(&one, &memory), Some(3));
        // The session takes the path of its other entry, and returns.
        memory.hide(3);
        assert_eq!(guesses.confirmed(&one, &memory), None);
        memory.show(3);
        assert_eq!(guesses.confirmed(&one, &memory), Some(3));
        // The session is collected, and the slot is another's.
        memory.clear(3);
        assert_eq!(guesses.confirmed(&one, &memory), None);
        enter(&memory, 3, key("10.0.1.1:40004", "10.0.2.1:9000"));
        assert_eq!(guesses.confirmed(&one, &memory), None);
        // The table of a former process may have been larger.
        guesses.set(&one, SLOTS);
        assert_eq!(guesses.confirmed(&one, &memory), None);
    }

    #[test]
    fn folded_addresses_are_compared_whole() {
        let (memory, guesses) = (memory(), Guesses::new(SLOTS));
        // Two of some hundred thousand addresses have the same short key.
        let mut known = HashMap::new();
        let of = |n: u32| {
            let local = Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(n));
            FlowKey::new((local, 40_000).into(), (Ipv6Addr::LOCALHOST, 9000).into())
        };
        let same = (0..).find_map(|n| Some((n, known.insert(of(n).short(), n)?)));
        let (one, other) = same.map(|(n, m)| (of(n), of(m))).unwrap();
        enter(&memory, 0, one);
        guesses.set(&one, 0);
        assert_eq!(guesses.confirmed(&one, &memory), Some(0));
        assert_eq!(guesses.confirmed(&other, &memory), None);
    }
}
