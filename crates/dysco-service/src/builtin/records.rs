//! Records, in which services at both ends of a session send its bytes to each other.

use bytes::{Buf, Bytes, BytesMut};

use crate::{Ends, Event, Flow, Needs, Out};

/// The records of a session at one of its ends.
pub(super) struct Records {
    /// The direction towards the other host.
    pub outward: Flow,
    /// Bytes of an incomplete record from there.
    buffer: BytesMut,
}

/// Meaning of an event for a service with records.
pub(super) enum Meaning {
    /// These bytes go to the other host.
    Send(Bytes),
    /// Bytes of records have arrived by this flow.
    Receive(Flow),
    /// The event does not concern records.
    Other(Event),
    /// Nothing more is to be done.
    Nothing,
}

impl Records {
    /// Needs of a service with records.
    pub(super) fn needs() -> Needs {
        Needs {
            ends: Ends::Pair,
            ..Needs::default()
        }
    }

    /// Creates the records of one end. `outward` is the direction towards the other host.
    pub(super) fn new(outward: Flow) -> Records {
        Records {
            outward,
            buffer: BytesMut::new(),
        }
    }

    /// Takes an event. The service fails if the other host's direction ends within a record.
    pub(super) fn take(&mut self, event: Event, out: &mut Out) -> Meaning {
        match event {
            Event::Data { flow, bytes } if flow == self.outward => Meaning::Send(bytes),
            Event::Data { flow, bytes } if flow.is_session() => {
                self.buffer.extend_from_slice(&bytes);
                Meaning::Receive(flow)
            }
            Event::Fin(flow) if !self.buffer.is_empty() && flow != self.outward => {
                out.fail("the session ended in the middle of a record");
                Meaning::Nothing
            }
            other => Meaning::Other(other),
        }
    }

    /// Returns the header of the next record; `None` if it is not complete.
    pub(super) fn header<const N: usize>(&self) -> Option<[u8; N]> {
        self.buffer.first_chunk().copied()
    }

    /// True if the next record is complete, with a header and a body of these numbers of bytes.
    pub(super) fn is_complete(&self, header: usize, len: usize) -> bool {
        self.buffer.len() >= header + len
    }

    /// Removes the next record, of this number of bytes behind a header of `header` bytes, and returns
    /// these bytes. Returns `None` if the record is not complete.
    pub(super) fn next(&mut self, header: usize, len: usize) -> Option<BytesMut> {
        if !self.is_complete(header, len) {
            return None;
        }
        self.buffer.advance(header);
        Some(self.buffer.split_to(len))
    }
}
