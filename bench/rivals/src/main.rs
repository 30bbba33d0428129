//! Rivals of the data plane, as small as they can be.
#![no_std]
#![no_main]
#![expect(
    missing_docs,
    reason = "the macros of programs make functions without docs"
)]

use aya_ebpf::bindings::xdp_action;
use aya_ebpf::macros::{map, stream_verdict, xdp};
use aya_ebpf::maps::SockHash;
use aya_ebpf::programs::{SkBuffContext, XdpContext};

/// The socket that what arrives is handed to, by the remote and the local port
/// of the socket at which it arrives.
#[map]
static PEERS: SockHash<[u32; 2]> = SockHash::with_max_entries(64, 0);

/// What arrives at one of two sockets that belong together is handed to the
/// other inside the kernel, without the process that opened both.
#[stream_verdict]
pub fn hand_over(ctx: SkBuffContext) -> u32 {
    // SAFETY: readable fields of the context.
    let ports = unsafe {
        let skb = ctx.skb.skb;
        [u32::from_be((*skb).remote_port), (*skb).local_port]
    };
    PEERS.redirect_skb(&ctx, ports, 0) as u32
}

/// An Ethernet header and an IPv4 header up to the checksum.
#[repr(C, packed)]
struct Head {
    to: [u8; 6],
    from: [u8; 6],
    kind: u16,
    version: u16,
    len: u16,
    id: u16,
    fragment: u16,
    ttl: u8,
    protocol: u8,
    check: u16,
    src: u32,
    dst: u32,
}

/// `10.0.2.1`, whose own packets are its stack's.
const OWN: u32 = u32::from_be_bytes([10, 0, 2, 1]).to_be();

/// Pure forwarding in XDP: what is for another host goes back to the router it
/// came from, one hop further.
#[xdp]
pub fn turn_round(ctx: XdpContext) -> u32 {
    let (start, end) = (ctx.data(), ctx.data_end());
    if start + size_of::<Head>() > end {
        return xdp_action::XDP_PASS;
    }
    // SAFETY: within the packet, by the comparison above; bytes are aligned.
    let head = unsafe { &mut *(start as *mut Head) };
    if head.kind != 0x0800u16.to_be() || head.dst == OWN || head.ttl <= 1 {
        return xdp_action::XDP_PASS;
    }
    (head.to, head.from) = (head.from, head.to);
    head.ttl -= 1;
    // One less in the upper byte of a word: one more in the sum (RFC 1141).
    let sum = u32::from(u16::from_be(head.check)) + 0x100;
    head.check = ((sum + (sum >> 16)) as u16).to_be();
    xdp_action::XDP_TX
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// The helpers of the kernel are for programs under its licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
