//! Records of changes in progress, in one file that is appended to. A record is needed in every
//! change, and an append costs a tenth of a separate file.
//!
//! A frame is the length of its body and the body's CRC-32, both little-endian words, and the body.
//! The body is the change's 16 bytes, its record, and the time at which it was first written
//! (nanoseconds of CLOCK_BOOTTIME, little-endian). Once the change is over, the body is its 16
//! bytes alone. The file is not synced: it outlives the process, and sessions do not outlive the
//! machine.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use dysco_config::private;
use dysco_proto::ChangeId;

/// Length from which the file is rewritten when most of it is obsolete.
const LONG: u64 = 1 << 20;
/// Number of bytes before a body.
const HEAD: usize = 8;
const ID: usize = 16;

/// Journal file and its contents.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    length: u64,
    /// True if the file may end with a part of a frame behind this length.
    torn: bool,
    live: HashMap<ChangeId, Live>,
    /// Frames of changes that are over, to be appended with the next record.
    over: Vec<u8>,
}

/// Contents of the journal for one change.
struct Live {
    begun: u64,
    record: Vec<u8>,
}

impl Journal {
    /// Reads the file, or begins it. Its last frame may be incomplete: no step of a change has
    /// followed it. Any other damage is an error, since the data that a change needs would be lost.
    pub(super) fn open(path: &Path) -> io::Result<Journal> {
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        // A file of an earlier release may be readable by all.
        file.set_permissions(Permissions::from_mode(0o600))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let mut live = HashMap::new();
        let mut rest = bytes.as_slice();
        while let Some((body, after)) = split_frame(rest)? {
            let (change, begun, record) = split_body(body).ok_or_else(damaged)?;
            let record = record.to_vec();
            match record.is_empty() {
                true => live.remove(&change),
                false => live.insert(change, Live { begun, record }),
            };
            rest = after;
        }
        let length = (bytes.len() - rest.len()) as u64;
        file.set_len(length)?;
        Ok(Journal {
            path: path.to_owned(),
            file,
            length,
            torn: false,
            live,
            over: Vec::new(),
        })
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the records of changes that were not over when the file was read.
    pub(super) fn records(&self) -> Vec<Vec<u8>> {
        self.live.values().map(|live| live.record.clone()).collect()
    }

    /// Returns the time at which a change was first written, in nanoseconds of CLOCK_BOOTTIME.
    pub(super) fn begun(&self, change: ChangeId) -> Option<u64> {
        self.live.get(&change).map(|live| live.begun)
    }

    /// Writes changes' records in place of the previous ones, by one append. If it fails, all
    /// previous records stay. A record that is there already is not written again. `now` is the time
    /// of the write.
    pub(super) fn write<'a>(
        &mut self,
        records: impl IntoIterator<Item = (ChangeId, &'a [u8])>,
        now: u64,
    ) -> io::Result<()> {
        let mut frames = Vec::new();
        let mut written = Vec::new();
        for (change, record) in records {
            let before = self.live.get(&change);
            if before.is_some_and(|live| live.record == record) {
                continue;
            }
            let begun = before.map_or(now, |live| live.begun);
            frames.extend(frame(change, record, &begun.to_le_bytes()));
            let record = record.to_vec();
            written.push((change, Live { begun, record }));
        }
        if written.is_empty() {
            return Ok(());
        }
        self.append(&frames)?;
        self.live.extend(written);
        // The record is written: a failure to shorten the file must not be reported as a failed
        // write.
        if let Err(error) = self.shorten() {
            tracing::warn!(%error, "the journal cannot be shortened");
        }
        Ok(())
    }

    /// Records that the change is over. The next write or flush puts this into the file.
    pub(super) fn erase(&mut self, change: ChangeId) {
        if self.live.remove(&change).is_some() {
            self.over.extend(frame(change, &[], &[]));
        }
    }

    /// Writes which changes are over.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.over.is_empty() {
            return Ok(());
        }
        self.append(&[])?;
        self.shorten()
    }

    /// Appends frames after those of changes that are over.
    fn append(&mut self, frames: &[u8]) -> io::Result<()> {
        self.cut_torn()?;
        let mut all = std::mem::take(&mut self.over);
        let over = all.len();
        all.extend(frames);
        if let Err(error) = self.file.write_all(&all) {
            all.truncate(over);
            self.over = all;
            self.torn = true;
            // If this fails as well, the next append begins with it.
            let _ = self.cut_torn();
            return Err(error);
        }
        self.length += all.len() as u64;
        Ok(())
    }

    /// Removes what a failed append has left: a part of a frame would end what can be read of the
    /// file.
    fn cut_torn(&mut self) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.length)?;
            self.torn = false;
        }
        Ok(())
    }

    /// Removes obsolete frames, if they are most of the file.
    fn shorten(&mut self) -> io::Result<()> {
        if self.length <= LONG {
            return Ok(());
        }
        let frames: Vec<u8> = self
            .live
            .iter()
            .flat_map(|(change, live)| frame(*change, &live.record, &live.begun.to_le_bytes()))
            .collect();
        if self.length < 4 * frames.len() as u64 {
            return Ok(());
        }
        let temporary = self.path.with_extension("new");
        private::write(&temporary, &frames)?;
        // The file is opened before it has its final name: a failure until then changes nothing.
        let file = OpenOptions::new().append(true).open(&temporary)?;
        fs::rename(&temporary, &self.path)?;
        (self.file, self.length, self.torn) = (file, frames.len() as u64, false);
        Ok(())
    }
}

