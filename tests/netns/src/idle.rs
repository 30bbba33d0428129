//! Programs that do nothing, for the effects of their presence.
//!
//! The veth driver wakes an end for frames that the other end's XDP sends only if this end has an
//! XDP program. A TC program costs each packet something before it has done anything: the minimum
//! cost of any program.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::net::if_::if_nametoindex;

use crate::Host;

const BPF_PROG_LOAD: i32 = 5;
const BPF_PROG_TEST_RUN: i32 = 10;
const BPF_LINK_CREATE: i32 = 28;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;
const XDP_FLAGS_DRV_MODE: u32 = 4;
/// `xdp.frags`: permits any MTU.
const BPF_F_XDP_HAS_FRAGS: u32 = 32;
/// `r0 = XDP_PASS` and `exit`.
const PASS: [u64; 2] = [0x2_0000_00b7, 0x95];
/// `r0 = TCX_NEXT` and `exit`.
const NEXT: [u64; 2] = [0xffff_ffff_0000_00b7, 0x95];
const LICENSE: &[u8] = b"GPL\0";

/// First fields of `union bpf_attr` for `BPF_PROG_LOAD`.
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

/// First fields of `union bpf_attr` for `BPF_LINK_CREATE`.
#[repr(C)]
struct Create {
    prog_fd: RawFd,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// First fields of `union bpf_attr` for `BPF_PROG_TEST_RUN`.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog_fd: RawFd,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    /// Nanoseconds of a run, written by the kernel.
    duration: u32,
}

fn bpf<T>(command: i32, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: the callers pass the attributes that the command requires. The attributes, and
    // everything that they point to, outlive the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attr, size_of::<T>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Hook of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hook {
    /// In the driver.
    Xdp,
    /// For packets that arrive, by TCX.
    Ingress,
    /// For packets that leave, by TCX.
    Egress,
}

impl Hook {
    fn load(self) -> io::Result<OwnedFd> {
        let (prog_type, insns, prog_flags) = match self {
            Hook::Xdp => (BPF_PROG_TYPE_XDP, &PASS, BPF_F_XDP_HAS_FRAGS),
            Hook::Ingress | Hook::Egress => (BPF_PROG_TYPE_SCHED_CLS, &NEXT, 0),
        };
        bpf(
            BPF_PROG_LOAD,
            &Load {
                prog_type,
                insn_cnt: insns.len() as u32,
                insns: insns.as_ptr(),
                license: LICENSE.as_ptr(),
                log: [0; 2],
                kern_version: 0,
                prog_flags,
            },
        )
    }

    fn attach(self, ifindex: u32) -> io::Result<OwnedFd> {
        let program = self.load()?;
        let (attach_type, flags) = match self {
            Hook::Xdp => (BPF_XDP, XDP_FLAGS_DRV_MODE),
            Hook::Ingress => (BPF_TCX_INGRESS, 0),
            Hook::Egress => (BPF_TCX_EGRESS, 0),
        };
        bpf(
            BPF_LINK_CREATE,
            &Create {
                prog_fd: program.as_raw_fd(),
                ifindex,
                attach_type,
                flags,
            },
        )
    }
}

/// Attaches a program to an interface of a host, as long as the result lives.
///
/// # Errors
/// If the kernel refuses it, or the interface does not exist.
pub fn attach(host: &Host, interface: &'static str, hook: Hook) -> Result<OwnedFd> {
    host.run(move || hook.attach(if_nametoindex(interface)?))
        .with_context(|| format!("failed to attach to {interface} on {}", host.name()))
}

/// Duration of a run on a frame if the program does nothing, as the kernel measures it: the mean of
/// `repeat` runs, in whole nanoseconds.
///
/// # Errors
/// If the kernel refuses the run.
pub fn run(frame: &[u8], repeat: u32) -> io::Result<Duration> {
    let program = Hook::Ingress.load()?;
    let mut attr = TestRun {
        prog_fd: program.as_raw_fd(),
        data_size_in: frame.len() as u32,
        data_in: frame.as_ptr() as u64,
        repeat,
        ..TestRun::default()
    };
    let at = &raw mut attr;
    // SAFETY: the kernel reads the frame, and reads and writes the attributes. Both outlive the
    // call.
    let done = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, at, size_of::<TestRun>()) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::from_nanos(attr.duration.into()))
}
