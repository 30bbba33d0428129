//! A file of what is known of sessions, which the next process reads: one JSON object a line,
//! appended. Its owner has all of it in memory. A line that cannot be written is kept there only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use dysco_config::private;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum number of bytes that wait to be written together.
const BUFFERED: usize = 64 << 10;
/// Length from which the file is rewritten when most of it is obsolete.
pub(super) const LONG: u64 = 1 << 20;

/// The file. Nothing is written before it was first replaced.
pub(super) struct LineFile {
    path: PathBuf,
    file: Option<File>,
    waiting: Vec<u8>,
    length: u64,
    /// Length of the file when it was last replaced.
    anew: u64,
    /// Loss if the file cannot be written, which is reported once.
    loss: &'static str,
    failed: bool,
}

impl LineFile {
    /// Returns the lines that a former process has written. The last one may be incomplete.
    pub fn lines<T: DeserializeOwned>(path: &Path) -> Vec<T> {
        let text = fs::read(path).unwrap_or_default();
        let lines = text.split(|b| *b == b'\n');
        lines
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect()
    }

    /// Returns the file at this path.
    pub fn at(path: &Path, loss: &'static str) -> LineFile {
        LineFile {
            path: path.to_owned(),
            file: None,
            waiting: Vec::new(),
            length: 0,
            anew: 0,
            loss,
            failed: false,
        }
    }

    /// Appends a line, which waits for others or for a flush.
    pub fn write(&mut self, line: &impl Serialize) {
        append(&mut self.waiting, line);
        if self.waiting.len() > BUFFERED {
            self.flush();
        }
    }

    /// Writes the lines that wait.
    pub fn flush(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        if let Some(file) = &mut self.file {
            let written = file.write_all(&waiting);
            self.length += waiting.len() as u64;
            self.reported(written);
        }
    }

    /// Returns true if most of a long file is obsolete.
    pub fn is_obsolete(&self) -> bool {
        self.length > LONG && self.length > 4 * self.anew
    }

    /// Replaces the file by these lines atomically.
    pub fn replace<T: Serialize>(&mut self, lines: impl Iterator<Item = T>) {
        let mut text = Vec::new();
        lines.for_each(|line| append(&mut text, &line));
        self.waiting.clear();
        let temporary = self.path.with_extension("new");
        let begun = private::write(&temporary, &text)
            .and_then(|()| fs::rename(&temporary, &self.path))
            .and_then(|()| OpenOptions::new().append(true).open(&self.path));
        self.length = text.len() as u64;
        self.anew = self.length;
        let begun = begun.map(|file| self.file = Some(file));
        self.reported(begun);
    }

    fn reported(&mut self, done: io::Result<()>) {
        if let Err(error) = done
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::warn!(path = %self.path.display(), %error, "{}", self.loss);
        }
    }
}

fn append(text: &mut Vec<u8>, line: &impl Serialize) {
    // Strings and numbers can always be encoded as JSON.
    if serde_json::to_writer(&mut *text, line).is_ok() {
        text.push(b'\n');
    }
}
