//! The session array, mapped into this process. The data plane is controlled by a few stores,
//! without a system call.
//!
//! All unsafe code of the session table is in this module. The programs write the same memory on
//! other CPUs. Every access is volatile or atomic. A copy of an entry may contain words of
//! different moments, which its readers must tolerate.

mod two_paths;

use std::os::fd::AsFd;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering};

use dysco_common::session::{Two, life, translation};
use dysco_common::{Session, ShortKey, State, view};

use crate::error::AgentError;
use crate::mapped::Mapped;

/// Number of turns of the waiting loop in which a program finishes with a segment.
const TURNS: u32 = 200;

/// The mapped array.
pub(crate) struct Memory {
    mapped: Mapped<Session>,
}

impl Memory {
    /// Maps the array behind `fd`, which has `len` entries.
    pub(crate) fn map(fd: impl AsFd, len: u32) -> Result<Memory, AgentError> {
        let mapped = Mapped::new(fd, len)?;
        Ok(Memory { mapped })
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> u32 {
        self.mapped.len()
    }

    fn at(&self, slot: u32) -> *mut Session {
        self.mapped.at(slot)
    }

    fn word(&self, field: *mut u32) -> &AtomicU32 {
        self.mapped.word(field)
    }

    fn half(&self, field: *mut u16) -> &AtomicU16 {
        // SAFETY: as in `word`.
        unsafe { AtomicU16::from_ptr(field) }
    }

    fn flag(&self, field: *mut u8) -> &AtomicU8 {
        // SAFETY: as in `word`.
        unsafe { AtomicU8::from_ptr(field) }
    }

    fn two(&self, slot: u32) -> *mut Two {
        // SAFETY: as in `is_in`.
        unsafe { &raw mut (*self.at(slot)).two }
    }

    /// Returns a copy of an entry.
    pub(crate) fn read(&self, slot: u32) -> Session {
        // SAFETY: `at` gives a valid entry; every bit pattern is a `Session`.
        unsafe { ptr::read_volatile(self.at(slot)) }
    }

    /// Returns true if a slot is in this state, without a copy of its entry.
    pub(crate) fn is_in(&self, slot: u32, state: State) -> bool {
        // SAFETY: the address of a field of a valid entry.
        let field = unsafe { &raw mut (*self.at(slot)).state };
        self.word(field).load(Ordering::Acquire) == state as u32
    }

    /// Returns true if a slot has no session. Reads one word, where a copy of the entry would take
    /// several cache lines: searches pass over the whole table.
    pub(crate) fn is_unused(&self, slot: u32) -> bool {
        // SAFETY: as in `is_in`.
        let field = unsafe { &raw mut (*self.at(slot)).state };
        view::is_unused(self.word(field).load(Ordering::Acquire))
    }

    /// Sets the state. Earlier writes become visible before it.
    pub(crate) fn set_state(&self, slot: u32, state: State) {
        // SAFETY: as in `is_in`.
        let field = unsafe { &raw mut (*self.at(slot)).state };
        self.word(field).store(state as u32, Ordering::Release);
    }

    /// Writes fields that the programs do not read in the present state.
    pub(crate) fn write(&self, slot: u32, f: impl FnOnce(&mut Session)) {
        let p = self.at(slot);
        let mut s = self.read(slot);
        f(&mut s);
        // SAFETY: valid fields of a valid entry. Only the fields of the new path are written
        // back, so that the values which the programs learn meanwhile remain.
        unsafe {
            ptr::write_volatile(&raw mut (*p).path, s.path);
            ptr::write_volatile(&raw mut (*p).short_path, s.short_path);
            ptr::write_volatile(&raw mut (*p).ifindex, s.ifindex);
            ptr::write_volatile(&raw mut (*p).translation, s.translation);
            ptr::write_volatile(&raw mut (*p).two, s.two);
            ptr::write_volatile(&raw mut (*p).hop, s.hop);
            ptr::write_volatile(&raw mut (*p).new_out, s.new_out);
            ptr::write_volatile(&raw mut (*p).new_in, s.new_in);
            ptr::write_volatile(&raw mut (*p).joined, s.joined);
            ptr::write_volatile(&raw mut (*p).other_path, s.other_path);
            ptr::write_volatile(&raw mut (*p).peer_sent_max, s.peer_sent_max);
            ptr::write_volatile(&raw mut (*p).muted, s.muted);
        }
    }

    /// Fills a slot that is in no key. Hints may still lead to the slot, so its key is shown
    /// last.
    pub(crate) fn seed(&self, slot: u32, session: &Session) {
        let hidden = Session {
            short: ShortKey::default(),
            state: State::Free as u32,
            ..*session
        };
        // SAFETY: as in `read`; the slot is the caller's alone.
        unsafe { ptr::write_volatile(self.at(slot), hidden) };
        if let Some(state) = State::from_word(session.state) {
            self.set_state(slot, state);
        }
    }

    /// Shows the slot's key, so that hints can lead to the slot.
    pub(crate) fn show(&self, slot: u32) {
        let short = self.read(slot).key.short();
        // SAFETY: as in `is_in`. Half of the key matches no session.
        unsafe { ptr::write_volatile(&raw mut (*self.at(slot)).short, short) };
    }

    /// Hides the slot's key: no hint leads to the slot by the session's own five-tuple.
    pub(crate) fn hide(&self, slot: u32) {
        // SAFETY: as in `show`.
        unsafe { ptr::write_volatile(&raw mut (*self.at(slot)).short, ShortKey::default()) };
    }

    /// Records that firewalls on the entry's path may be shown numbers from now on.
    pub(crate) fn set_new_received(&self, slot: u32) {
        // SAFETY: as in `is_in`.
        let field = unsafe { &raw mut (*self.two(slot)).new_received };
        self.flag(field).store(1, Ordering::Release);
    }

    /// Sets which of a session's two entries this is, and the slot of the other.
    pub(crate) fn set_part(&self, slot: u32, part: u8, other: Option<u32>) {
        // SAFETY: as in `is_in`.
        let (field, link) = unsafe {
            let p = self.at(slot);
            (&raw mut (*p).two.part, &raw mut (*p).other_path)
        };
        // First, because a reader that looks for the other entry needs its slot.
        if let Some(other) = other {
            self.word(link).store(other + 1, Ordering::Release);
        }
        self.flag(field).store(part, Ordering::Release);
        if other.is_none() {
            self.word(link).store(0, Ordering::Release);
        }
    }

    /// Copies the sent numbers of another entry to this one. No program may be sending by this
    /// entry.
    pub(crate) fn take_over(&self, slot: u32, from: u32) {
        let (p, from) = (self.at(slot), self.read(from));
        // SAFETY: as in `write`.
        unsafe {
            ptr::write_volatile(&raw mut (*p).bytes_out, from.bytes_out);
            ptr::write_volatile(&raw mut (*p).snd_max, from.snd_max);
            ptr::write_volatile(&raw mut (*p).snd_ack, from.snd_ack);
            ptr::write_volatile(&raw mut (*p).tsval_out, from.tsval_out);
        }
    }

    /// Sets an entry's numbers of the data sent to its remote end.
    pub(crate) fn set_sent(&self, slot: u32, to: &Session) {
        let p = self.at(slot);
        // SAFETY: as in `write`.
        unsafe {
            ptr::write_volatile(&raw mut (*p).bytes_out, to.bytes_out);
            ptr::write_volatile(&raw mut (*p).snd_max, to.snd_max);
            ptr::write_volatile(&raw mut (*p).snd_ack, to.snd_ack);
        }
    }

    /// Sets the highest number that an entry's path has carried to its end.
    pub(crate) fn set_received(&self, slot: u32, to: u32) {
        // SAFETY: as in `is_in`.
        let field = unsafe { &raw mut (*self.at(slot)).rcv_max };
        self.word(field).store(to, Ordering::Release);
    }

    /// Sets the highest acknowledgements that the local end has sent, and has received. No program
    /// writes them in the present state.
    pub(crate) fn set_acks(&self, slot: u32, sent: u32, received: u32) {
        // SAFETY: as in `is_in`.
        let fields = unsafe {
            let p = self.at(slot);
            [
                (&raw mut (*p).snd_ack, sent),
                (&raw mut (*p).rcv_ack, received),
            ]
        };
        for (field, value) in fields {
            self.word(field).store(value, Ordering::Release);
        }
    }

    /// Lets a session take a detour before its path, or not any more. No program writes the word.
    pub(crate) fn detour_before_path(&self, slot: u32, detours: bool) {
        // SAFETY: as in `is_in`.
        let field = unsafe { &raw mut (*self.at(slot)).translation.flags };
        let flags = self.word(field);
        match detours {
            true => flags.fetch_or(translation::DETOUR, Ordering::SeqCst),
            false => flags.fetch_and(!translation::DETOUR, Ordering::SeqCst),
        };
    }

    /// Sets the interface by which packets on an entry's path leave.
    pub(crate) fn set_interface(&self, slot: u32, index: u32) {
        // SAFETY: as in `is_in`.
        let field = unsafe { &raw mut (*self.at(slot)).ifindex };
        self.word(field).store(index, Ordering::Release);
    }

    /// Sets the rule or path number that an entry's path was laid by.
    pub(crate) fn set_laid_by(&self, slot: u32, by: u32) {
        // SAFETY: as in `is_in`.
        let field = unsafe { &raw mut (*self.at(slot)).laid_by };
        self.word(field).store(by, Ordering::Release);
    }

    /// Joins an entry to that of the session's other side.
    pub(crate) fn set_joined(&self, slot: u32, other: u32) {
        // SAFETY: as in `is_in`.
        let field = unsafe { &raw mut (*self.at(slot)).joined };
        self.word(field).store(other + 1, Ordering::Release);
    }

    /// Sets the slot plus 1 by which packets that this entry relays find their path, or 0.
    pub(crate) fn set_relay(&self, slot: u32, relay: u32) {
        // SAFETY: as in `is_in`.
        let field = unsafe { &raw mut (*self.at(slot)).relay };
        self.word(field).store(relay, Ordering::Release);
    }

    /// Copies the FINs and resets seen by another entry of the session to this one.
    pub(crate) fn share_life(&self, slot: u32, from: u32) {
        let (p, life) = (self.at(slot), self.read(from).life);
        // SAFETY: addresses of fields of a valid entry.
        let flags = unsafe {
            [
                (&raw mut (*p).life.fin_out, life.fin_out),
                (&raw mut (*p).life.fin_in, life.fin_in),
                (&raw mut (*p).life.reset, life.reset),
            ]
        };
        for (field, seen) in flags {
            if seen != 0 {
                self.flag(field).fetch_or(life::SEEN, Ordering::AcqRel);
            }
        }
    }

    /// Records that the middlebox has ended the session between two paths.
    pub(crate) fn set_broken(&self, slot: u32) {
        // SAFETY: as in `is_in`.
        let field = unsafe { &raw mut (*self.at(slot)).life.reset };
        let broken = life::SEEN | life::BY_MIDDLEBOX;
        self.flag(field).fetch_or(broken, Ordering::AcqRel);
    }

    /// Raises the numbers of an entry to those of a later look at its socket. Programs may write
    /// them meanwhile: the higher of two values remains, or a packet raises it again.
    pub(crate) fn raise(&self, slot: u32, to: &Session) {
        let p = self.at(slot);
        // SAFETY: addresses of fields of a valid entry.
        let numbers = unsafe {
            [
                (&raw mut (*p).snd_max, to.snd_max),
                (&raw mut (*p).snd_ack, to.snd_ack),
                (&raw mut (*p).rcv_max, to.rcv_max),
                (&raw mut (*p).rcv_ack, to.rcv_ack),
            ]
        };
        for (field, to) in numbers {
            let higher = |now| dysco_common::seq::after(to, now).then_some(to);
            // An error means that the number is as high already.
            let _ = (self.word(field)).fetch_update(Ordering::AcqRel, Ordering::Acquire, higher);
        }
        // SAFETY: as above.
        let fins = unsafe {
            [
                (&raw mut (*p).life.fin_out, to.life.fin_out),
                (&raw mut (*p).life.fin_in, to.life.fin_in),
            ]
        };
        for (field, seen) in fins {
            if seen != 0 {
                self.flag(field).fetch_or(life::SEEN, Ordering::AcqRel);
            }
        }
    }

    /// Clears a slot of its earlier session, and marks it closed, to be given back.
    pub(crate) fn clear(&self, slot: u32) {
        // SAFETY: as in `is_in`; no program reads these fields of a closed slot.
        unsafe {
            let p = self.at(slot);
            ptr::write_volatile(&raw mut (*p).created_ns, 0);
            ptr::write_volatile(&raw mut (*p).short, ShortKey::default());
            ptr::write_volatile(&raw mut (*p).short_path, ShortKey::default());
        }
        self.set_state(slot, State::Closed);
    }
}

/// Waits until programs on other processors have finished with their packets, and have written
/// their results.
pub(crate) fn wait_for_programs() {
    for _ in 0..TURNS {
        std::hint::spin_loop();
    }
}
