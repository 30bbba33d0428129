//! Records of detours, by the slots of their sessions.

use std::collections::BTreeSet;
use std::sync::Mutex;

use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData};
use dysco_common::detour::{Detour, MAX_DETOURS};

use super::memory::Memory;
use crate::error::AgentError;
use crate::maps::{lock, open, take};

/// Records of all detours, and the sessions that have one.
pub(crate) struct Detours {
    pub(super) memory: Memory,
    pub(super) by_slot: Mutex<HashMap<MapData, u32, u32>>,
    /// Records that no session has.
    pub(super) free: Mutex<BTreeSet<u32>>,
    /// Names of runs, by cgroup.
    pub(super) runs: Mutex<HashMap<MapData, u64, u32>>,
}

impl Detours {
    pub(crate) fn open(ebpf: &mut Ebpf) -> Result<Detours, AgentError> {
        let Map::Array(records) = take(ebpf, "DETOURS")? else {
            return Err(AgentError::Missing("array DETOURS"));
        };
        let memory = Memory::map(records.fd(), MAX_DETOURS)?;
        let detours = Detours {
            memory,
            by_slot: Mutex::new(open(ebpf, "DETOURED")?),
            free: Mutex::default(),
            runs: Mutex::new(open(ebpf, "RUNS")?),
        };
        let free = (0..MAX_DETOURS).filter(|index| detours.is_free(*index));
        let free = free.collect();
        Ok(Detours {
            free: Mutex::new(free),
            ..detours
        })
    }

    /// True if no session has the record. Empties one that no program finds: a process was killed
    /// between two stores.
    fn is_free(&self, index: u32) -> bool {
        let record = self.memory.read(index);
        let used = record.slot != 0;
        if used && self.index(record.slot - 1) != Some(index) {
            self.memory.seed(index, &Detour::default());
            return true;
        }
        !used
    }

    pub(super) fn index(&self, slot: u32) -> Option<u32> {
        lock(&self.by_slot).get(&slot, 0).ok()
    }
}
