//! A file of what is known of sessions, which the next process reads: one JSON object a line,
//! appended. All of it is in memory as well. A line that cannot be written is kept there only.

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

/// Content of such a file.
pub(super) trait Content {
    /// Line of the file.
    type Line: Serialize + DeserializeOwned;

    /// Applies a line that is new, or that a former process has written.
    fn apply(&mut self, line: Self::Line);

    /// Returns the lines from which the content as it is now can be read.
    fn lines(&self) -> impl Iterator<Item = Self::Line>;
}

/// The file and its content. Nothing is written before the first [`LineFile::edit`].
pub(super) struct LineFile<C> {
    content: C,
    path: PathBuf,
    file: Option<File>,
    waiting: Vec<u8>,
    length: u64,
    /// Length of the file when it was last rewritten.
    anew: u64,
    /// Loss if the file cannot be written, which is reported once.
    loss: &'static str,
    failed: bool,
}

impl<C: Content> LineFile<C> {
    /// Reads the lines that a former process has written. The last one may be incomplete.
    pub(super) fn open(path: &Path, mut content: C, loss: &'static str) -> LineFile<C> {
        let text = fs::read(path).unwrap_or_default();
        let lines = text.split(|b| *b == b'\n');
        let lines = lines.filter_map(|line| serde_json::from_slice(line).ok());
        lines.for_each(|line| content.apply(line));
        LineFile {
            content,
            path: path.to_owned(),
            file: None,
            waiting: Vec::new(),
            length: 0,
            anew: 0,
            loss,
            failed: false,
        }
    }

    pub(super) fn content(&self) -> &C {
        &self.content
    }

    /// Returns the content, for changes that need no line.
    pub(crate) fn content_mut(&mut self) -> &mut C {
        &mut self.content
    }

    /// Applies a line and appends it. It waits for others or for a flush.
    pub(super) fn add(&mut self, line: C::Line) {
        append(&mut self.waiting, &line);
        self.content.apply(line);
        if self.waiting.len() > BUFFERED {
            self.write();
        }
    }

    /// Changes the content, and rewrites the file.
    pub(super) fn edit(&mut self, change: impl FnOnce(&mut C)) {
        change(&mut self.content);
        self.rewrite();
    }

    /// Writes the lines that wait, and rewrites the file if most of it is obsolete. To be called
    /// from time to time.
    pub(super) fn flush(&mut self) {
        self.write();
        if self.length > LONG && self.length > 4 * self.anew {
            self.rewrite();
        }
    }

    /// Writes the lines that wait.
    fn write(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        if let Some(file) = &mut self.file {
            let written = file.write_all(&waiting);
            self.length += waiting.len() as u64;
            self.reported(written);
        }
    }

    /// Replaces the file atomically.
    fn rewrite(&mut self) {
        let mut text = Vec::new();
        self.content
            .lines()
            .for_each(|line| append(&mut text, &line));
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
