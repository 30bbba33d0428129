//! Records of detours, by the slots of their sessions.

use std::collections::BTreeSet;
use std::sync::Mutex;

use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData};
use dysco_common::detour::MAX_DETOURS;

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
        let unused = |index: &u32| memory.read(*index).slot == 0;
        let free = (0..MAX_DETOURS).filter(unused).collect();
        Ok(Detours {
            memory,
            by_slot: Mutex::new(open(ebpf, "DETOURED")?),
            free: Mutex::new(free),
            runs: Mutex::new(open(ebpf, "RUNS")?),
        })
    }

    pub(super) fn index(&self, slot: u32) -> Option<u32> {
        lock(&self.by_slot).get(&slot, 0).ok()
    }
}
