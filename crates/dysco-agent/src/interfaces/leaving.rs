//! Sessions that stop without the programs on an interface.

use crate::Agent;
use crate::detour::records::Detours;
use crate::memory::Memory;
use crate::need::need_of;

/// Returns the number of sessions that leave by the interface of this index and need the programs.
pub(crate) fn count(memory: &Memory, detours: &Detours, index: u32) -> usize {
    let used = (0..memory.len()).filter(|slot| !memory.is_unused(*slot));
    let leaving = used.filter(|slot| {
        let s = memory.read(*slot);
        need_of(&s).is_some() && (s.ifindex == index || detours.interface_of(*slot) == Some(index))
    });
    leaving.count()
}

impl Agent {
    /// Returns the number of sessions that leave by the interface of this index and would stop without
    /// the programs there.
    pub fn leaving_by(&self, index: u32) -> usize {
        count(self.memory(), &self.detours, index)
    }
}
