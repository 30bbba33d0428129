//! The shim. Preloaded into an unmodified proxy, it counts the bytes that the proxy reads and
//! writes on each descriptor, detects pairs of sockets that the proxy splices between, and
//! reports them to the `dyscod` of its host. The shim needs no privilege, never blocks, never
//! allocates after the start, and changes nothing without a daemon.
//!
//! | file | holds |
//! |---|---|
//! | `hooks` | the libc functions that the shim intercepts, a few lines each |
//! | `copies` | further hooks, for calls after which a socket may be used without the counters |
//! | `ranges` | hooks that close a range of descriptors |
//! | `seal` | the end of the shim's work when the program filters its system calls |
//! | `real` | the functions of libc itself |
//! | `own` | whether this process calls, or a child that shares its memory |
//! | `table` | one slot of counters for each descriptor |
//! | `track` | the effect of each call on the counters and on pairs |
//! | `tell` | reports about pairs, and their repetition if they were lost |
//! | `pace` | intervals of the repetitions while the daemon does not read |
//! | `link` | the datagram socket to the daemon |
//! | `call` | `dysco_splice`, for programs that declare what they relay |
//! | `delta` | `dysco_delta`, for middleboxes without sockets |
//! | `service` | `dysco_service_call`, for programs that know a service of their session |
//! | `api` | requests of these two to the local API |
//!
//! The shim does not see system calls made without libc (Go's `io.Copy`, io_uring), nor the calls
//! of another process that shares a socket by a fork or by `pidfd_getfd`.

mod api;
mod call;
mod copies;
mod delta;
mod hooks;
mod link;
mod own;
mod pace;
mod ranges;
mod real;
mod seal;
mod service;
mod system;
mod table;
mod tell;
mod track;

pub use call::dysco_splice;
pub use delta::dysco_delta;
pub use service::dysco_service_call;

/// Runs before `main`, while paths and privileges are still those of the program's start.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = {
    extern "C" fn start() {
        own::start();
        link::start();
        tell::start();
    }
    start
};
