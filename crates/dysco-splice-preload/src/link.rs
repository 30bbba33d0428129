//! The datagram socket to the daemon. It is created before `main`, and never waited on.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed,
};

use dysco_common::shim::{MAGIC, Report, ReportKind, VERSION};

use crate::system::{errno, seconds, set_errno};

const DEFAULT_PATH: &[u8] = b"/run/dysco/shim.sock";
/// Minimum number of the descriptor, out of the range of a program that assigns low numbers
/// itself.
const HIGH: i32 = 1000;

static FD: AtomicI32 = AtomicI32::new(-1);
/// Inode of the shim's socket. The program may have closed the socket and reused its descriptor.
static INODE: AtomicU64 = AtomicU64::new(0);
static CONNECTED: AtomicBool = AtomicBool::new(false);
/// Number of the connection that this process has last seen.
static EPOCH: AtomicU32 = AtomicU32::new(1);
/// Number of the connection of this socket, in memory that forks share as they share the socket.
static SHARED: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// The same, if there is no such memory.
static UNSHARED: AtomicU32 = AtomicU32::new(1);
static LAST_LOOK: AtomicI64 = AtomicI64::new(0);
static PATH: Address = Address(UnsafeCell::new(MaybeUninit::zeroed()));
/// Address of the same name in the abstract name space, for a program that has changed its root
/// and finds no path.
static ABSTRACT: Address = Address(UnsafeCell::new(MaybeUninit::zeroed()));

/// An address on which the daemon listens. The constructor writes it once.
struct Address(UnsafeCell<MaybeUninit<(libc::sockaddr_un, libc::socklen_t)>>);
// SAFETY: written before any other thread exists, only read afterwards.
unsafe impl Sync for Address {}

impl Address {
    /// Stores the address of this path, after a NUL byte if it is an abstract one.
    ///
    /// # Safety
    /// No other thread exists yet.
    unsafe fn write(&self, path: &[u8], is_abstract: bool) {
        // SAFETY: all-zero is a valid sockaddr_un; nothing reads the address meanwhile.
        unsafe {
            let mut addr: libc::sockaddr_un = core::mem::zeroed();
            addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
            let begin = core::mem::offset_of!(libc::sockaddr_un, sun_path);
            let mut len = size_of_val(&addr);
            // An address that does not fit stays all zero, and no daemon listens on it.
            if path.len() < addr.sun_path.len() {
                let first = usize::from(is_abstract);
                for (to, from) in addr.sun_path[first..].iter_mut().zip(path) {
                    *to = *from as libc::c_char;
                }
                // An abstract name has a length, and a path ends with a NUL.
                len = begin + path.len() + 1;
            }
            (*self.0.get()).write((addr, len as libc::socklen_t));
        }
    }

    /// Connects the descriptor to the address.
    fn connect(&self, fd: i32) -> bool {
        // SAFETY: the address was written by the constructor (zero before it: then the family is
        // AF_UNSPEC and nothing is sent anywhere).
        unsafe {
            let (addr, len) = &*(*self.0.get()).as_ptr();
            libc::syscall(libc::SYS_connect, fd, core::ptr::from_ref(addr), *len) == 0
        }
    }
}

/// Result of sending a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// The daemon has received the report.
    Yes,
    /// The daemon's queue is full. The report should be repeated soon.
    Full,
    /// No daemon is connected.
    NoDaemon,
}

/// Returns a number that increases with each new connection and is never 0.
pub(crate) fn epoch() -> u32 {
    EPOCH.load(Relaxed)
}

/// Returns true if this descriptor is the shim's, and not the program's.
#[inline(always)]
pub(crate) fn is_ours(fd: i32) -> bool {
    fd >= 0 && fd == FD.load(Relaxed) && intact(fd)
}

/// Returns the number of the shim's descriptor, or -1.
pub(crate) fn fd() -> i32 {
    FD.load(Relaxed)
}

/// Returns the number of the socket's connection. A fork may have connected the socket anew.
fn connection() -> &'static AtomicU32 {
    let shared = SHARED.load(Relaxed);
    // SAFETY: null, or an aligned word of a mapping that lasts as long as the process.
    unsafe { shared.as_ref() }.unwrap_or(&UNSHARED)
}

/// Makes the memory that forks share.
fn share() {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let page = unsafe {
        let len = size_of::<AtomicU32>();
        libc::mmap(core::ptr::null_mut(), len, access, kind, -1, 0)
    };
    if page != libc::MAP_FAILED {
        SHARED.store(page.cast(), Relaxed);
        connection().store(1, Relaxed);
    }
}

/// Creates the socket and sends a hello.
pub(crate) fn start() {
    store_path();
    share();
    open();
    // SAFETY: the handler is a plain function of this library.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    hello();
}

extern "C" fn forked() {
    LAST_LOOK.store(0, Relaxed);
}

fn hello() {
    send(&report(ReportKind::Hello));
}

/// Returns a report of this kind without a subject.
pub(crate) fn report(kind: ReportKind) -> Report {
    Report {
        magic: MAGIC,
        version: VERSION,
        kind: kind as u16,
        flags: 0,
        fd_in: -1,
        fd_out: -1,
        pipe_forward: -1,
        pipe_reverse: -1,
        reserved: 0,
        delta_forward: 0,
        delta_reverse: 0,
        cookie_in: 0,
        cookie_out: 0,
    }
}

