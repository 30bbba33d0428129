//! Loading and pinning of the programs and their maps.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::{SchedClassifier, Xdp as XdpProgram};
use aya::{Ebpf, EbpfLoader};
use dysco_common::ShortKey;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{major, minor};

use crate::agent::AgentConfig;
use crate::error::AgentError;
use crate::links::Header;
use crate::sockets::{Listing, SOCKET_BYTES, Sockets};
use crate::xdp::{self, Xdp};

/// Layout of the pinned maps: the name of their directory below that of all pins. Another layout
/// has another name. Programs of two layouts are never on a host together.
pub const LAYOUT: &str = "v8";

/// Maps that outlive this process.
const PINNED: [&str; 25] = [
    "FLOWS",
    "SESSIONS",
    "FREE",
    "RULES",
    "RUNS",
    "COUNTERS",
    "EVENTS",
    "POLICY",
    "IN_FORCE",
    "HOPS",
    "KEYS",
    "SYNS",
    "SYNS_SEEN",
    "SYN_PLACES",
    "JOINS",
    "CHAINS",
    "DELTAS",
    "DETOURS",
    "DETOURED",
    "DETOUR_PROGRAMS",
    "PACKET_SERVICES",
    "PACKET_SERVED",
    "EDGES",
    "OWN",
    "WATCHED",
];

/// Returns an error if the data plane of another layout is pinned here. Its programs would run
/// beside the new ones, and both would claim every SYN.
pub fn refuse_others(pin_dir: &Path) -> Result<(), AgentError> {
    let found = fs::read_dir(pin_dir).into_iter().flatten().flatten();
    let mut others = found.filter(|entry| {
        let name = entry.file_name();
        name != LAYOUT && name.to_str().is_some_and(is_layout)
    });
    match others.next() {
        None => Ok(()),
        Some(other) => Err(AgentError::Layout { path: other.path() }),
    }
}

/// True if a directory of a layout has this name.
pub(crate) fn is_layout(name: &str) -> bool {
    let digits = name.strip_prefix('v');
    digits.is_some_and(|digits| digits.parse::<u32>().is_ok())
}

/// Time that a killed process may take to end.
const DYING: Duration = Duration::from_secs(2);

/// Locks the pins of `dir` for this process, for as long as the lock is held or the process
/// lives. Two processes would each put their own rules in force, and interfere with each other's
/// changes.
pub fn alone(dir: &Path) -> Result<Flock<File>, AgentError> {
    let unusable = |source| AgentError::PinDirectory {
        path: dir.to_owned(),
        source,
    };
    let mut open = File::open(dir).map_err(unusable)?;
    let until = Instant::now() + DYING;
    loop {
        match Flock::lock(open, FlockArg::LockExclusiveNonblock) {
            Ok(alone) => return Ok(alone),
            Err((file, Errno::EWOULDBLOCK)) if Instant::now() < until => open = file,
            Err((file, Errno::EWOULDBLOCK)) => {
                return Err(AgentError::Taken {
                    path: dir.to_owned(),
                    by: holder_of(&file).map_err(unusable)?,
                });
            }
            Err((_, error)) => return Err(unusable(error.into())),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Process that holds the lock of a file, as far as can be seen.
pub fn holder_of(file: &File) -> io::Result<Option<u32>> {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let meta = file.metadata()?;
    Ok(holder(&locks, meta.dev(), meta.ino()))
}

/// Process that holds the lock of a file, by the lines of `/proc/locks`:
/// `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF`.
fn holder(locks: &str, dev: u64, inode: u64) -> Option<u32> {
    let file = format!("{:02x}:{:02x}:{inode}", major(dev), minor(dev));
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let its = words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&file.as_str());
        // 0 for a process of another PID namespace.
        let pid = words.get(4).filter(|_| its)?.parse::<u32>().ok()?;
        (pid > 0).then_some(pid)
    })
}

/// Values that the programs are loaded with.
#[derive(Clone)]
struct Globals {
    max_sessions: u32,
    hint_mask: u32,
    xdp: u32,
    ports: [u16; 2],
    socket_bytes: u32,
}

impl Globals {
    fn new(max_sessions: u32, xdp: bool, ports: (u16, u16)) -> Globals {
        Globals {
            max_sessions,
            hint_mask: hints(max_sessions) - 1,
            xdp: u32::from(xdp),
            ports: [ports.0, ports.1],
            socket_bytes: 0,
        }
    }
}

