//! The shim: preloaded into an unmodified proxy, it counts the bytes that the
//! proxy reads and writes on each descriptor, sees which two sockets it splices
//! between, and tells `dyscod` of its host. It needs no privilege, never waits,
//! never allocates after start, and without a daemon changes nothing.
//!
//! | file | holds |
//! |---|---|
//! | `hooks` | the libc functions it stands before, a few lines each |
//! | `copies` | the same, where a socket comes to be used past the counters |
//! | `real` | the functions of libc itself |
//! | `own` | whether this process calls, or a child that has its memory |
//! | `table` | one slot of counters for each descriptor |
//! | `track` | what each call means for the counters and for pairs |
//! | `tell` | what is said of pairs, and said again if it was lost |
//! | `pace` | how often that is tried while the daemon does not read |
//! | `link` | the datagram socket to the daemon |
//! | `call` | `dysco_splice`, for programs that say it themselves |
//! | `delta` | `dysco_delta`, for middleboxes without sockets |
//!
//! Not seen: system calls made without libc (Go's `io.Copy`, io_uring), and what another
//! process does that has a socket too, by a fork or by `pidfd_getfd`.

mod call;
mod copies;
mod delta;
mod hooks;
mod link;
mod own;
mod pace;
mod real;
mod table;
mod tell;
mod track;

pub use call::dysco_splice;
pub use delta::dysco_delta;

/// Runs before `main`, while paths and privileges are still the starter's.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = {
    extern "C" fn start() {
        own::start();
        link::start();
    }
    start
};
