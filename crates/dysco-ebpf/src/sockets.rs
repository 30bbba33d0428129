//! Copies the kernel's TCP sockets for user space. Reads their contents and changes nothing.

use core::ffi::c_void;

use aya_ebpf::bindings::seq_file;
use aya_ebpf::helpers::generated::{bpf_probe_read_kernel, bpf_seq_write, bpf_skc_to_tcp_sock};
use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;
use dysco_common::adopt::MAX_SOCKET_BYTES;

/// Size of the running kernel's `struct tcp_sock`. Set by user space.
#[unsafe(no_mangle)]
static SOCKET_BYTES: u32 = 0;

/// A copy of a socket.
#[map]
static SOCKET: PerCpuArray<[u8; MAX_SOCKET_BYTES]> = PerCpuArray::with_max_entries(1, 0);

/// `struct bpf_iter__tcp`.
#[repr(C)]
struct Context {
    meta: *const Meta,
    socket: *mut c_void,
}

/// `struct bpf_iter_meta`.
#[repr(C)]
struct Meta {
    seq: *mut seq_file,
}

/// Writes each whole socket of this network namespace to the reader. The kernel holds the
/// socket's lock meanwhile, so that all fields are of one moment.
///
/// # Safety
/// Only the kernel may call it.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/tcp")]
unsafe extern "C" fn dysco_sockets(ctx: *const Context) -> i32 {
    // SAFETY: a constant of the program; volatile, since user space sets it.
    let bytes = unsafe { core::ptr::read_volatile(&raw const SOCKET_BYTES) };
    if bytes as usize > MAX_SOCKET_BYTES {
        return 0;
    }
    let Some(copy) = SOCKET.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: the verifier knows the context and the objects it points to; the helpers check the
    // rest. `copy` is this CPU's own, and has room for `bytes`.
    unsafe {
        let socket = (*ctx).socket;
        if socket.is_null() {
            return 0;
        }
        // A socket that is opening, or is in TIME_WAIT, is skipped.
        let tcp = bpf_skc_to_tcp_sock(socket);
        if tcp.is_null() || bpf_probe_read_kernel(copy.cast(), bytes, tcp.cast()) != 0 {
            return 0;
        }
        bpf_seq_write((*(*ctx).meta).seq, copy.cast(), bytes);
    }
    0
}
