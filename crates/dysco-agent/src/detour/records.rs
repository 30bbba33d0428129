//! Records of detours, by the slots of their sessions.

use std::collections::BTreeSet;
use std::sync::Mutex;

use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData};
use dysco_common::detour::MAX_DETOURS;

use super::memory::Memory;
use crate::error::AgentError;
use crate::maps::{lock, map_error, take};

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
    pub fn open(ebpf: &mut Ebpf) -> Result<Detours, AgentError> {
        let Map::Array(records) = take(ebpf, "DETOURS")? else {
            return Err(AgentError::Missing("array DETOURS"));
        };
        let memory = Memory::map(records.fd(), MAX_DETOURS)?;
        let by_slot = HashMap::try_from(take(ebpf, "DETOURED")?);
        let by_slot = by_slot.map_err(map_error("open", "DETOURED"))?;
        let runs = HashMap::try_from(take(ebpf, "RUNS")?);
        let runs = runs.map_err(map_error("open", "RUNS"))?;
        let unused = |index: &u32| memory.read(*index).slot == 0;
        let free = (0..MAX_DETOURS).filter(unused).collect();
        Ok(Detours {
            memory,
            by_slot: Mutex::new(by_slot),
            free: Mutex::new(free),
            runs: Mutex::new(runs),
        })
    }

    pub(super) fn index(&self, slot: u32) -> Option<u32> {
        lock(&self.by_slot).get(&slot, 0).ok()
    }
}
