//! Pinned links to interfaces.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::net::if_::if_nametoindex;

/// Commands of the system call `bpf` (`enum bpf_cmd`, linux/bpf.h).
const OBJ_GET: libc::c_long = 7;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;

/// The attributes of `BPF_OBJ_GET`.
#[repr(C)]
struct Get {
    path: u64,
    descriptor: u32,
    flags: u32,
}

/// The attributes of `BPF_OBJ_GET_INFO_BY_FD`.
#[repr(C)]
struct GetInfo {
    descriptor: u32,
    length: u32,
    info: u64,
}

/// The beginning of `struct bpf_link_info`, as links of TCX and XDP have it.
#[repr(C)]
#[derive(Default)]
struct Info {
    kind: u32,
    id: u32,
    program: u32,
    _gap: u32,
    interface: u32,
    attach: u32,
}

/// Returns the index of the interface that a pinned link is attached to; 0 if the link is attached to
/// none any more.
///
/// # Errors
/// If there is no such link.
pub(crate) fn interface_of(path: &Path) -> io::Result<u32> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let mut get = Get {
        path: name.as_ptr() as u64,
        descriptor: 0,
        flags: 0,
    };
    let link = bpf(OBJ_GET, &mut get)?;
    // SAFETY: the call returned a descriptor that nothing else owns.
    let link = unsafe { OwnedFd::from_raw_fd(link) };
    let mut info = Info::default();
    let mut asks = GetInfo {
        descriptor: link.as_raw_fd().cast_unsigned(),
        length: size_of::<Info>() as u32,
        info: (&raw mut info) as u64,
    };
    bpf(OBJ_GET_INFO_BY_FD, &mut asks)?;
    Ok(info.interface)
}

/// True if the pinned link is attached to the interface that has this name now. Another interface may
/// have had it when the link was made.
pub(crate) fn is_on(path: &Path, interface: &str) -> bool {
    let present = if_nametoindex(interface).ok();
    present.is_some() && interface_of(path).ok() == present
}

fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<i32> {
    let attributes: *mut T = attributes;
    // SAFETY: the attributes are of this command, and all that they name lives until the call has
    // returned.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    match done {
        // A descriptor, or 0.
        0.. => Ok(done as i32),
        _ => Err(io::Error::last_os_error()),
    }
}