/// The loaded programs. Those for interfaces without an Ethernet header are loaded when there is
/// one, and have the same pinned maps.
pub struct Loaded {
    globals: Globals,
    dir: PathBuf,
    /// The programs for interfaces with an Ethernet header.
    pub ethernet: Ebpf,
    headerless: Option<Ebpf>,
    /// The kernel's sockets; none if it does not show them.
    sockets: Option<Sockets>,
}

impl Loaded {
    /// Loads the programs with the maps of `dir`. Creates maps that are not there.
    pub fn new(dir: &Path, config: &AgentConfig, xdp: bool) -> Result<Loaded, AgentError> {
        let sockets = Sockets::of_kernel().ok();
        let globals = Globals {
            socket_bytes: sockets.as_ref().map_or(0, Sockets::size),
            ..Globals::new(config.max_sessions, xdp, config.ports)
        };
        Ok(Loaded {
            ethernet: load_pinned(&globals, dir, crate::object())?,
            globals,
            dir: dir.to_owned(),
            headerless: None,
            sockets,
        })
    }

    /// Starts to list this host's TCP sockets.
    pub(crate) fn list_sockets(&mut self) -> Result<Listing, AgentError> {
        match &self.sockets {
            Some(sockets) => sockets.list(&mut self.ethernet),
            // For the reason.
            None => Sockets::of_kernel()?.list(&mut self.ethernet),
        }
    }

    /// Returns what the programs for sessions with handlers are opened by. Most hosts never need
    /// them, and every start would take longer.
    pub(crate) fn for_handlers(&self) -> ForHandlers {
        ForHandlers {
            globals: self.globals.clone(),
            dir: self.dir.clone(),
        }
    }

    /// Returns the programs for an interface.
    pub(crate) fn for_interface(&mut self, interface: &str) -> Result<&mut Ebpf, AgentError> {
        if Header::of(interface) != Header::Ip {
            return Ok(&mut self.ethernet);
        }
        let loaded = match self.headerless.take() {
            Some(loaded) => loaded,
            None => load_pinned(&self.globals, &self.dir, crate::headerless_object())?,
        };
        Ok(self.headerless.insert(loaded))
    }
}

/// Opens the programs for sessions with handlers, without a lock.
pub(crate) struct ForHandlers {
    globals: Globals,
    dir: PathBuf,
}

impl ForHandlers {
    /// Opens the programs.
    pub(crate) fn open(&self) -> Result<Ebpf, AgentError> {
        let mut loader = pinned_loader(&self.globals, &self.dir);
        Ok(loader.load(crate::object())?)
    }
}

fn load_pinned(globals: &Globals, dir: &Path, object: &[u8]) -> Result<Ebpf, AgentError> {
    load_by(pinned_loader(globals, dir), object)
}

fn pinned_loader<'a>(globals: &'a Globals, dir: &Path) -> EbpfLoader<'a> {
    let mut loader = loader(globals);
    for map in PINNED {
        loader.map_pin_path(map, dir.join(map));
    }
    loader
}

/// Checks that the kernel accepts the programs, also those for interfaces without an Ethernet
/// header, on a host with these interfaces. Loads them with small maps of their own, and leaves
/// nothing behind.
pub fn try_programs(xdp: Xdp, interfaces: &[String]) -> Result<(), AgentError> {
    const FEW: u32 = 64;
    let relays_by_xdp = !xdp::chosen(xdp, interfaces).is_empty();
    let globals = Globals::new(FEW, relays_by_xdp, (1, u16::MAX));
    let mut ebpf = load_by(loader(&globals), crate::object())?;
    load_by(loader(&globals), crate::headerless_object())?;
    // In the other modes a host continues without XDP.
    if xdp == Xdp::On {
        let name = xdp::PROGRAM;
        let program = ebpf.program_mut(name).ok_or(AgentError::Missing(name))?;
        let program: Result<&mut XdpProgram, _> = program.try_into();
        let loaded = program.and_then(XdpProgram::load);
        loaded.map_err(|e| AgentError::Program {
            name,
            source: Box::new(e),
        })?;
    }
    Ok(())
}

