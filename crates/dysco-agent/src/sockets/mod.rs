//! The kernel's TCP sockets in this network namespace.
//!
//! The iterator program is the only way to read absolute sequence numbers and options without a
//! change to the socket. `sock_diag` has no numbers, and TCP_REPAIR makes the calls of the
//! socket's owner fail meanwhile.

mod btf;
mod layout;

use std::fs::{self, File};
use std::io::Read;

use aya::programs::Iter;
use aya::{Btf, EbpfLoader};
use dysco_common::adopt::{MAX_SOCKET_BYTES, Socket};

use crate::error::AgentError;
use layout::Layout;

const PROGRAM: &str = "dysco_sockets";
/// Number of sockets that are fetched at a time.
const AT_ONCE: usize = 64;

/// Checks that this kernel shows its sockets. Leaves nothing behind.
pub fn try_sockets() -> Result<(), AgentError> {
    Sockets::open().map(drop)
}

/// Reads sockets. Loads a program of its own, which is unloaded when this value is dropped.
pub struct Sockets {
    layout: Layout,
    ebpf: aya::Ebpf,
}

impl Sockets {
    /// Reads the kernel's description of its types, and loads the program.
    pub fn open() -> Result<Sockets, AgentError> {
        let bytes = fs::read(btf::KERNEL).map_err(|e| AgentError::NoSockets(e.to_string()))?;
        let own = btf::Btf::parse(&bytes);
        let own = own.ok_or_else(|| AgentError::NoSockets("it is not understood".into()))?;
        let layout = Layout::of(&own)
            .map_err(|name| AgentError::NoSockets(format!("it does not know {name}")))?;
        if layout.size as usize > MAX_SOCKET_BYTES {
            let why = format!("its sockets are of {} bytes", layout.size);
            return Err(AgentError::NoSockets(why));
        }
        let mut ebpf = EbpfLoader::new()
            .override_global("SOCKET_BYTES", &layout.size, true)
            .load(crate::object())?;
        let failed = |e: aya::programs::ProgramError| AgentError::Program {
            name: PROGRAM,
            source: Box::new(e),
        };
        let kernel = Btf::from_sys_fs().map_err(|e| failed(e.into()))?;
        program(&mut ebpf)?.load("tcp", &kernel).map_err(failed)?;
        Ok(Sockets { layout, ebpf })
    }

    /// Passes each socket to `take`, with all fields of one moment.
    pub fn each(&mut self, mut take: impl FnMut(Socket)) -> Result<(), AgentError> {
        let failed = |e: aya::programs::ProgramError| AgentError::Program {
            name: PROGRAM,
            source: Box::new(e),
        };
        let program = program(&mut self.ebpf)?;
        let link = program.attach().map_err(failed)?;
        let link = program.take_link(link).map_err(failed)?;
        let file = link.into_file();
        let mut file = file.map_err(|e| AgentError::NoSockets(e.to_string()))?;
        let size = self.layout.size as usize;
        let mut buffer = vec![0; AT_ONCE * size];
        let mut filled = 0;
        loop {
            let n = read(&mut file, &mut buffer[filled..])?;
            filled += n;
            let whole = filled / size * size;
            for copy in buffer[..whole].chunks_exact(size) {
                if let Some(socket) = self.layout.read(copy) {
                    take(socket);
                }
            }
            buffer.copy_within(whole..filled, 0);
            filled -= whole;
            if n == 0 {
                return Ok(());
            }
        }
    }
}

fn program(ebpf: &mut aya::Ebpf) -> Result<&mut Iter, AgentError> {
    let program = ebpf
        .program_mut(PROGRAM)
        .ok_or(AgentError::Missing(PROGRAM))?;
    program.try_into().map_err(|e| AgentError::Program {
        name: PROGRAM,
        source: Box::new(e),
    })
}

fn read(file: &mut File, into: &mut [u8]) -> Result<usize, AgentError> {
    loop {
        match file.read(into) {
            // The kernel continues an interrupted listing.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => {}
            other => {
                return other.map_err(|source| AgentError::System {
                    operation: "list this host's TCP sockets",
                    source,
                });
            }
        }
    }
}
