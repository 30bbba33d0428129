//! Records of detours, by the slots of their sessions.

use std::collections::BTreeSet;
use std::io;
use std::sync::Mutex;

use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData};
use dysco_common::detour::{Detour, MAX_DETOURS};

use super::memory::Memory;
use crate::error::AgentError;
use crate::links::{Link, links};
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

    /// Returns the interface of a session with a detour.
    pub(crate) fn interface_of(&self, slot: u32) -> Option<u32> {
        Some(self.memory.read(self.index(slot)?).interface)
    }

    /// Leads sessions by the interface that is in the place of one that is gone.
    pub(crate) fn lead_by(&self, gone: u32, to: &Link) {
        let Some(address) = to.address else {
            return;
        };
        for (index, d) in self.used() {
            if d.interface == gone {
                self.memory.lead_by(index, to.index, address);
            }
        }
    }

    /// Takes the Ethernet addresses that the interfaces of sessions have now.
    ///
    /// # Errors
    /// If the kernel does not list its interfaces.
    pub(crate) fn follow_addresses(&self) -> io::Result<()> {
        let mut used = self.used().peekable();
        // The sweep asks each second.
        if used.peek().is_none() {
            return Ok(());
        }
        let all = links()?;
        for (index, d) in used {
            let link = all.iter().find(|link| link.index == d.interface);
            if let Some(address) = link.and_then(|link| link.address)
                && address != d.address[..6]
            {
                self.memory.lead_by(index, d.interface, address);
            }
        }
        Ok(())
    }

    /// Returns the records in use, with their numbers.
    fn used(&self) -> impl Iterator<Item = (u32, Detour)> {
        let used: Vec<u32> = {
            let free = lock(&self.free);
            (0..MAX_DETOURS)
                .filter(|index| !free.contains(index))
                .collect()
        };
        let records = used.into_iter();
        let records = records.map(|index| (index, self.memory.read(index)));
        records.filter(|(_, record)| record.slot != 0)
    }

    pub(super) fn index(&self, slot: u32) -> Option<u32> {
        lock(&self.by_slot).get(&slot, 0).ok()
    }
}