fn loader(globals: &Globals) -> EbpfLoader<'_> {
    let mut loader = EbpfLoader::new();
    let max_sessions = globals.max_sessions;
    // Twice as many keys as sessions, because each session may have a new path. A third key is
    // the name that other hosts have for a session which a middlebox has left, or a NAT has
    // translated. Sessions without a path leave room for these names (docs/chains.md).
    loader
        .map_max_entries("FLOWS", max_sessions.saturating_mul(2))
        .map_max_entries("SESSIONS", max_sessions)
        .map_max_entries("FREE", max_sessions)
        .map_max_entries("CHAINS", max_sessions)
        .map_max_entries("DELTAS", max_sessions)
        .map_max_entries("EDGES", max_sessions)
        .map_max_entries("HINTS", hints(max_sessions).div_ceil(ShortKey::HINTS))
        .override_global("HINT_MASK", &globals.hint_mask, true)
        .override_global("XDP", &globals.xdp, true)
        .override_global("PORTS", &globals.ports, true)
        // The programs for interfaces without an Ethernet header do not include it.
        .override_global(SOCKET_BYTES, &globals.socket_bytes, false);
    loader
}

fn load_by(mut loader: EbpfLoader<'_>, object: &[u8]) -> Result<Ebpf, AgentError> {
    let mut ebpf = loader.load(object)?;
    for name in ["dysco_ingress", "dysco_egress"] {
        let program: &mut SchedClassifier = ebpf
            .program_mut(name)
            .ok_or(AgentError::Missing(name))?
            .try_into()
            .map_err(|e| AgentError::Program {
                name,
                source: Box::new(e),
            })?;
        program.load().map_err(|e| AgentError::Program {
            name,
            source: Box::new(e),
        })?;
    }
    Ok(ebpf)
}

/// Returns the number of hints: a power of two, about the number of keys, of which a session has
/// two, and at most three for each session. A hint has four bytes.
pub fn hints(max_sessions: u32) -> u32 {
    let keys = max_sessions.clamp(1, 1 << 29) * 2;
    let hints = keys.next_power_of_two();
    if hints > keys / 2 * 3 {
        hints / 2
    } else {
        hints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_layout_is_refused_by_its_name() {
        let pins = tempfile::tempdir().unwrap();
        fs::create_dir(pins.path().join(LAYOUT)).unwrap();
        fs::create_dir(pins.path().join("verbose")).unwrap();
        refuse_others(pins.path()).unwrap();
        let other = pins.path().join("v1");
        fs::create_dir(&other).unwrap();
        let reported = refuse_others(pins.path()).unwrap_err().to_string();
        assert!(
            reported.contains(&format!("rm -r {}", other.display())),
            "{reported}"
        );
    }

    #[test]
    fn one_that_ends_is_waited_for_and_one_that_stays_is_named() {
        let pins = tempfile::tempdir().unwrap();
        let first = alone(pins.path()).unwrap();
        match alone(pins.path()) {
            // Some file systems show another device than /proc/locks.
            Err(AgentError::Taken { by, .. }) => {
                assert!(by.is_none_or(|pid| pid == std::process::id()), "{by:?}");
            }
            other => panic!("{other:?}"),
        }
        let dies = thread::spawn(move || {
            thread::sleep(DYING / 4);
            drop(first);
        });
        alone(pins.path()).unwrap();
        dies.join().unwrap();
    }

    #[test]
    fn who_holds_a_lock_is_found_by_the_file() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 00:1c:55 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 8 00:1c:551 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 9 00:1c:55 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 0 00:1c:56 0 EOF\n";
        let dev = nix::sys::stat::makedev(0, 0x1c);
        assert_eq!(holder(locks, dev, 55), Some(9));
        assert_eq!(holder(locks, dev, 56), None, "it cannot be seen");
        assert_eq!(holder(locks, dev, 57), None);
    }

    #[test]
    fn a_session_has_at_most_three_hints() {
        for max in [1, 2, 3, 5, 700, 1_000, 65_536, 65_537, 100_000, u32::MAX] {
            let (hints, sessions) = (u64::from(hints(max)), u64::from(max.min(1 << 29)));
            assert!(hints.is_power_of_two());
            assert!(
                2 * hints >= 3 * sessions && hints <= 3 * sessions,
                "{max}: {hints}"
            );
        }
    }
}
