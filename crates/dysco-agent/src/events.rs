//! Events out of the programs' ring buffer.

use std::io;

use aya::maps::{MapData, RingBuf};
use dysco_common::EventKind;
use dysco_common::probe::Arrival;
use tokio::io::unix::AsyncFd;

/// The stream of events.
pub struct Events(AsyncFd<RingBuf<MapData>>);

/// Records that the programs have reported.
#[derive(Default)]
pub struct Happened {
    /// Kind of each event and its slot, in order.
    pub events: Vec<(EventKind, u32)>,
    /// Packets that open paths. Each has arrived before the corresponding entry of `events`.
    pub arrivals: Vec<Arrival>,
}

impl Happened {
    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.arrivals.is_empty()
    }
}

impl Events {
    pub(crate) fn new(ring: RingBuf<MapData>) -> io::Result<Events> {
        // SAFETY: the ring owns its descriptor and keeps it as long as it lives.
        let fd = unsafe { AsyncFd::register_with_interest(ring, tokio::io::Interest::READABLE) }?;
        Ok(Events(fd))
    }

    /// Waits for events and adds them to `into`. Records of unknown kinds are
    /// skipped. Cancel-safe.
    pub async fn read(&mut self, into: &mut Happened) -> io::Result<()> {
        loop {
            let mut guard = self.0.readable_mut().await?;
            take(guard.get_inner_mut(), into);
            guard.clear_ready();
            if !into.is_empty() {
                return Ok(());
            }
        }
    }

    /// Takes the records that are there, including those for which nobody was woken.
    pub fn take(&mut self, into: &mut Happened) {
        take(self.0.get_mut(), into);
    }
}

fn take(ring: &mut RingBuf<MapData>, into: &mut Happened) {
    while let Some(item) = ring.next() {
        if let Some(arrival) = arrival(&item) {
            into.arrivals.push(arrival);
            continue;
        }
        let Ok(bytes) = <&[u8; 8]>::try_from(&*item) else {
            continue;
        };
        let [a, b, c, d, e, f, g, h] = *bytes;
        let kind = u32::from_ne_bytes([a, b, c, d]);
        if let Some(kind) = EventKind::from_word(kind) {
            into.events.push((kind, u32::from_ne_bytes([e, f, g, h])));
        }
    }
}

fn arrival(record: &[u8]) -> Option<Arrival> {
    if record.len() != size_of::<Arrival>() {
        return None;
    }
    // SAFETY: of the right length; words and bytes, of which all values are valid.
    let arrival: Arrival = unsafe { record.as_ptr().cast::<Arrival>().read_unaligned() };
    (arrival.kind == EventKind::Arrived as u32).then_some(arrival)
}
