//! Programs that cannot load the shim, by the loader that their file names (elf(5)).

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use object::elf::{DT_SONAME, ET_DYN, ET_EXEC, FileHeader32, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, ReadRef};

/// Maximum length in bytes of the first line of a script, which names its interpreter.
const LINE: u64 = 256;

/// Reason for which a program cannot load the shim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unloadable {
    /// The program names no loader.
    Static,
    /// The program's loader is that of musl. The shim needs glibc.
    Musl,
}

impl fmt::Display for Unloadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unloadable::Static => "is linked statically: the shim has no effect",
            Unloadable::Musl => "is linked with musl: the shim needs glibc",
        })
    }
}

/// Returns the reason for which the program in a file cannot load the shim, if there is one. The
/// program of a script is its interpreter.
pub fn unloadable(file: &Path) -> Option<Unloadable> {
    let program = interpreter(file).ok()?;
    of_file(program.as_deref().map_or(file, |path| Path::new(path)))
}

/// Returns the reason for which a running process cannot load the shim, if there is one.
pub(crate) fn of_process(pid: i32) -> Option<Unloadable> {
    of_file(Path::new(&format!("/proc/{pid}/exe")))
}

fn of_file(file: &Path) -> Option<Unloadable> {
    // A file that is no program starts nothing, and has no loader to speak of.
    let file = File::open(file).ok()?;
    examine(&ReadCache::new(file)).ok().flatten()
}

/// Returns the program that a script names in its first line (execve(2)).
fn interpreter(file: &Path) -> io::Result<Option<Box<OsStr>>> {
    let mut line = Vec::new();
    let file = BufReader::new(File::open(file)?);
    file.take(LINE).read_until(b'\n', &mut line)?;
    let words = line.strip_prefix(b"#!").map(<[u8]>::trim_ascii);
    let program = words.and_then(|words| words.split(u8::is_ascii_whitespace).next());
    Ok(program.map(|name| OsStr::from_bytes(name).into()))
}

fn examine<'data>(data: impl ReadRef<'data>) -> object::Result<Option<Unloadable>> {
    match FileKind::parse(data)? {
        FileKind::Elf32 => by_header(FileHeader32::<Endianness>::parse(data)?, data),
        FileKind::Elf64 => by_header(FileHeader64::<Endianness>::parse(data)?, data),
        _ => Ok(None),
    }
}

fn by_header<'data, H: FileHeader<Endian = Endianness>>(
    header: &H,
    data: impl ReadRef<'data>,
) -> object::Result<Option<Unloadable>> {
    let endian = header.endian()?;
    if ![ET_EXEC, ET_DYN].contains(&header.e_type(endian)) {
        return Ok(None);
    }
    let segments = header.program_headers(endian, data)?;
    for segment in segments {
        if let Some(loader) = segment.interpreter(endian, data)? {
            let name = loader.rsplit(|b| *b == b'/').next().unwrap_or_default();
            return Ok(name.starts_with(b"ld-musl-").then_some(Unloadable::Musl));
        }
    }
    for segment in segments {
        let entries = segment.dynamic(endian, data)?.unwrap_or_default();
        // A loader names none either. It loads the program that its command line names.
        if entries.iter().any(|entry| entry.tag(endian) == DT_SONAME) {
            return Ok(None);
        }
    }
    Ok(Some(Unloadable::Static))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    /// Returns an ELF file of 64 bits with one segment, of this kind and contents.
    fn elf(kind: u32, contents: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 64 + 56];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(16, &ET_EXEC.to_le_bytes());
        put(18, &62u16.to_le_bytes());
        put(20, &1u32.to_le_bytes());
        put(32, &64u64.to_le_bytes());
        put(52, &64u16.to_le_bytes());
        put(54, &56u16.to_le_bytes());
        put(56, &1u16.to_le_bytes());
        put(64, &kind.to_le_bytes());
        put(72, &120u64.to_le_bytes());
        put(96, &(contents.len() as u64).to_le_bytes());
        file.extend(contents);
        file
    }

    fn of(bytes: &[u8]) -> Option<Unloadable> {
        examine(bytes).ok().flatten()
    }

    #[test]
    fn the_loader_is_known_by_the_headers() {
        let with = |loader: &[u8]| of(&elf(object::elf::PT_INTERP, loader));
        assert_eq!(with(b"/lib64/ld-linux-x86-64.so.2\0"), None);
        assert_eq!(with(b"/lib/ld-musl-x86_64.so.1\0"), Some(Unloadable::Musl));
        let without = of(&elf(object::elf::PT_NOTE, b""));
        assert_eq!(without, Some(Unloadable::Static));
        let mut object_file = elf(object::elf::PT_NOTE, b"");
        object_file[16] = 1;
        assert_eq!(of(&object_file), None);
    }

    /// Nothing is said about a file that cannot be read.
    #[test]
    fn what_is_no_program_has_no_loader() {
        let whole = elf(object::elf::PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0");
        for len in 0..64 + 56 {
            assert_eq!(of(&whole[..len]), None, "{len}");
        }
        assert_eq!(of(b"#!/bin/sh\n"), None);
        assert_eq!(unloadable(Path::new("/nowhere")), None);
        assert_eq!(unloadable(Path::new("/")), None);
    }

    fn built(dir: &Path, name: &str, words: &[&str]) -> PathBuf {
        let source = dir.join("program.c");
        fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let out = dir.join(name);
        let cc = Command::new("cc")
            .args(words)
            .arg("-o")
            .args([&out, &source])
            .status();
        assert!(cc.expect("a C compiler (cc) is missing").success());
        out
    }

    #[test]
    fn programs_of_a_compiler_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!(unloadable(&built(dir, "usual", &[])), None);
        for (name, word) in [("static", "-static"), ("pie", "-static-pie")] {
            let file = built(dir, name, &[word]);
            assert_eq!(unloadable(&file), Some(Unloadable::Static), "{name}");
            let script = dir.join("script");
            fs::write(&script, format!("#! {} -x\n", file.display())).unwrap();
            assert_eq!(unloadable(&script), Some(Unloadable::Static), "{name}");
        }
        let library = built(dir, "library", &["-shared", "-fPIC", "-Wl,-soname,a.so"]);
        assert_eq!(unloadable(&library), None);
        assert_eq!(of_process(std::process::id().cast_signed()), None);
    }
}
