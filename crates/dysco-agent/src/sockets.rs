//! The kernel's TCP sockets in this network namespace.
//!
//! The iterator program is the only way to read absolute sequence numbers and options without a
//! change to the socket. `sock_diag` has no numbers, and TCP_REPAIR makes the calls of the
//! socket's owner fail meanwhile.

mod layout;

use std::fs::File;
use std::io::Read;

use aya::programs::Iter;
use aya::{Ebpf, EbpfLoader};
use dysco_common::adopt::{MAX_SOCKET_BYTES, Socket};

use crate::btf::{self, Btf, Point};
use crate::error::AgentError;
use crate::object::object;
use layout::Layout;

const PROGRAM: &str = "dysco_sockets";
/// Global value of the program: the size of a socket.
pub(crate) const SOCKET_BYTES: &str = "SOCKET_BYTES";
/// Number of sockets that are fetched at a time.
const AT_ONCE: usize = 64;

/// Checks that this kernel shows its sockets. Leaves nothing behind.
pub fn try_sockets() -> Result<(), AgentError> {
    let sockets = Sockets::of_kernel()?;
    let mut ebpf = EbpfLoader::new()
        .override_global(SOCKET_BYTES, &sockets.size(), true)
        .load(object())?;
    sockets.list(&mut ebpf).map(drop)
}

/// Way in which the running kernel lists its sockets.
#[derive(Clone)]
pub(crate) struct Sockets {
    layout: Layout,
    iterator: Point,
}

impl Sockets {
    /// Reads the kernel's description of its types.
    pub(crate) fn of_kernel() -> Result<Sockets, AgentError> {
        let bytes = btf::of_kernel().map_err(|e| AgentError::NoSockets(e.to_string()))?;
        let own = Btf::parse(&bytes);
        let own = own.ok_or_else(|| AgentError::NoSockets("it is not understood".into()))?;
        let layout = Layout::of(&own)
            .map_err(|name| AgentError::NoSockets(format!("it does not know {name}")))?;
        if layout.size as usize > MAX_SOCKET_BYTES {
            let why = format!("its sockets are of {} bytes", layout.size);
            return Err(AgentError::NoSockets(why));
        }
        let iterator = own.iterator("bpf_iter_tcp");
        Ok(Sockets { layout, iterator })
    }

    /// Returns the size of a socket, with which the program must be loaded.
    pub(crate) fn size(&self) -> u32 {
        self.layout.size
    }

    /// Starts to list the sockets. The program is unloaded with the listing.
    pub(crate) fn list(&self, ebpf: &mut Ebpf) -> Result<Listing, AgentError> {
        let failed = |e: aya::programs::ProgramError| AgentError::Program {
            name: PROGRAM,
            source: Box::new(e),
        };
        let program = program(ebpf)?;
        program
            .load("tcp", &self.iterator.described())
            .map_err(failed)?;
        let link = program.attach().and_then(|link| program.take_link(link));
        // The link keeps it in the kernel.
        program.unload().map_err(failed)?;
        let file = link.map_err(failed)?.into_file();
        Ok(Listing {
            layout: self.layout.clone(),
            file: file.map_err(|e| AgentError::NoSockets(e.to_string()))?,
        })
    }
}

/// The sockets of one moment.
pub(crate) struct Listing {
    layout: Layout,
    file: File,
}

impl Listing {
    /// Passes each socket to `take`, with all fields of one moment.
    pub(crate) fn each(mut self, mut take: impl FnMut(Socket)) -> Result<(), AgentError> {
        let size = self.layout.size as usize;
        let mut buffer = vec![0; AT_ONCE * size];
        let mut filled = 0;
        loop {
            let n = read(&mut self.file, &mut buffer[filled..])?;
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

fn program(ebpf: &mut Ebpf) -> Result<&mut Iter, AgentError> {
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
