//! A link that takes frames as a network card does: from the other end's XDP, in
//! batches. The veth driver wakes up an end for those only if it has a program of
//! its own; this one lets all pass.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use anyhow::{Context, Result};
use nix::net::if_::if_nametoindex;

use crate::Host;

const BPF_PROG_LOAD: i32 = 5;
const BPF_LINK_CREATE: i32 = 28;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const XDP_FLAGS_DRV_MODE: u32 = 4;
/// `xdp.frags`: for any MTU.
const BPF_F_XDP_HAS_FRAGS: u32 = 32;
/// `r0 = XDP_PASS` and `exit`.
const PASS: [u64; 2] = [0x2_0000_00b7, 0x95];
const LICENSE: &[u8] = b"GPL\0";

/// The start of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: *const u64,
    license: *const u8,
    log: [u64; 2],
    kern_version: u32,
    prog_flags: u32,
}

/// The same for `BPF_LINK_CREATE`.
#[repr(C)]
struct Create {
    prog_fd: RawFd,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
}

fn bpf<T>(command: i32, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: the attributes are as the command wants them, by the callers, and
    // outlive the call with all that they point to.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attr, size_of::<T>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just opened, and is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Makes an interface of the host such an end, for as long as the result lives.
pub(crate) fn poll(host: &Host, interface: &'static str) -> Result<OwnedFd> {
    let attach = move || {
        let program = bpf(
            BPF_PROG_LOAD,
            &Load {
                prog_type: BPF_PROG_TYPE_XDP,
                insn_cnt: PASS.len() as u32,
                insns: PASS.as_ptr(),
                license: LICENSE.as_ptr(),
                log: [0; 2],
                kern_version: 0,
                prog_flags: BPF_F_XDP_HAS_FRAGS,
            },
        )?;
        bpf(
            BPF_LINK_CREATE,
            &Create {
                prog_fd: program.as_raw_fd(),
                ifindex: if_nametoindex(interface)?,
                attach_type: BPF_XDP,
                flags: XDP_FLAGS_DRV_MODE,
            },
        )
    };
    host.run(attach)
        .with_context(|| format!("failed to attach to {interface} on {}", host.name()))
}
