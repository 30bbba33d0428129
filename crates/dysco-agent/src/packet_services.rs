//! Services of the packet plane: their records, which the programs share, and their programs on the
//! interfaces.

pub(crate) mod records;

use std::sync::atomic::Ordering;

use dysco_common::packet_services::{MAX_PACKET_SERVICES, PacketServices};
use dysco_common::{FlowKey, Session};

use crate::Agent;
use crate::attach;
use crate::error::AgentError;
use crate::maps::{Key, lock, map_error};
use crate::qdiscs;

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
        attached.inspect_err(|_| self.free_packet_services(&record.key, index))
    }

    /// Takes a session's services out. With the last one, takes their programs off the interfaces.
    /// Returns the record, if there was one.
    pub fn unserve(&self, key: &FlowKey) -> Option<PacketServices> {
        let records = &self.packet_services;
        let index = records.index(key)?;
        let record = records.read(index);
        self.free_packet_services(key, index);
        Some(record)
    }

    fn free_packet_services(&self, key: &FlowKey, index: u32) {
        let records = &self.packet_services;
        // An error means that it is not there.
        let _ = lock(&records.by_key).remove(&Key(key.short()));
        records.seed(index, &PacketServices::default());
        lock(&records.free).insert(index);
        if !records.in_use() {
            for one in self.attached() {
                attach::detach_served(&self.dir, &one.interface);
            }
        }
    }

    /// Returns the record of a session, if it has services of the packet plane.
    pub fn packet_services(&self, s: &Session) -> Option<PacketServices> {
        // A listing asks about each session.
        if !self.packet_services.in_use() {
            return None;
        }
        let index = self.packet_services.index(&s.key)?;
        let record = self.packet_services.read(index);
        // A record may be of a former session with these addresses and ports.
        (record.created_ns == s.created_ns).then_some(record)
    }

    /// Returns the records of all such sessions.
    pub fn all_packet_services(&self) -> Vec<PacketServices> {
        // The sweep asks each second.
        if !self.packet_services.in_use() {
            return Vec::new();
        }
        let used: Vec<u32> = {
            let free = lock(&self.packet_services.free);
            let mut free = free.iter().peekable();
            let all = 0..MAX_PACKET_SERVICES;
            all.filter(|index| free.next_if_eq(&index).is_none())
                .collect()
        };
        let records = used
            .into_iter()
            .map(|index| self.packet_services.read(index));
        records.filter(|record| record.services != 0).collect()
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

    /// Changes the services of a session that has some, with their rates and delay. Counts stay.
    pub fn change_packet_services(&self, wanted: &PacketServices) {
        if let Some(index) = self.packet_services.index(&wanted.key) {
            self.packet_services.change(index, wanted);
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