fn frame(change: ChangeId, record: &[u8], begun: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEAD + ID + record.len() + begun.len());
    frame.extend([0; HEAD]);
    frame.extend(change.0);
    frame.extend(record);
    frame.extend(begun);
    let body = &frame[HEAD..];
    // Records are a few hundred bytes.
    let (length, sum) = (body.len() as u32, crc32fast::hash(body));
    frame[..4].copy_from_slice(&length.to_le_bytes());
    frame[4..HEAD].copy_from_slice(&sum.to_le_bytes());
    frame
}

/// Returns the first body and what follows it; `None` if no complete frame is left.
fn split_frame(bytes: &[u8]) -> io::Result<Option<(&[u8], &[u8])>> {
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return Ok(None);
    };
    let Some((sum, rest)) = rest.split_first_chunk() else {
        return Ok(None);
    };
    let Some((body, rest)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize) else {
        return Ok(None);
    };
    if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return Err(damaged());
    }
    Ok(Some((body, rest)))
}

fn split_body(body: &[u8]) -> Option<(ChangeId, u64, &[u8])> {
    let (id, rest) = body.split_first_chunk::<ID>()?;
    if rest.is_empty() {
        return Some((ChangeId(*id), 0, rest));
    }
    // A record of another release also begins with its version.
    let (record, begun) = rest.split_last_chunk()?;
    Some((ChangeId(*id), u64::from_le_bytes(*begun), record))
}

