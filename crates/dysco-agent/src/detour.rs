//! Detours of sessions through the handler processes of their services.

mod memory;
mod numbers;
pub(crate) mod records;

use aya::Ebpf;
use dysco_common::detour::{Detour, End, MAX_DETOURS, Way, highest, phase};
use dysco_common::policy::{run_name, run_of, unheld};
use dysco_common::{State, View};

use crate::Agent;
use crate::attach;
use crate::error::AgentError;
use crate::maps::{lock, map_error};

pub use numbers::{Numbers, Start};

/// Link to a handler's namespace, and interface of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DetourLink {
    /// Index of this host's end of the link to the handler.
    pub handler: u32,
    /// Interface by which the session's packets come and go.
    pub interface: u32,
    /// Ethernet address of that interface.
    pub address: [u8; 6],
}

impl Agent {
    /// Loads the programs for sessions with handlers, unless they are loaded. Takes up to a second of
    /// a processor. Holds a lock for which no one else waits but [`Agent::attach_handler`].
    ///
    /// # Errors
    /// If the kernel refuses a program.
    pub fn load_handlers(&self) -> Result<(), AgentError> {
        self.with_handlers(|_| Ok(()))
    }

    /// Puts the program for handlers' packets on this host's end of the link to their namespace, and
    /// loads the programs first unless they are loaded.
    ///
    /// # Errors
    /// If the kernel refuses a program, or its place.
    pub fn attach_handler(&self, interface: &str) -> Result<(), AgentError> {
        let attach = self.attached().first().map(|one| one.attach);
        let how = attach.unwrap_or_default();
        self.with_handlers(|programs| attach::attach_handler(programs, &self.dir, interface, how))
    }

    fn with_handlers<T>(
        &self,
        on: impl FnOnce(&mut Ebpf) -> Result<T, AgentError>,
    ) -> Result<T, AgentError> {
        let mut handlers = lock(&self.handlers);
        if let Some(programs) = handlers.as_mut() {
            return on(programs);
        }
        let programs = lock(&self.loaded).for_handlers();
        on(handlers.insert(attach::load_handlers(programs.open()?)?))
    }

    /// Takes the program off the link again.
    pub fn detach_handler(&self, interface: &str) {
        attach::detach_handler(&self.dir, interface);
    }

