//! Events out of the programs' ring buffer.

use std::io;

use aya::maps::{MapData, RingBuf};
use dysco_common::EventKind;
use tokio::io::unix::AsyncFd;

/// The stream of events.
pub struct Events(AsyncFd<RingBuf<MapData>>);

impl Events {
    pub(crate) fn new(ring: RingBuf<MapData>) -> io::Result<Events> {
        // SAFETY: the ring owns its descriptor and keeps it as long as it lives.
        let fd = unsafe { AsyncFd::register_with_interest(ring, tokio::io::Interest::READABLE) }?;
        Ok(Events(fd))
    }

    /// Waits for events and adds them to `into` as (kind, slot). Records of
    /// unknown kinds are skipped. Cancel-safe.
    pub async fn read(&mut self, into: &mut Vec<(EventKind, u32)>) -> io::Result<()> {
        loop {
            let mut guard = self.0.readable_mut().await?;
            take(guard.get_inner_mut(), into);
            guard.clear_ready();
            if !into.is_empty() {
                return Ok(());
            }
        }
    }

    /// Takes what there is, also what nobody was woken for.
    pub fn take(&mut self, into: &mut Vec<(EventKind, u32)>) {
        take(self.0.get_mut(), into);
    }
}

fn take(ring: &mut RingBuf<MapData>, into: &mut Vec<(EventKind, u32)>) {
    while let Some(item) = ring.next() {
        let Ok(bytes) = <&[u8; 8]>::try_from(&*item) else {
            continue;
        };
        let [a, b, c, d, e, f, g, h] = *bytes;
        let kind = u32::from_ne_bytes([a, b, c, d]);
        if let Some(kind) = EventKind::from_word(kind) {
            into.push((kind, u32::from_ne_bytes([e, f, g, h])));
        }
    }
}
