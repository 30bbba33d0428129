//! The functions of libc that the shim intercepts. Each hook calls the real function first (a
//! close: last) and returns its result unchanged.

use core::ffi::{c_int, c_uint, c_void};

use libc::{iovec, loff_t, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

use crate::real::real;
use crate::table::kind;
use crate::{copies, link, system, tell, track};

fn consumes(flags: c_int) -> bool {
    flags & libc::MSG_PEEK == 0
}

/// Declares hooks: the real call, and then its effect on the counters.
macro_rules! hooks {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty => |$n:ident| $after:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            let $n = real!($name: fn($($arg => $ty),*) -> $ret);
            $after;
            $n
        }
    )*};
}

hooks! {
    read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t => |n| track::read(fd, n);
    __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t
        => |n| track::read(fd, n);
    readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t => |n| track::read(fd, n);
    recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t
        => |n| if consumes(flags) { track::read(fd, n) };
    __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t
        => |n| if consumes(flags) { track::read(fd, n) };
    recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr,
        from_len: *mut socklen_t) -> ssize_t
        => |n| if consumes(flags) { track::read(fd, n) };
    __recvfrom_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int,
        from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t
        => |n| if consumes(flags) { track::read(fd, n) };
    recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t
        => |n| if consumes(flags) { track::read(fd, n) };
    recvmmsg(fd: c_int, all: *mut mmsghdr, count: c_uint, flags: c_int, limit: *mut timespec)
        -> c_int => |n| if consumes(flags) {
            // SAFETY: the call has filled this number of messages.
            track::read(fd, unsafe { copies::messages(all, n, false) });
        };
    preadv2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t
        => |n| track::read(fd, n);
    preadv64v2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t
        => |n| track::read(fd, n);

    write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t => |n| track::wrote(fd, n);
    writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t => |n| track::wrote(fd, n);
    send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t
        => |n| track::wrote(fd, n);
    sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, to: *const sockaddr,
        to_len: socklen_t) -> ssize_t => |n| track::wrote(fd, n);
    sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t => |n| {
        track::wrote(fd, n);
        if n >= 0 {
            // SAFETY: the call has accepted the message.
            unsafe { copies::passed(msg) };
        }
    };
    sendmmsg(fd: c_int, all: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int
        // SAFETY: the call has sent this number of messages.
        => |n| track::wrote(fd, unsafe { copies::messages(all, n, true) });
    pwritev2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t
        => |n| track::wrote(fd, n);
    pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t
        => |n| track::wrote(fd, n);
    sendfile(to: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t
        => |n| track::wrote(to, n);
    sendfile64(to: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t
        => |n| track::wrote(to, n);

    splice(from: c_int, from_off: *mut loff_t, to: c_int, to_off: *mut loff_t, len: size_t,
        flags: c_uint) -> ssize_t => |n| track::spliced(from, to, n, len);

    accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int
        => |new| track::opened(new, kind::ACCEPTED);
    accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int
        => |new| track::opened(new, kind::ACCEPTED);
    socket(domain: c_int, ty: c_int, protocol: c_int) -> c_int
        => |new| track::opened(new, if is_tcp(domain, ty) { kind::SOCKET } else { kind::NONE });
}

// The two calls that wait. Owed reports are sent before.

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut c_void,
    max: c_int,
    timeout: c_int,
) -> c_int {
    tell::idle();
    real!(epoll_wait: fn(epoll => c_int, events => *mut c_void, max => c_int, timeout => c_int) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut c_void, count: libc::nfds_t, timeout: c_int) -> c_int {
    tell::idle();
    real!(poll: fn(fds => *mut c_void, count => libc::nfds_t, timeout => c_int) -> c_int)
}

fn is_tcp(domain: c_int, ty: c_int) -> bool {
    matches!(domain, libc::AF_INET | libc::AF_INET6)
        && ty & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) == libc::SOCK_STREAM
}

#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // AF_UNSPEC ends the connection, and the next one counts from zero.
    // SAFETY: a caller that states a length provides that number of bytes.
    let ends = len >= 2 && !addr.is_null() && unsafe { (*addr).sa_family } == 0;
    let r = real!(connect: fn(fd => c_int, addr => *const sockaddr, len => socklen_t) -> c_int);
    if ends && r == 0 {
        track::closing(fd);
        track::opened(fd, kind::SOCKET);
    }
    r
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    // A half-close (SHUT_WR) forwards the end of the other side. To stop reading is an action of
    // the program itself.
    if how != libc::SHUT_WR {
        track::shut(fd);
    }
    real!(shutdown: fn(fd => c_int, how => c_int) -> c_int)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close(fd: c_int) -> c_int {
    if link::is_ours(fd) {
        // The program closes descriptors that it never opened.
        system::set_errno(libc::EBADF);
        return -1;
    }
    // The slot is cleared before the close, because another thread may get the number immediately
    // afterwards.
    track::closing(fd);
    real!(close: fn(fd => c_int) -> c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pipe(ends: *mut c_int) -> c_int {
    let r = real!(pipe: fn(ends => *mut c_int) -> c_int);
    made_pipe(r, ends);
    r
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pipe2(ends: *mut c_int, flags: c_int) -> c_int {
    let r = real!(pipe2: fn(ends => *mut c_int, flags => c_int) -> c_int);
    made_pipe(r, ends);
    r
}

fn made_pipe(r: c_int, ends: *const c_int) {
    if r == 0 {
        // SAFETY: the call succeeded, so the array holds two descriptors.
        let (read_end, write_end) = unsafe { (*ends, *ends.add(1)) };
        track::piped(read_end, write_end);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn socketpair(
    domain: c_int,
    ty: c_int,
    protocol: c_int,
    ends: *mut c_int,
) -> c_int {
    let r = real!(socketpair: fn(domain => c_int, ty => c_int, protocol => c_int, ends => *mut c_int) -> c_int);
    if r == 0 {
        // SAFETY: the call succeeded, so the array holds two descriptors.
        for fd in unsafe { [*ends, *ends.add(1)] } {
            track::opened(fd, kind::NONE);
        }
    }
    r
}
