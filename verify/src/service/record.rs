//! Operations of a daemon on the record of a detour, as in `dysco-agent/src/detour/memory.rs`.

use std::hash::{Hash, Hasher};

use dysco_common::detour::{Detour, Way, cut, phase};

/// The record of a session's detour.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record(pub Detour);

impl Hash for Record {
    fn hash<H: Hasher>(&self, state: &mut H) {
        words(&self.0.out).hash(state);
        words(&self.0.back).hash(state);
        self.0.handler.hash(state);
    }
}

fn words(way: &Way) -> [u32; 20] {
    [
        way.phase,
        way.cut_set,
        way.cut,
        way.shift,
        way.next_shift,
        way.start,
        way.to_socket,
        way.from_socket,
        way.sent,
        way.delivered,
        way.shown,
        way.edge,
        way.edge_set,
        way.late,
        way.late_edge,
        way.late_set,
        way.told,
        way.through,
        way.released,
        way.received,
    ]
}

impl Record {
    /// Returns the record of a session of which no packet has passed yet.
    pub fn new(first: [u32; 2], paired: bool) -> Record {
        let way = |first| Way {
            phase: phase::DIRECT,
            ..Way::entering(0, 0, first, first)
        };
        Record(Detour {
            out: way(first[0]),
            back: way(first[1]),
            paired: u16::from(paired),
            ..Detour::default()
        })
    }

    /// Phases of both directions.
    pub fn phases(&self) -> [u32; 2] {
        [self.0.out.phase, self.0.back.phase]
    }

    /// True if both directions are in this phase.
    pub fn are(&self, phase: u32) -> bool {
        self.phases() == [phase; 2]
    }

    /// True if no data takes the detour, as the programs decide.
    pub(crate) fn is_past(&self) -> bool {
        let past =
            |way: &Way| way.phase == phase::DIRECT || way.phase == phase::LEAVING && way.is_done();
        past(&self.0.out) && past(&self.0.back)
    }

    /// `Agent::enter_detour`: both directions enter at the next packet.
    pub fn enter(&mut self, start: [u32; 2]) {
        let d = &mut self.0;
        let next = |way: &Way, start| Way::entering(start, way.shift, way.sent, way.shown);
        (d.out, d.back) = (next(&d.out, start[0]), next(&d.back, start[1]));
        d.handler = 1;
    }

    /// `Agent::end_detour`: the session has no detour any more.
    pub fn end(&mut self) {
        self.0.handler = 0;
    }

    /// True if the session has entered a detour, and has not ended it.
    pub fn is_used(&self) -> bool {
        self.0.handler != 0
    }

    /// `Memory::finish`, of both directions, if their changes are complete.
    pub fn settle(&mut self) {
        for way in [&mut self.0.out, &mut self.0.back] {
            if !way.is_done() {
                continue;
            }
            if way.phase == phase::ENTERING {
                way.phase = phase::THROUGH;
            } else {
                way.shift = way.next_shift;
                way.phase = phase::DIRECT;
            }
        }
    }

    /// `Memory::cut`: sets the cutoff of a direction that no packet has come in.
    pub(crate) fn cut_still(&mut self, out: bool) {
        let way = self.way(out);
        if way.changes() && way.cut_set == cut::UNSET {
            way.set_cut();
            way.cut_set = cut::SET;
        }
    }

    /// `Memory::tell`: sets the cutoff that the other host has told.
    pub fn tell(&mut self, phase: u32, at: u32) -> bool {
        let way = self.way(false);
        if way.phase != phase || !way.changes() {
            return false;
        }
        if way.cut_set == cut::UNSET {
            let flags = [way.released, way.received];
            let mut now = *way;
            now.cut_at(at);
            if phase == phase::ENTERING {
                *way = now;
            } else {
                way.cut = now.cut;
            }
            way.cut_set = cut::SET;
            way.released = flags[0] | now.released;
            way.received = flags[1] | now.received;
        }
        true
    }

    /// `Memory::confirm`: the other end has all data before the cutoff.
    pub fn confirm(&mut self, phase: u32) {
        let way = self.way(true);
        if way.phase == phase && way.changes() && way.cut_set == cut::SET {
            way.confirm();
        }
    }

    /// `Memory::leave`: a direction leaves at the next packet.
    pub fn leave(&mut self, out: bool, added: u32, released: bool) {
        let way = self.way(out);
        if way.phase == phase::ENTERING && way.cut_set == cut::UNSET {
            way.cut_set = cut::REVOKED;
            way.phase = phase::DIRECT;
            return;
        }
        way.next_shift = way.shift.wrapping_add(added);
        way.begin_to_leave(released);
        way.cut_set = cut::UNSET;
        way.phase = phase::LEAVING;
    }

    /// Returns a direction: that in which the local end sends, or the other one.
    pub fn way(&mut self, out: bool) -> &mut Way {
        if out {
            &mut self.0.out
        } else {
            &mut self.0.back
        }
    }
}
