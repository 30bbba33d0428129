//! `crypt`: encrypts the bytes between two hosts.

mod sealed;

use bytes::BytesMut;
use dysco_explain::Cause;

use super::no_operation;
use super::records::{Meaning, Records};
use crate::{Event, Flow, Needs, Out, Service, Session};
pub use sealed::Key;
use sealed::{Record, Sealed};

/// Greatest number of bytes in a record.
const RECORD: usize = 16 * 1024;

/// Number of records after which a direction gets its next key: at most a terabyte of data. The
/// cipher allows far more.
const RECORDS: u64 = 1 << 26;

/// Encrypts bytes to the other host, and decrypts bytes from there. The two halves come into the
/// session, and leave it, at the same byte. A call of `rekey` gives both directions their next
/// keys; the earlier keys cannot be computed from them. A call of `read` returns the numbers of
/// records and of next keys.
pub struct Crypt {
    records: Records,
    seal: Sealed,
    open: Sealed,
    /// True if the direction towards the other host has ended, or the service has left it.
    ended: bool,
}

impl Crypt {
    /// Creates the service of one end. `outward` is the direction towards the other host; `keys`
    /// are those of `outward` and of the other direction.
    pub fn new(outward: Flow, keys: [Key; 2]) -> Result<Crypt, Cause> {
        let [Ok(seal), Ok(open)] = keys.map(|secret| Sealed::new(secret, 0)) else {
            return Err(Cause::new("the cipher takes no key of this length"));
        };
        Ok(Crypt {
            records: Records::new(outward),
            seal,
            open,
            ended: false,
        })
    }

    /// Announces the next key of the direction to the other host, and takes it. A direction that has
    /// ended needs none. Returns false then.
    fn rekey(&mut self, record: Record, out: &mut Out) -> bool {
        if self.ended {
            return false;
        }
        let mut bytes = BytesMut::new();
        let sealed = self.seal.seal(record, &[], &mut bytes);
        match sealed.and_then(|()| self.seal.advance()) {
            Ok(()) => out.send(self.records.outward, bytes),
            Err(_) => out.fail("the cipher refused a key"),
        }
        true
    }

    fn send(&mut self, bytes: &[u8], out: &mut Out) {
        let mut records = BytesMut::new();
        for part in bytes.chunks(RECORD) {
            if self.seal.seal(Record::Data, part, &mut records).is_err() {
                return out.fail("the cipher refused a record");
            }
        }
        out.send(self.records.outward, records);
        if self.seal.records >= RECORDS {
            self.rekey(Record::NextKey, out);
        }
    }

    fn receive(&mut self, flow: Flow, out: &mut Out) {
        loop {
            match self.open.open(&mut self.records) {
                Ok(None) => return,
                Ok(Some((Record::Data, bytes))) => out.send(flow, bytes),
                Ok(Some((Record::NextKey, _))) => {}
                Ok(Some((Record::BothNextKeys, _))) => {
                    self.rekey(Record::NextKey, out);
                }
                Err(_) => return out.fail("a record was forged or damaged on its way"),
            }
        }
    }

    fn call(&mut self, question: &[u8], out: &mut Out) {
        match question {
            b"rekey" => {
                let rekeyed = self.rekey(Record::BothNextKeys, out);
                out.answer(format!("{{\"rekeyed\":{rekeyed}}}"));
            }
            b"read" => {
                let [sealed, opened] = [&self.seal, &self.open]
                    .map(|one| format!("{{\"records\":{},\"keys\":{}}}", one.records, one.keys));
                out.answer(format!("{{\"sealed\":{sealed},\"opened\":{opened}}}"));
            }
            _ => out.refuse(no_operation("crypt", question, "read, or rekey")),
        }
    }
}

impl Service for Crypt {
    fn name(&self) -> &'static str {
        "crypt"
    }

    fn needs(&self, _: &Session) -> Result<Needs, Cause> {
        Ok(Records::needs())
    }

    fn on(&mut self, event: Event, out: &mut Out) {
        match self.records.take(event, out) {
            Meaning::Send(bytes) => self.send(&bytes, out),
            Meaning::Receive(flow) => self.receive(flow, out),
            Meaning::Other(Event::Fin(flow)) if flow == self.records.outward => {
                self.ended = true;
                out.fin(flow);
            }
            Meaning::Other(Event::Leave) => {
                // The other half does not get later bytes.
                self.ended = true;
                out.leave();
            }
            Meaning::Other(Event::Call(question)) => self.call(&question, out),
            Meaning::Other(other) => other.pass_on(out),
            Meaning::Nothing => {}
        }
    }
}