fn store_path() {
    // SAFETY: getenv returns null or a C string that lives until setenv. This function runs
    // before main, so nothing changes the environment meanwhile, and no other thread exists.
    unsafe {
        let env = libc::getenv(c"DYSCO_SHIM_SOCKET".as_ptr());
        let path = if env.is_null() {
            DEFAULT_PATH
        } else {
            core::ffi::CStr::from_ptr(env).to_bytes()
        };
        PATH.write(path, false);
        ABSTRACT.write(path, true);
    }
}

// The calls below bypass the shim's own hooks, except that of `syscall`, which finds no claim
// about the shim's descriptor.

fn open() {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers, except to fstat's result, which is a local variable.
    unsafe {
        let low = libc::syscall(libc::SYS_socket, libc::AF_UNIX, kind, 0) as i32;
        if low < 0 {
            return;
        }
        let mut limit: libc::rlimit = core::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        let top = i32::try_from(limit.rlim_cur).unwrap_or(i32::MAX);
        let least = if top > HIGH + 24 {
            HIGH
        } else {
            (top - 24).max(3)
        };
        let high = libc::syscall(libc::SYS_fcntl, low, libc::F_DUPFD_CLOEXEC, least) as i32;
        let fd = if high < 0 { low } else { high };
        if high >= 0 {
            libc::syscall(libc::SYS_close, low);
        }
        INODE.store(inode(fd), Relaxed);
        FD.store(fd, Relaxed);
    }
    connect();
}

fn inode(fd: i32) -> u64 {
    // SAFETY: all-zero is a valid stat; the call fills the local variable.
    unsafe {
        let mut st: libc::stat = core::mem::zeroed();
        if libc::fstat(fd, &mut st) != 0 || st.st_mode & libc::S_IFMT != libc::S_IFSOCK {
            return 0;
        }
        st.st_ino
    }
}

fn intact(fd: i32) -> bool {
    let want = INODE.load(Relaxed);
    want != 0 && inode(fd) == want
}

fn connect() -> bool {
    let fd = FD.load(Relaxed);
    let connected = PATH.connect(fd) || ABSTRACT.connect(fd);
    CONNECTED.store(connected, Relaxed);
    connected
}

/// Looks for a daemon. Returns true if a new one was found, which knows no pair of this process.
/// To be called once a second: the hello that it sends also detects the loss of a daemon.
#[cold]
pub(crate) fn look() -> bool {
    if INODE.load(Relaxed) == 0 {
        return false;
    }
    let before = errno();
    hello();
    let mut found = false;
    if !CONNECTED.load(Relaxed) {
        if !intact(FD.load(Relaxed)) {
            open();
        }
        found = CONNECTED.load(Relaxed) || connect();
    }
    if found {
        connection().fetch_add(1, Relaxed);
    }
    let now = connection().load(Relaxed);
    let is_new = EPOCH.swap(now, Relaxed) != now;
    if found {
        hello();
    }
    set_errno(before);
    is_new
}

/// The shim's socket, while it is not used.
pub(crate) struct Suspended {
    fd: i32,
    inode: u64,
    connected: bool,
}

/// Stops the use of the socket and of its descriptor.
pub(crate) fn suspend() -> Suspended {
    Suspended {
        connected: CONNECTED.swap(false, Relaxed),
        inode: INODE.swap(0, Relaxed),
        fd: FD.swap(-1, Relaxed),
    }
}

/// Ends the effect of `suspend`.
pub(crate) fn resume(link: Suspended) {
    FD.store(link.fd, Relaxed);
    INODE.store(link.inode, Relaxed);
    CONNECTED.store(link.connected, Relaxed);
}

/// Returns true if a second has passed since the last look, to one thread only.
pub(crate) fn due() -> bool {
    let now = seconds();
    let last = LAST_LOOK.load(Relaxed);
    now != last
        && LAST_LOOK
            .compare_exchange(last, now, Relaxed, Relaxed)
            .is_ok()
}

/// Sends one report and never waits. Preserves the program's errno.
pub(crate) fn send(r: &Report) -> Sent {
    if !CONNECTED.load(Relaxed) {
        return Sent::NoDaemon;
    }
    let fd = FD.load(Relaxed);
    let before = errno();
    if !intact(fd) {
        set_errno(before);
        CONNECTED.store(false, Relaxed);
        return Sent::NoDaemon;
    }
    let bytes = r.to_bytes();
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the buffer is a local variable of this length.
    let n = unsafe {
        libc::syscall(
            libc::SYS_sendto,
            fd,
            bytes.as_ptr(),
            bytes.len(),
            flags,
            0usize,
            0usize,
        )
    };
    let why = errno();
    set_errno(before);
    if n == bytes.len() as libc::c_long {
        return Sent::Yes;
    }
    match why {
        libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR => Sent::Full,
        _ => {
            CONNECTED.store(false, Relaxed);
            Sent::NoDaemon
        }
    }
}
