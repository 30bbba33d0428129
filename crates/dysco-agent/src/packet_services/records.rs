//! Records of sessions with services of the packet plane. The programs share them.

use std::collections::BTreeSet;
use std::path::Path;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData};
use dysco_common::FlowKey;
use dysco_common::packet_services::{Lane, MAX_PACKET_SERVICES, PacketServices, service};

use crate::attach;
use crate::error::AgentError;
use crate::interfaces::Place;
use crate::load::Loaded;
use crate::mapped::Mapped;
use crate::maps::{Key, lock, open, take};

/// Records of all sessions with services of the packet plane.
pub(crate) struct Records {
    pub(super) memory: Mapped<PacketServices>,
    /// The map of `memory`: the programs are loaded later, and name it by its descriptor.
    _map: MapData,
    pub(super) by_key: Mutex<HashMap<MapData, Key, u32>>,
    /// Records that no session has.
    pub(super) free: Mutex<BTreeSet<u32>>,
}

impl Records {
    pub(crate) fn open(ebpf: &mut Ebpf) -> Result<Records, AgentError> {
        let Map::Array(records) = take(ebpf, "PACKET_SERVICES")? else {
            return Err(AgentError::Missing("array PACKET_SERVICES"));
        };
        let memory = Mapped::new(records.fd(), MAX_PACKET_SERVICES)?;
        let records = Records {
            memory,
            _map: records,
            by_key: Mutex::new(open(ebpf, "PACKET_SERVED")?),
            free: Mutex::default(),
        };
        let free = (0..MAX_PACKET_SERVICES).filter(|index| records.is_free(*index));
        let free = free.collect();
        Ok(Records {
            free: Mutex::new(free),
            ..records
        })
    }

    /// True if no session has the record. Empties one that no program finds: a process was killed
    /// between two stores.
    fn is_free(&self, index: u32) -> bool {
        let record = self.read(index);
        let used = record.services != 0;
        if used && self.index(&record.key) != Some(index) {
            self.seed(index, &PacketServices::default());
            return true;
        }
        !used
    }

    pub(super) fn read(&self, index: u32) -> PacketServices {
        // SAFETY: `at` gives a valid record; every bit pattern is one.
        unsafe { ptr::read_volatile(self.memory.at(index)) }
    }

    /// Fills a record that no program uses, or empties one.
    pub(super) fn seed(&self, index: u32, record: &PacketServices) {
        // SAFETY: as in `read`.
        unsafe { ptr::write_volatile(self.memory.at(index), *record) };
    }

    pub(super) fn index(&self, key: &FlowKey) -> Option<u32> {
        let index = lock(&self.by_key).get(&Key(key.short()), 0).ok()?;
        (self.read(index).key == *key).then_some(index)
    }

    /// True if a session has services.
    pub(crate) fn in_use(&self) -> bool {
        lock(&self.free).len() < MAX_PACKET_SERVICES as usize
    }

    /// Changes the services of a record in use. A program that runs meanwhile may apply some of the
    /// values before, and some of those after, to its packet.
    pub(super) fn change(&self, index: u32, wanted: &PacketServices) {
        let before = self.read(index);
        let lanes = [
            (true, before.out.rate, wanted.out.rate),
            (false, before.back.rate, wanted.back.rate),
        ];
        for (out, _, rate) in lanes.into_iter().filter(|(_, had, rate)| had != rate) {
            self.set_rate(index, out, rate);
        }
        let record = self.memory.at(index);
        // SAFETY: addresses of aligned fields of a valid record, in the mapping, which lives as long
        // as `self`.
        let (delay, services, counts) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*record).out.delay_ns),
                AtomicU32::from_ptr(&raw mut (*record).services),
                [
                    AtomicU64::from_ptr(&raw mut (*record).out.packets),
                    AtomicU64::from_ptr(&raw mut (*record).out.bytes),
                    AtomicU64::from_ptr(&raw mut (*record).back.packets),
                    AtomicU64::from_ptr(&raw mut (*record).back.bytes),
                ],
            )
        };
        if wanted.services & !before.services & service::COUNT != 0 {
            // The programs count for other services as well.
            counts
                .iter()
                .for_each(|count| count.store(0, Ordering::SeqCst));
        }
        delay.store(wanted.out.delay_ns, Ordering::SeqCst);
        services.store(wanted.services, Ordering::SeqCst);
    }

    pub(super) fn set_rate(&self, index: u32, out: bool, rate: u64) {
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
        // Bytes that passed at the earlier rate cause no delay at the new one.
        due.store(0, Ordering::SeqCst);
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
