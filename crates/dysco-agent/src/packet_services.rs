//! Services of the packet plane: their records, which the programs share, and their programs on the
//! interfaces.

use std::collections::BTreeSet;
use std::path::Path;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData};
use dysco_common::FlowKey;
use dysco_common::packet_services::{Lane, MAX_PACKET_SERVICES, PacketServices};

use crate::Agent;
use crate::agent::{Key, lock, map_error, take};
use crate::attach;
use crate::error::AgentError;
use crate::interfaces::Place;
use crate::load::Loaded;
use crate::mapped::Mapped;
use crate::qdiscs;

/// Records of all sessions with services of the packet plane.
pub(crate) struct Records {
    memory: Mapped<PacketServices>,
    /// The map of `memory`: the programs are loaded later, and name it by its descriptor.
    _map: MapData,
    by_key: Mutex<HashMap<MapData, Key, u32>>,
    /// Records that no session has.
    free: Mutex<BTreeSet<u32>>,
}

impl Records {
    pub fn open(ebpf: &mut Ebpf) -> Result<Records, AgentError> {
        let Map::Array(records) = take(ebpf, "PACKET_SERVICES")? else {
            return Err(AgentError::Missing("array PACKET_SERVICES"));
        };
        let memory = Mapped::new(records.fd(), MAX_PACKET_SERVICES)?;
        let by_key = HashMap::try_from(take(ebpf, "PACKET_SERVED")?);
        let by_key = by_key.map_err(map_error("open", "PACKET_SERVED"))?;
        let records = Records {
            memory,
            _map: records,
            by_key: Mutex::new(by_key),
            free: Mutex::default(),
        };
        let unused = (0..MAX_PACKET_SERVICES).filter(|index| records.read(*index).services == 0);
        let free = unused.collect();
        Ok(Records {
            free: Mutex::new(free),
            ..records
        })
    }

    fn read(&self, index: u32) -> PacketServices {
        // SAFETY: `at` gives a valid record; every bit pattern is one.
        unsafe { ptr::read_volatile(self.memory.at(index)) }
    }

    /// Fills a record that no program uses, or empties one.
    fn seed(&self, index: u32, record: &PacketServices) {
        // SAFETY: as in `read`.
        unsafe { ptr::write_volatile(self.memory.at(index), *record) };
    }

    fn index(&self, key: &FlowKey) -> Option<u32> {
        let index = lock(&self.by_key).get(&Key(key.short()), 0).ok()?;
        (self.read(index).key == *key).then_some(index)
    }

    /// True if a session has services.
    pub fn in_use(&self) -> bool {
        lock(&self.free).len() < MAX_PACKET_SERVICES as usize
    }

    fn set_rate(&self, index: u32, out: bool, rate: u64) {
        let record = self.memory.at(index);
        // SAFETY: addresses of fields of a valid record.
        let lane: *mut Lane = unsafe {
            match out {
                true => &raw mut (*record).out,
                false => &raw mut (*record).back,
            }
        };
        // SAFETY: as above; aligned double words of the mapping, which lives as long as `self`.
        let (limit, due) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*lane).rate),
                AtomicU64::from_ptr(&raw mut (*lane).due),
            )
        };
        limit.store(rate, Ordering::SeqCst);
        // What passed at the earlier rate does not wait at this one.
        due.store(0, Ordering::SeqCst);
    }
}

impl Agent {
    /// Gives a session services of the packet plane, from its next packet on. With the first one,
    /// puts their programs on all interfaces.
    ///
    /// # Errors
    /// If no record is free, or the kernel refuses a program or its place. Nothing is changed then.
    pub fn serve(&self, record: &PacketServices) -> Result<(), AgentError> {
        let records = &self.packet_services;
        let first = !records.in_use();
        let index = lock(&records.free).pop_first();
        let index = index.ok_or(AgentError::NoPacketServices)?;
        records.seed(index, record);
        let key = Key(record.key.short());
        let written = lock(&records.by_key).insert(key, index, 0);
        let written = written.map_err(map_error("write", "PACKET_SERVED"));
        // An interface that comes from now on gets the programs as it comes.
        let attached = match first {
            true => written.and_then(|()| self.attach_served()),
            false => written,
        };
        attached.inspect_err(|_| {
            self.unserve(&record.key);
        })
    }