    /// Gives the sessions of a cgroup's programs services: those of the run with this number, below
    /// `MAX_RUNS`. If the run `holds` them, they get them before their first byte.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn begin_run(&self, group: u64, run: u32, holds: bool) -> Result<(), AgentError> {
        let name = match holds {
            true => run_name(run),
            false => unheld(run_name(run)),
        };
        let written = lock(&self.detours.runs).insert(group, name, 0);
        written.map_err(map_error("write", "RUNS"))
    }

    /// Forgets the rule or the run that a session was opened by: it has its services, or is not to have
    /// them.
    pub fn forget_rule(&self, slot: u32) {
        self.memory().set_laid_by(slot, 0);
    }

    /// Forgets the run of a cgroup. Its sessions keep their services.
    pub fn end_run(&self, group: u64) {
        // An error means that there is none.
        let _ = lock(&self.detours.runs).remove(&group);
    }

    /// Returns the cgroups with runs, and the numbers of the runs.
    pub fn runs(&self) -> Vec<(u64, u32)> {
        let runs = lock(&self.detours.runs);
        let all = runs.iter().filter_map(Result::ok);
        all.filter_map(|(group, name)| Some((group, run_of(name)?)))
            .collect()
    }

    /// Returns the record of a session with a detour.
    pub fn detour(&self, slot: u32) -> Option<Detour> {
        let index = self.detours.index(slot)?;
        Some(self.detours.memory.read(index))
    }

    /// Returns all records.
    pub fn detours(&self) -> Vec<Detour> {
        let all = (0..MAX_DETOURS).map(|index| self.detours.memory.read(index));
        all.filter(|record| record.slot != 0).collect()
    }

    /// Returns the numbers that a session's ends have reached, from which the handler's sockets can
    /// begin.
    pub fn detour_numbers(&self, slot: u32) -> Numbers {
        numbers::of(&self.session(slot), self.detour(slot).as_ref())
    }

    /// Lets both directions of a session enter a detour at the next packet. The handler's sockets
    /// begin with the numbers of `start`. If the detour is paired, the other direction enters as the
    /// other host tells ([`Agent::tell_cut`]).
    ///
    /// If the ends are `silent`, they have sent nothing but their SYNs, and cannot send: no end has
    /// been offered a window. The directions then enter at once, with the first byte.
    ///
    /// # Errors
    /// If no record is free, or the map cannot be written. The session stays as it is.
    pub fn enter_detour(
        &self,
        slot: u32,
        start: &Start,
        link: &DetourLink,
        paired: bool,
        silent: bool,
    ) -> Result<(), AgentError> {
        let before = self.detour(slot);
        let at = numbers::of(&self.session(slot), before.as_ref());
        let index = lock(&self.detours.free).pop_first();
        let index = index.ok_or(AgentError::NoDetour)?;
        let [a, b, c, d, e, f] = link.address;
        let acked = start.acked.filter(|_| before.is_none());
        let out = (
            start.out,
            at.shift_out,
            at.sent_out,
            acked.unwrap_or(at.shown_out),
        );
        let back = (start.back, at.shift_back, at.sent_back, at.shown_back);
        let enters = |(start, shift, sent, shown), at_once| match (silent, at_once) {
            (true, true) => Way::from_first_byte(start, shift, sent),
            // The handshake acknowledges the SYN.
            (true, false) => Way::entering(start, shift, sent, sent),
            (false, _) => Way::entering(start, shift, sent, shown),
        };
        let record = Detour {
            out: enters(out, true),
            back: enters(back, !paired),
            handler: link.handler,
            interface: link.interface,
            address: [a, b, c, d, e, f, 0, 0],
            slot: slot + 1,
            paired: u16::from(paired),
            silent: u16::from(silent),
        };
        self.detours.memory.seed(index, &record);
        let earlier = self.detours.index(slot);
        let written = lock(&self.detours.by_slot)
            .insert(slot, index, 0)
            .map_err(map_error("write", "DETOURED"));
        if let Err(error) = written {
            self.free_record(index);
            return Err(error);
        }
        match self.session(slot).view() {
            View::NewPath(_) => self.memory().detour_before_path(slot, true),
            _ => self.memory().set_state(slot, State::Detour),
        }
        if let Some(earlier) = earlier {
            self.free_record(earlier);
        }
        Ok(())
    }

    /// Ends the changes of a session's routes that are complete. Returns the record.
    ///
    /// With `still`, a direction that no packet has come in gets its cutoff here. The change must
    /// have been ordered so long ago that all programs which ran then have ended.
    pub fn settle_detour(&self, slot: u32, still: bool) -> Option<Detour> {
        let index = self.detours.index(slot)?;
        if still {
            let (s, d) = (self.session(slot), self.detours.memory.read(index));
            let at = |end| highest(&s, &d, end);
            self.detours.memory.cut(index, true, at(End::Local));
            if d.paired == 0 {
                self.detours.memory.cut(index, false, at(End::Remote));
            }
        }
        let d = self.detours.memory.read(index);
        for (out, way) in [(true, &d.out), (false, &d.back)] {
            if way.is_done() {
                self.detours.memory.finish(index, out);
            }
        }
        Some(self.detours.memory.read(index))
    }

    /// Lets each direction that goes through the detour leave it at the next packet. `added` are the
    /// numbers of bytes that the services have added to each direction.
    pub fn leave_detour(&self, slot: u32, added: [i64; 2]) {
        let Some(index) = self.detours.index(slot) else {
            return;
        };
        let d = self.detours.memory.read(index);
        let [out, back] = added;
        for (is_out, way, added) in [(true, &d.out, out), (false, &d.back, back)] {
            if way.phase == phase::THROUGH {
                // Modulo 2^32, as all numbers.
                self.detours
                    .memory
                    .leave(index, is_out, added as u32, false);
            }
        }
    }

    /// Lets a direction of a paired detour leave it: the one in which the local end sends, at the
    /// next packet, or the other one, as the other host tells.
    pub fn leave_paired(&self, slot: u32, out: bool) {
        if let Some(index) = self.detours.index(slot) {
            // The other end's host alone keeps what it acknowledges from its end.
            self.detours.memory.leave(index, out, 0, !out);
        }
    }

    /// Lets a session that is held go on without services. Each end learns the other's window by
    /// the probe that it sends once it has data.
    pub fn let_go(&self, slot: u32) {
        if self.session(slot).view() == View::Held {
            self.memory().set_state(slot, State::Tracked);
        }
    }

    /// Sets the cutoff of the direction from the other end, whose host has told it. `phase` is that
    /// of the change. Returns false if no such change is under way.
    pub fn tell_cut(&self, slot: u32, phase: u32, cut: u32) -> bool {
        let index = self.detours.index(slot);
        index.is_some_and(|index| self.detours.memory.tell(index, phase, cut))
    }

    /// Records that the other end has all data before the cutoff of a change, as its host has told.
    pub fn confirm_detour(&self, slot: u32, phase: u32) {
        if let Some(index) = self.detours.index(slot) {
            self.detours.memory.confirm(index, phase);
        }
    }

    /// Ends a detour whose directions both go directly. The entry has its earlier state again if
    /// no byte was added; otherwise the record stays, and the programs go on changing numbers.
    /// Returns true if the session is as before.
    pub fn end_detour(&self, slot: u32) -> bool {
        let Some(index) = self.detours.index(slot) else {
            return true;
        };
        let d = self.detours.memory.read(index);
        let direct = d.out.phase == phase::DIRECT && d.back.phase == phase::DIRECT;
        if !direct || d.out.shift | d.back.shift != 0 {
            return false;
        }
        if !self.session(slot).detours_before_path() {
            // The entry has the acknowledgements of before. Nobody repeats those that came since.
            self.memory().set_acks(slot, d.back.shown, d.out.shown);
        }
        self.abandon_detour(slot);
        true
    }

    /// Lets the packets of a session pass without its detour, and forgets that. Numbers are no longer
    /// changed: the local end must be gone if it has other ones than the remote end.
    pub fn abandon_detour(&self, slot: u32) {
        if self.session(slot).detours_before_path() {
            self.memory().detour_before_path(slot, false);
        } else {
            self.memory().set_state(slot, State::Tracked);
        }
        self.forget_detour(slot);
    }

    /// Forgets the record of a session that has ended.
    pub(crate) fn forget_detour(&self, slot: u32) {
        // Most sessions have none.
        if let Some(index) = self.detours.index(slot) {
            let _ = lock(&self.detours.by_slot).remove(&slot);
            self.free_record(index);
        }
    }

    fn free_record(&self, index: u32) {
        self.detours.memory.seed(index, &Detour::default());
        lock(&self.detours.free).insert(index);
    }

    /// True if a session of this slot may enter a detour, as far as its entry shows.
    pub fn may_enter_detour(&self, slot: u32) -> bool {
        let s = self.session(slot);
        if s.has_detour() {
            let d = self.detour(slot);
            return d
                .is_some_and(|d| d.out.phase == phase::DIRECT && d.back.phase == phase::DIRECT);
        }
        match s.view() {
            View::Tracked | View::Held => true,
            // A host inside a chain has two paths, and no end.
            View::NewPath(route) => {
                route.relay.is_none() && route.joined.is_none() && route.other.is_none()
            }
            _ => false,
        }
    }
}
