//! Detection of bytes that were copied to a process from a socket, by the kernel's own account.
//!
//! The tracepoint `sock_recv_length` reports each receiving call of any process, and no splice.
//! A socket without such a call since it is watched has only been spliced from. The tracepoint
//! costs each receiving call of this machine some tens of nanoseconds, so it is attached only
//! while it is needed.

use aya::EbpfLoader;
use aya::maps::{HashMap, MapData, MapError};
use aya::programs::BtfTracePoint;
use aya::programs::tp_btf::BtfTracePointLink;

use crate::btf::{self, Btf};
use crate::error::AgentError;
use crate::object::object;

const PROGRAM: &str = "dysco_receives";
const MAP: &str = "RECEIVES";
const TRACEPOINT: &str = "sock_recv_length";
const TYPE: &str = "btf_trace_sock_recv_length";
/// `BPF_NOEXIST`.
const NEW: u64 = 1;

/// Checks that this kernel reports its receiving calls. Leaves nothing behind.
pub fn try_receives() -> Result<(), AgentError> {
    Receives::open(1).map(drop)
}

/// The watched sockets. The program is unloaded when this value is dropped.
pub struct Receives {
    calls: HashMap<MapData, u64, u32>,
    _attached: BtfTracePointLink,
}

impl Receives {
    /// Attaches the program, with room for this many sockets.
    pub fn open(room: u32) -> Result<Receives, AgentError> {
        let mut ebpf = EbpfLoader::new()
            .map_max_entries(MAP, room.max(1))
            .load(object())?;
        let map = ebpf.take_map(MAP).ok_or(AgentError::Missing(MAP))?;
        let calls = HashMap::try_from(map).map_err(|e| of_map("open it", e))?;
        let program = ebpf
            .program_mut(PROGRAM)
            .ok_or(AgentError::Missing(PROGRAM))?;
        let program: &mut BtfTracePoint = program.try_into().map_err(failed)?;
        program.load(TRACEPOINT, &described()).map_err(failed)?;
        let link = program.attach().map_err(failed)?;
        let _attached = program.take_link(link).map_err(failed)?;
        // The object's other maps are freed with `ebpf`; the link keeps the program.
        Ok(Receives { calls, _attached })
    }

    /// Counts the receiving calls of a socket from now on, by its cookie. Returns an error if
    /// the socket is watched already.
    pub fn watch(&mut self, cookie: u64) -> Result<(), AgentError> {
        let watched = self.calls.insert(cookie, 0, NEW);
        watched.map_err(|e| of_map("watch a socket", e))
    }

    /// Stops watching a socket.
    pub fn forget(&mut self, cookie: u64) {
        // A socket that is not in the map is not watched either.
        let _ = self.calls.remove(&cookie);
    }

    /// Returns the number of calls that have taken bytes from a socket since it is watched;
    /// `None` if it is not watched.
    pub fn calls(&self, cookie: u64) -> Option<u32> {
        self.calls.get(&cookie, 0).ok()
    }
}

/// Returns what aya needs to know of the tracepoint; nothing if the kernel does not have it.
fn described() -> aya::Btf {
    let types = btf::of_kernel().unwrap_or_default();
    let kernel = Btf::parse(&types);
    kernel.map_or_else(aya::Btf::new, |kernel| kernel.tracepoint(TYPE).described())
}

fn failed(e: aya::programs::ProgramError) -> AgentError {
    AgentError::Program {
        name: PROGRAM,
        source: Box::new(e),
    }
}

fn of_map(operation: &'static str, source: MapError) -> AgentError {
    AgentError::Map {
        operation,
        map: MAP,
        source,
    }
}
