//! The records of detours, mapped into this process. The programs write the same words: see
//! [`crate::memory`].

use std::os::fd::AsFd;
use std::ptr;
use std::sync::atomic::Ordering;

use dysco_common::detour::{Detour, Way, cut, phase};
use dysco_common::seq::max;

use crate::error::AgentError;
use crate::mapped::Mapped;

/// The mapped records.
pub(super) struct Memory {
    mapped: Mapped<Detour>,
}

impl Memory {
    pub(super) fn map(fd: impl AsFd, len: u32) -> Result<Memory, AgentError> {
        let mapped = Mapped::new(fd, len)?;
        Ok(Memory { mapped })
    }

    /// Returns a copy of a record.
    pub(super) fn read(&self, index: u32) -> Detour {
        // SAFETY: `at` gives a valid record; every bit pattern is one.
        unsafe { ptr::read_volatile(self.mapped.at(index)) }
    }

    /// Fills a record that no program uses, or empties one.
    pub(super) fn seed(&self, index: u32, record: &Detour) {
        // SAFETY: as in `read`.
        unsafe { ptr::write_volatile(self.mapped.at(index), *record) };
    }

    /// Sets the interface of a session and its Ethernet address. A packet that a program leads to the
    /// session's end at this moment may get parts of both addresses, and is sent again.
    pub(super) fn lead_by(&self, index: u32, interface: u32, address: [u8; 6]) {
        let [a, b, c, d, e, f] = address;
        let record = self.mapped.at(index);
        // SAFETY: addresses of fields of a valid record. That of eight bytes follows words, so that it
        // is aligned for words.
        let (to, first) = unsafe {
            (
                &raw mut (*record).interface,
                (&raw mut (*record).address).cast::<u32>(),
            )
        };
        // SAFETY: the second half of the eight bytes.
        let second = unsafe { first.add(1) };
        let order = Ordering::SeqCst;
        let (start, end) = ([a, b, c, d], [e, f, 0, 0]);
        self.mapped
            .word(first)
            .store(u32::from_ne_bytes(start), order);
        self.mapped
            .word(second)
            .store(u32::from_ne_bytes(end), order);
        self.mapped.word(to).store(interface, order);
    }

    fn way(&self, index: u32, out: bool) -> *mut Way {
        let record = self.mapped.at(index);
        // SAFETY: the address of a field of a valid record.
        unsafe {
            if out {
                &raw mut (*record).out
            } else {
                &raw mut (*record).back
            }
        }
    }

    /// Ends a change of a route that is complete. The programs treat both phases alike.
    pub(super) fn finish(&self, index: u32, out: bool) {
        let way = self.way(index, out);
        // SAFETY: addresses of fields of a valid record.
        let (phase, shift, next) = unsafe {
            (
                self.mapped.word(&raw mut (*way).phase),
                self.mapped.word(&raw mut (*way).shift),
                self.mapped.word(&raw mut (*way).next_shift),
            )
        };
        let next_phase = if phase.load(Ordering::SeqCst) == phase::ENTERING {
            phase::THROUGH
        } else {
            shift.store(next.load(Ordering::SeqCst), Ordering::SeqCst);
            phase::DIRECT
        };
        phase.store(next_phase, Ordering::SeqCst);
    }

    /// Sets the cutoff of a change that no packet has met, as a program does.
    pub(super) fn cut(&self, index: u32, out: bool, highest: u32) {
        let way = self.way(index, out);
        // SAFETY: addresses of fields of a valid record.
        let (set, fields) = unsafe {
            (
                self.mapped.word(&raw mut (*way).cut_set),
                [
                    self.mapped.word(&raw mut (*way).cut),
                    self.mapped.word(&raw mut (*way).to_socket),
                    self.mapped.word(&raw mut (*way).from_socket),
                    self.mapped.word(&raw mut (*way).told),
                    self.mapped.word(&raw mut (*way).through),
                    self.mapped.word(&raw mut (*way).released),
                    self.mapped.word(&raw mut (*way).received),
                ],
            )
        };
        let order = Ordering::SeqCst;
        // SAFETY: as in `read`.
        if !unsafe { ptr::read_volatile(way) }.changes()
            || set
                .compare_exchange(cut::UNSET, cut::BUSY, order, order)
                .is_err()
        {
            return;
        }
        // SAFETY: as in `read`.
        let mut now = unsafe { ptr::read_volatile(way) };
        now.sent = max(now.sent, highest);
        now.set_cut();
        let values = [
            now.cut,
            now.to_socket,
            now.from_socket,
            now.told,
            now.through,
            now.released,
            now.received,
        ];
        for (field, value) in fields.into_iter().zip(values) {
            field.store(value, order);
        }
        set.store(cut::SET, order);
    }

