//! Sockets that a process has read by a receiving call, which copies the bytes to the process. A
//! splice from a socket does not reach this tracepoint.

use core::ffi::{c_int, c_void};

use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::helpers::generated::bpf_get_socket_cookie;
use aya_ebpf::macros::{btf_tracepoint, map};
use aya_ebpf::maps::HashMap;
use aya_ebpf::programs::BtfTracePointContext;

/// Number of calls that have taken bytes from each watched socket, by the socket's cookie
/// (`SO_COOKIE`). User space sets the size.
#[map]
static RECEIVES: HashMap<u64, u32> = HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);

const MSG_PEEK: c_int = 0x2;
/// Flag of a call that takes a message of the kernel's error queue, and nothing of the stream.
const MSG_ERRQUEUE: c_int = 0x2000;

/// Runs at the end of each receiving call, of any socket of this machine:
/// `sock_recv_length(struct sock *sk, int ret, int flags)`.
#[btf_tracepoint(function = "sock_recv_length")]
pub(crate) fn dysco_receives(ctx: BtfTracePointContext) -> i32 {
    let (bytes, flags): (c_int, c_int) = (ctx.arg(1), ctx.arg(2));
    if bytes <= 0 || flags & (MSG_PEEK | MSG_ERRQUEUE) != 0 {
        return 0;
    }
    let socket: *mut c_void = ctx.arg(0);
    // SAFETY: the kernel's own socket, which the verifier knows.
    let cookie = unsafe { bpf_get_socket_cookie(socket) };
    if let Some(calls) = RECEIVES.get_ptr_mut(&cookie) {
        // SAFETY: an entry of the map, valid until the program ends. Of two simultaneous
        // increments one may be lost, but not both.
        unsafe { *calls = (*calls).saturating_add(1) };
    }
    0
}
