//! Loading of the programs, with the pinned maps.

use std::path::{Path, PathBuf};

use aya::programs::Xdp as XdpProgram;
use aya::{Ebpf, EbpfLoader};
use dysco_common::ShortKey;

use crate::attach::{DETOURS, load_classifier};
use crate::error::AgentError;
use crate::hooks::{HANDLER, HOOKS, SERVED_HOOKS};
use crate::links::Header;
use crate::object::{headerless_object, object};
use crate::sockets::{Listing, SOCKET_BYTES, Sockets};
use crate::xdp::{self, Xdp};

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
pub(crate) struct Loaded {
    globals: Globals,
    dir: PathBuf,
    /// The programs for interfaces with an Ethernet header.
    pub ethernet: Ebpf,
    headerless: Option<Ebpf>,
    /// The kernel's sockets; none if it does not show them.
    sockets: Option<Sockets>,
}

impl Loaded {
    /// Loads the programs with the maps of `dir`. Creates maps that are not there. The arguments
    /// are those of [`crate::AgentConfig`]; `xdp` is true if an interface relays by XDP.
    pub(crate) fn new(
        dir: &Path,
        max_sessions: u32,
        ports: (u16, u16),
        xdp: bool,
    ) -> Result<Loaded, AgentError> {
        let sockets = Sockets::of_kernel().ok();
        let globals = Globals {
            socket_bytes: sockets.as_ref().map_or(0, Sockets::size),
            ..Globals::new(max_sessions, xdp, ports)
        };
        Ok(Loaded {
            ethernet: load_pinned(&globals, dir, object())?,
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

    /// Returns what the programs for sessions with handlers are opened by.
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
            None => load_pinned(&self.globals, &self.dir, headerless_object())?,
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
        Ok(loader.load(object())?)
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
    let mut ebpf = load_by(loader(&globals), object())?;
    let detours = DETOURS.iter().map(|(_, name)| *name);
    let later = HANDLER.iter().map(|(name, _)| *name).chain(detours);
    let served = SERVED_HOOKS.map(|(name, _)| name);
    load_all(&mut ebpf, later.chain(served))?;
    let mut headerless = load_by(loader(&globals), headerless_object())?;
    load_all(&mut headerless, served)?;
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
    load_all(&mut ebpf, HOOKS.map(|(name, _)| name))?;
    Ok(ebpf)
}

fn load_all(
    ebpf: &mut Ebpf,
    names: impl IntoIterator<Item = &'static str>,
) -> Result<(), AgentError> {
    names
        .into_iter()
        .try_for_each(|name| load_classifier(ebpf, name).map(|_| ()))
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
