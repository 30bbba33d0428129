//! A minimal rival of the data plane.
#![no_std]
#![no_main]

use aya_ebpf::macros::{map, stream_verdict};
use aya_ebpf::maps::SockHash;
use aya_ebpf::programs::SkBuffContext;

/// Socket to which arriving data is handed, by the remote and the local port of the socket at which
/// the data arrives.
#[map]
static PEERS: SockHash<[u32; 2]> = SockHash::with_max_entries(32_768, 0);

/// Hands data that arrives at one of two joined sockets to the other socket inside the kernel,
/// without the process that opened both.
#[stream_verdict]
fn hand_over(ctx: SkBuffContext) -> u32 {
    // SAFETY: the fields of the context are readable.
    let ports = unsafe {
        let skb = ctx.skb.skb;
        [u32::from_be((*skb).remote_port), (*skb).local_port]
    };
    PEERS.redirect_skb(&ctx, ports, 0) as u32
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// The kernel permits its helpers only for programs under its licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