fn damaged() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a frame's sum is not its bytes'",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ChangeId = ChangeId([1; 16]);
    const B: ChangeId = ChangeId([2; 16]);

    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("changes");
        (dir, path)
    }

    fn sorted(journal: &Journal) -> Vec<Vec<u8>> {
        let mut records = journal.records();
        records.sort();
        records
    }

    #[test]
    fn what_was_written_last_is_read_again() {
        let (_dir, path) = place();
        let mut journal = Journal::open(&path).unwrap();
        journal.write([(A, &b"first"[..])], 1).unwrap();
        journal.write([(B, &b"other"[..])], 1).unwrap();
        journal.write([(A, &b"second"[..])], 2).unwrap();
        assert_eq!(
            sorted(&Journal::open(&path).unwrap()),
            [&b"other"[..], b"second"]
        );
        assert_eq!(Journal::open(&path).unwrap().begun(A), Some(1));
        journal.erase(B);
        journal.erase(B);
        let before = fs::read(&path).unwrap();
        journal.flush().unwrap();
        assert!(fs::read(&path).unwrap().len() > before.len());
        assert_eq!(sorted(&Journal::open(&path).unwrap()), [b"second"]);
    }

    #[test]
    fn many_records_are_one_append_and_none_is_written_twice() {
        let (_dir, path) = place();
        let mut journal = Journal::open(&path).unwrap();
        let all = [(A, &b"one"[..]), (B, b"other")];
        journal.write(all, 1).unwrap();
        let length = fs::metadata(&path).unwrap().len();
        journal.write(all, 2).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), length);
        // The end of a change precedes later records.
        journal.erase(A);
        journal.write([(A, &b"again"[..])], 3).unwrap();
        let journal = Journal::open(&path).unwrap();
        assert_eq!(sorted(&journal), [&b"again"[..], b"other"]);
        assert_eq!(journal.begun(A), Some(3));
    }

    /// Written as by the previous release: ended changes are over, and the others have their
    /// version.
    #[test]
    fn another_releases_is_read_as_far_as_it_goes() {
        let (_dir, path) = place();
        let record = b"\x05 of another release";
        let all = [
            frame(A, record, &[]),
            frame(B, record, &[]),
            frame(B, &[], &[]),
        ];
        fs::write(&path, all.concat()).unwrap();
        let records = Journal::open(&path).unwrap().records();
        assert_eq!(records.len(), 1);
        assert_eq!(records[0][0], 5);
    }

    #[test]
    fn a_torn_frame_is_forgotten_and_nothing_else() {
        let (_dir, path) = place();
        let mut journal = Journal::open(&path).unwrap();
        journal.write([(A, &b"whole"[..])], 1).unwrap();
        let whole = fs::read(&path).unwrap();
        journal.write([(B, &b"torn"[..])], 1).unwrap();
        let torn = fs::read(&path).unwrap();
        for length in whole.len()..torn.len() {
            fs::write(&path, &torn[..length]).unwrap();
            let mut journal = Journal::open(&path).unwrap();
            assert_eq!(sorted(&journal), [b"whole"], "{length} bytes");
            journal.write([(B, &b"again"[..])], 1).unwrap();
            assert_eq!(sorted(&Journal::open(&path).unwrap()), [b"again", b"whole"]);
        }
    }

    #[test]
    fn damage_is_told_and_not_read_over() {
        let (_dir, path) = place();
        let mut journal = Journal::open(&path).unwrap();
        journal.write([(A, &b"damaged"[..])], 1).unwrap();
        journal.write([(B, &b"behind it"[..])], 1).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        bytes[HEAD + ID] ^= 1;
        fs::write(&path, bytes).unwrap();
        let error = Journal::open(&path).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn it_stays_short() {
        let (_dir, path) = place();
        let mut journal = Journal::open(&path).unwrap();
        journal.write([(A, &b"stays"[..])], 1).unwrap();
        let record = [7; 1000];
        for _ in 0..3_000 {
            journal.write([(B, &record[..])], 1).unwrap();
            assert!(fs::metadata(&path).unwrap().len() <= LONG + 2_000);
        }
        journal.erase(B);
        journal.flush().unwrap();
        let journal = Journal::open(&path).unwrap();
        assert_eq!(sorted(&journal), [b"stays"]);
        assert_eq!([A, B].map(|change| journal.begun(change)), [Some(1), None]);
    }

    #[test]
    fn what_cannot_be_written_is_reported() {
        let (_dir, path) = place();
        let mut journal = Journal::open(&path).unwrap();
        journal.write([(A, &b"before"[..])], 1).unwrap();
        journal.file = File::open(&path).unwrap();
        assert!(journal.write([(A, &b"after"[..])], 1).is_err());
        assert_eq!(sorted(&journal), [b"before"]);
        assert_eq!(sorted(&Journal::open(&path).unwrap()), [b"before"]);
    }

    /// A file system that is full takes a part of a frame, and one that fails does not even shorten
    /// the file.
    #[test]
    fn a_part_of_a_frame_is_cut_off_before_the_next_append() {
        let (_dir, path) = place();
        let mut journal = Journal::open(&path).unwrap();
        journal.write([(A, &b"before"[..])], 1).unwrap();
        let mut other = OpenOptions::new().append(true).open(&path).unwrap();
        other
            .write_all(&frame(B, b"torn", &[0; 8])[..HEAD + 3])
            .unwrap();
        let whole = std::mem::replace(&mut journal.file, File::open(&path).unwrap());
        journal.erase(A);
        assert!(journal.write([(B, &b"after"[..])], 1).is_err());
        assert!(journal.flush().is_err());
        journal.file = whole;
        journal.write([(B, &b"after"[..])], 2).unwrap();
        assert_eq!(sorted(&Journal::open(&path).unwrap()), [b"after"]);
    }
}