    /// Sets the cutoff of the direction from the other end, unless it is set. Returns false if no
    /// change of this phase is under way. A program may find the same cutoff meanwhile, and raises
    /// the two flags, which are not lowered here.
    pub(super) fn tell(&self, index: u32, phase: u32, at: u32) -> bool {
        let way = self.way(index, false);
        let order = Ordering::SeqCst;
        // SAFETY: as in `read`.
        let mut now = unsafe { ptr::read_volatile(way) };
        if now.phase != phase || !now.changes() {
            return false;
        }
        // SAFETY: addresses of fields of a valid record.
        let set = unsafe { self.mapped.word(&raw mut (*way).cut_set) };
        if set
            .compare_exchange(cut::UNSET, cut::BUSY, order, order)
            .is_err()
        {
            return true;
        }
        now.cut_at(at);
        // SAFETY: addresses of fields of a valid record.
        let fields = unsafe {
            [
                (&raw mut (*way).cut, now.cut),
                (&raw mut (*way).from_socket, now.from_socket),
                (&raw mut (*way).to_socket, now.to_socket),
                (&raw mut (*way).told, now.told),
                (&raw mut (*way).through, now.through),
            ]
        };
        let changed = if phase == phase::ENTERING { 5 } else { 1 };
        for (field, value) in fields.into_iter().take(changed) {
            self.mapped.word(field).store(value, order);
        }
        set.store(cut::SET, order);
        // The end may have acknowledged that data meanwhile, and need not repeat the ACK.
        // SAFETY: as in `read`.
        let mut now = unsafe { ptr::read_volatile(way) };
        now.cut_at(at);
        self.raise(way, [now.released, now.received]);
        true
    }

    /// Raises the flags that are not 0.
    fn raise(&self, way: *mut Way, [released, received]: [u32; 2]) {
        // SAFETY: addresses of fields of a valid record.
        let flags = unsafe {
            [
                (&raw mut (*way).released, released),
                (&raw mut (*way).received, received),
            ]
        };
        for (flag, value) in flags.into_iter().filter(|(_, value)| *value != 0) {
            self.mapped.word(flag).store(value, Ordering::SeqCst);
        }
    }

    /// Records that the other end has all data before the cutoff of a change.
    pub(super) fn confirm(&self, index: u32, phase: u32) {
        let way = self.way(index, true);
        // SAFETY: as in `read`.
        let mut now = unsafe { ptr::read_volatile(way) };
        if now.phase == phase && now.changes() && now.cut_set == cut::SET {
            now.confirm();
            self.raise(way, [now.released, now.received]);
        }
    }

    /// Lets a direction leave its detour at the next packet, to which `added` bytes were added. A
    /// direction that no packet has entered leaves at once. No program reads the fields that are
    /// written before the phase. `released` says that the sender may hear the new route at once.
    pub(super) fn leave(&self, index: u32, out: bool, added: u32, released: bool) {
        let way = self.way(index, out);
        // SAFETY: addresses of fields of a valid record.
        let (phase, set, shift, next, flags) = unsafe {
            (
                self.mapped.word(&raw mut (*way).phase),
                self.mapped.word(&raw mut (*way).cut_set),
                self.mapped.word(&raw mut (*way).shift),
                self.mapped.word(&raw mut (*way).next_shift),
                [
                    self.mapped.word(&raw mut (*way).released),
                    self.mapped.word(&raw mut (*way).received),
                    self.mapped.word(&raw mut (*way).late_set),
                ],
            )
        };
        let (revoke, order) = (cut::REVOKED, Ordering::SeqCst);
        if phase.load(order) == phase::ENTERING
            && set
                .compare_exchange(cut::UNSET, revoke, order, order)
                .is_ok()
        {
            phase.store(phase::DIRECT, order);
            return;
        }
        next.store(shift.load(order).wrapping_add(added), order);
        // SAFETY: as in `read`.
        let mut begun = unsafe { ptr::read_volatile(way) };
        begun.begin_to_leave(released);
        let values = [begun.released, begun.received, begun.late_set];
        for (flag, value) in flags.into_iter().zip(values) {
            flag.store(value, order);
        }
        set.store(cut::UNSET, order);
        phase.store(phase::LEAVING, order);
    }
}