    /// Takes a session's services out. With the last one, takes their programs off the interfaces.
    /// Returns the record, if there was one.
    pub fn unserve(&self, key: &FlowKey) -> Option<PacketServices> {
        let records = &self.packet_services;
        let index = records.index(key)?;
        let record = records.read(index);
        // An error means that it is not there.
        let _ = lock(&records.by_key).remove(&Key(key.short()));
        records.seed(index, &PacketServices::default());
        lock(&records.free).insert(index);
        if !records.in_use() {
            for one in self.attached() {
                attach::detach_served(&self.dir, &one.interface);
            }
        }
        Some(record)
    }

    /// Returns the record of a session with services of the packet plane.
    pub fn packet_services(&self, key: &FlowKey) -> Option<PacketServices> {
        let index = self.packet_services.index(key)?;
        Some(self.packet_services.read(index))
    }

    /// Returns the records of all such sessions.
    pub fn all_packet_services(&self) -> Vec<PacketServices> {
        let used = {
            let free = lock(&self.packet_services.free);
            let all = 0..MAX_PACKET_SERVICES;
            all.filter(|index| !free.contains(index))
                .collect::<Vec<_>>()
        };
        let records = used.into_iter();
        records
            .map(|index| self.packet_services.read(index))
            .filter(|record| record.services != 0)
            .collect()
    }

    /// Changes the rates of a session's directions, in bits per second; 0 for no limit, and `None`
    /// leaves one. The first is of the direction in which the local end sends.
    pub fn limit_packets(&self, key: &FlowKey, rates: [Option<u64>; 2]) {
        let Some(index) = self.packet_services.index(key) else {
            return;
        };
        for (out, rate) in [true, false].into_iter().zip(rates) {
            if let Some(rate) = rate {
                self.packet_services.set_rate(index, out, rate);
            }
        }
    }

    /// Returns true if all interfaces that the programs are on send packets at their departure
    /// times. If the kernel does not tell, none does.
    pub fn sends_on_time(&self) -> bool {
        let attached = self.attached();
        let mut present = attached.iter().filter_map(|one| one.index).peekable();
        present.peek().is_some() && present.all(|one| qdiscs::sends_on_time(one).unwrap_or(false))
    }

    /// Sets whether packets of a session leave at departure times.
    pub fn set_timed(&self, key: &FlowKey, timed: bool) {
        if let Some(index) = self.packet_services.index(key) {
            let record = self.packet_services.memory.at(index);
            // SAFETY: the address of a field of a valid record.
            let word = unsafe { &raw mut (*record).timed };
            let word = self.packet_services.memory.word(word);
            word.store(u32::from(timed), Ordering::SeqCst);
        }
    }

    fn attach_served(&self) -> Result<(), AgentError> {
        let attached = self.attached();
        let present = attached.iter().filter(|one| one.index.is_some());
        let mut loaded = lock(&self.loaded);
        for one in present {
            attach::attach_served(&mut loaded, &self.dir, &one.interface, one.attach)?;
        }
        Ok(())
    }
}

/// Replaces the programs of an earlier process, whose sessions still have services.
pub(crate) fn take_up(
    records: &Records,
    loaded: &mut Loaded,
    dir: &Path,
    places: &[Place],
) -> Result<(), AgentError> {
    for place in places {
        let one = &place.attached;
        match records.in_use() {
            true => attach::attach_served(loaded, dir, &one.interface, one.attach)?,
            // It may have been killed while it took them off.
            false => attach::detach_served(dir, &one.interface),
        }
    }
    Ok(())
}
