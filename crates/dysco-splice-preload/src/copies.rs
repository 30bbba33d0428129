//! Calls after which a socket may be read or written without the counters: another descriptor for
//! it, another process that receives it, a stdio stream, a system call by its number. The claim
//! about the socket ends there.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};

use libc::{msghdr, size_t};

use crate::real::real;
use crate::{ranges, seal, track};

/// Declares a hook for `fcntl`. Its argument is variadic: if present, it is a word in the third
/// register.
macro_rules! fcntl {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(fd: c_int, command: c_int, word: usize) -> c_int {
            let r = real!($name: fn(fd => c_int, command => c_int, word => usize) -> c_int);
            if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
                aliased(fd, r);
            }
            r
        }
    )*};
}

fcntl!(fcntl fcntl64);

#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    let new = real!(dup: fn(fd => c_int) -> c_int);
    aliased(fd, new);
    new
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(fd: c_int, new: c_int) -> c_int {
    let r = real!(dup2: fn(fd => c_int, new => c_int) -> c_int);
    if fd != new {
        aliased(fd, r);
    }
    r
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
    let r = real!(dup3: fn(fd => c_int, new => c_int, flags => c_int) -> c_int);
    aliased(fd, r);
    r
}

/// Ends the claim about a socket with two descriptors, because the counters of neither are
/// reliable.
fn aliased(fd: c_int, new: c_int) {
    if new >= 0 {
        track::closing(new);
        track::unfit(fd);
    }
}

/// Ends the claim, because stdio reads and writes by internal functions of libc.
#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> isize {
    track::unfit(fd);
    // The result is a pointer in the same register. The value -1 is no result of libc, and occurs
    // only if libc lacks the function.
    real!(fdopen: fn(fd => c_int, mode => *const c_char) -> isize)
}

/// Ends the claims about descriptors that a message has passed to its receiver.
///
/// # Safety
/// `msg` is null or a valid message for `sendmsg`.
pub(crate) unsafe fn passed(msg: *const msghdr) {
    // SAFETY: required of the caller; the CMSG functions stay within the length that the message
    // states.
    unsafe {
        if msg.is_null() || (*msg).msg_control.is_null() {
            return;
        }
        let mut c = libc::CMSG_FIRSTHDR(msg);
        while !c.is_null() {
            if ((*c).cmsg_level, (*c).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data = libc::CMSG_DATA(c).cast::<c_int>();
                let len = ((*c).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                for i in 0..len / size_of::<c_int>() {
                    track::unfit(data.add(i).read_unaligned());
                }
            }
            c = libc::CMSG_NXTHDR(msg, c);
        }
    }
}

/// Returns the number of bytes in the first `count` messages, and handles the descriptors that
/// they pass.
///
/// # Safety
/// `all` has at least `count` messages that a call has filled or sent.
pub(crate) unsafe fn messages(all: *const libc::mmsghdr, count: c_int, sent: bool) -> isize {
    let mut bytes = 0;
    for i in 0..usize::try_from(count).unwrap_or_default() {
        // SAFETY: required of the caller.
        unsafe {
            let one = &*all.add(i);
            bytes += one.msg_len as isize;
            if sent {
                passed(&raw const one.msg_hdr);
            }
        }
    }
    bytes
}

/// Hook for a system call by its number.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let call = |a: usize, b: usize| {
        real!(syscall: fn(number => c_long, a => usize, b => usize, c => usize, d => usize,
        e => usize, f => usize) -> c_long)
    };
    if number == libc::SYS_close_range {
        let (first, last) = (a as c_uint, b as c_uint);
        let part = |first, last| call(first as usize, last as usize) as c_int;
        return ranges::close(first, last, c as c_int, part).into();
    }
    if seal::restricts(number, [a, b, c]) {
        return seal::around(|| call(a, b));
    }
    if duplicates(number) {
        let new = call(a, b);
        if new as usize != a {
            aliased(a as c_int, new as c_int);
        }
        return new;
    }
    by_number(number, a as c_int, c as c_int);
    call(a, b)
}

/// Returns true if a system call makes a second descriptor of its first argument.
fn duplicates(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_dup2 {
        return true;
    }
    matches!(number, libc::SYS_dup | libc::SYS_dup3)
}

/// Ends the claims about descriptors of a call that the counters do not follow.
fn by_number(number: c_long, first: c_int, third: c_int) {
    match number {
        libc::SYS_splice | libc::SYS_tee | libc::SYS_sendfile => {
            track::unfit(first);
            track::unfit(third);
        }
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_preadv2
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_pwritev2
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_vmsplice
        | libc::SYS_fcntl
        | libc::SYS_shutdown => track::unfit(first),
        libc::SYS_close => track::closing(first),
        _ => {}
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn vmsplice(
    pipe: c_int,
    iov: *const c_void,
    count: size_t,
    flags: c_uint,
) -> isize {
    // The bytes come from the program's memory, or go into it.
    track::unfit(pipe);
    real!(vmsplice: fn(pipe => c_int, iov => *const c_void, count => size_t, flags => c_uint) -> isize)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn tee(from: c_int, to: c_int, len: size_t, flags: c_uint) -> isize {
    track::unfit(from);
    track::unfit(to);
    real!(tee: fn(from => c_int, to => c_int, len => size_t, flags => c_uint) -> isize)
}
