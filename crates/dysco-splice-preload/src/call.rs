//! `dysco_splice`, by which a program itself declares a direction that it relays.

use dysco_common::shim::{ReportKind, report};

use crate::link::{self, Sent};
use crate::system::{self, set_errno};
use crate::table::{kind, slot};
use crate::{tell, track};

/// Declares that from now on the program moves every byte of `fd_in` to `fd_out` unchanged, and
/// that so far it has written `delta` bytes more to `fd_out` than it has read from `fd_in`. Bytes
/// that the program still holds count as written. Each direction needs one call. Returns 0, or -1
/// and errno: see `dysco.h`.
///
/// # Safety
/// No requirements: both arguments are plain numbers.
#[unsafe(no_mangle)]
pub extern "C" fn dysco_splice(
    fd_in: libc::c_int,
    fd_out: libc::c_int,
    delta: libc::c_int,
) -> libc::c_int {
    match declare(fd_in, fd_out, i64::from(delta)) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

fn declare(fd_in: i32, fd_out: i32, delta: i64) -> Result<(), i32> {
    check(fd_in)?;
    check(fd_out)?;
    if fd_in == fd_out {
        return Err(libc::EINVAL);
    }
    let (Some(a), Some(b)) = (slot(fd_in), slot(fd_out)) else {
        return Err(libc::EMFILE);
    };
    for (fd, s) in [(fd_in, a), (fd_out, b)] {
        // The shim has not seen the socket's creation: the program inherited it, or made it by a
        // raw system call.
        if s.kind.load(core::sync::atomic::Ordering::Relaxed) == kind::NONE {
            track::opened(fd, kind::SOCKET);
        }
    }
    let (from, to) = (a.life(fd_in), b.life(fd_out));
    track::declare(from, to, delta);
    let mut r = tell::about(ReportKind::Called, from, to);
    r.flags = report::FORWARD_ENDLESS | tell::accepted_bit(a);
    r.delta_forward = delta;
    let mut sent = link::send(&r);
    if sent == Sent::NoDaemon && link::look() {
        tell::owe_all();
        sent = link::send(&r);
    }
    match sent {
        Sent::Yes => Ok(()),
        Sent::Full => {
            tell::owe_all();
            Err(libc::EAGAIN)
        }
        Sent::NoDaemon => Err(libc::ENOTCONN),
    }
}

/// Returns an errno unless the descriptor is a TCP socket.
fn check(fd: i32) -> Result<(), i32> {
    let mut protocol: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: option and length are local variables.
    let r = unsafe {
        let p = (&raw mut protocol).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, p, &mut len)
    };
    if r != 0 {
        return Err(system::errno());
    }
    if protocol != libc::IPPROTO_TCP {
        return Err(libc::EPROTOTYPE);
    }
    Ok(())
}
