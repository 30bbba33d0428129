//! The words by which a session changes between two paths.

use std::sync::atomic::Ordering;

use dysco_common::two_paths::{self, Anchor, CLOSES, Cutoff};

use super::{Memory, wait_for_programs};

impl Memory {
    /// Bounds the window of the old path. 0 removes the bound.
    pub(crate) fn set_clamp(&self, slot: u32, window: u16) {
        // SAFETY: as in `is_in`.
        let field = unsafe { &raw mut (*self.at(slot)).clamp };
        self.half(field).store(window, Ordering::Release);
    }

    /// Bounds the window of this host's stack. 0 removes the bound.
    pub(crate) fn set_clamp_remote(&self, slot: u32, window: u16) {
        // SAFETY: as in `is_in`.
        let field = unsafe { &raw mut (*self.at(slot)).clamp_remote };
        self.half(field).store(window, Ordering::Release);
    }

    /// Records whether replies bypass this host.
    pub(crate) fn set_returns(&self, slot: u32, returns: bool) {
        // SAFETY: as in `is_in`.
        let field = unsafe { &raw mut (*self.at(slot)).two.returns };
        self.flag(field).store(u8::from(returns), Ordering::Release);
    }

    /// Sets the cutoff where the next packet finds it, or after the last byte sent if no packet
    /// comes. Returns the cutoff.
    pub(crate) fn cut(&self, slot: u32, at: Anchor) -> Cutoff {
        let p = self.at(slot);
        let two = self.two(slot);
        // SAFETY: addresses of fields of a valid entry.
        let (armed, set, cut_out, snd_max) = unsafe {
            (
                self.flag(&raw mut (*two).cut_armed),
                self.flag(&raw mut (*two).cut_set),
                self.word(&raw mut (*p).cut_out),
                self.word(match at {
                    Anchor::Local => &raw mut (*p).snd_max,
                    Anchor::Remote => &raw mut (*p).rcv_max,
                }),
            )
        };
        armed.store(1, Ordering::SeqCst);
        // A packet that passed just before the line above may still have to raise snd_max. An
        // error is safe, because the proxy is not believed about bytes from the cutoff on, but
        // costs a retransmission.
        wait_for_programs();
        let highest = snd_max.load(Ordering::SeqCst);
        if set.load(Ordering::SeqCst) == 0 {
            cut_out.store(highest, Ordering::SeqCst);
            set.store(1, Ordering::SeqCst);
        }
        if two_paths::cutoff(at, &self.read(slot)).closes {
            // A program records the FIN before its number.
            wait_for_programs();
        }
        two_paths::cutoff(at, &self.read(slot))
    }

    /// Sets whether the programs ignore the new path.
    pub(crate) fn set_muted(&self, slot: u32, muted: bool) {
        // SAFETY: as in `is_in`.
        let field = unsafe { &raw mut (*self.at(slot)).muted };
        self.flag(field).store(u8::from(muted), Ordering::SeqCst);
    }

    /// Makes the programs ignore the new path, unless the path has carried bytes that no old
    /// path can. Returns true if they ignore it.
    pub(crate) fn mute(&self, slot: u32) -> bool {
        self.set_muted(slot, true);
        // A packet that passed just before may still have to record its acknowledgement.
        wait_for_programs();
        let muted = !two_paths::has_carried(&self.read(slot));
        if !muted {
            self.set_muted(slot, false);
        }
        muted
    }

    /// Takes the cutoffs back, as if neither end had cut. `cut_set` is cleared last, so that no
    /// packet finds the cutoff due again.
    pub(crate) fn take_back(&self, slot: u32) {
        self.set_muted(slot, true);
        let two = self.two(slot);
        // SAFETY: addresses of fields of a valid entry.
        let flags = unsafe {
            [
                &raw mut (*two).cut_armed,
                &raw mut (*two).new_received,
                &raw mut (*two).cut_in_set,
                &raw mut (*two).drained,
                &raw mut (*two).edge_set,
                &raw mut (*two).cut_set,
            ]
        };
        for flag in flags {
            self.flag(flag).store(0, Ordering::SeqCst);
        }
    }

    /// Sets the number at which the new path's incoming data begins. Returns true if the local
    /// end has acknowledged all earlier bytes already.
    pub(crate) fn set_cut_in(&self, slot: u32, cutoff: Cutoff, at: Anchor) -> bool {
        let p = self.at(slot);
        let two = self.two(slot);
        // SAFETY: addresses of fields of a valid entry.
        let (cut_in, set) = unsafe {
            (
                self.word(&raw mut (*p).cut_in),
                self.flag(&raw mut (*two).cut_in_set),
            )
        };
        let closes = if cutoff.closes { CLOSES } else { 0 };
        cut_in.store(cutoff.at, Ordering::SeqCst);
        set.store(1 | closes, Ordering::SeqCst);
        self.look_drained(slot, at)
    }

    /// Checks whether the local end has acknowledged all bytes of the old path, and records that
    /// for the programs. To be repeated while the result is false. A program writes a packet's
    /// acknowledgement and then reads the cutoff; [`Memory::set_cut_in`] writes the cutoff and
    /// then reads the acknowledgement. On most processors, including x86, both may read before
    /// their writes are visible.
    pub(crate) fn look_drained(&self, slot: u32, at: Anchor) -> bool {
        let two = self.two(slot);
        // SAFETY: the address of a field of a valid entry.
        let drained = self.flag(unsafe { &raw mut (*two).drained });
        let s = self.read(slot);
        if s.two.cut_in_set != 0 && two_paths::has_old(at, &s, s.cut_in) {
            drained.store(1, Ordering::SeqCst);
        }
        drained.load(Ordering::SeqCst) != 0
    }
}
