//! The socket that shims report to. A separate thread does nothing but read it, because the queue
//! of a unix datagram socket holds ten datagrams. A shim that finds the queue full must repeat
//! the report later, and a removal of all sessions misses its pairs meanwhile.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dysco_common::shim::Report;
use nix::sys::socket::sockopt::PassCred;
use nix::sys::socket::{UnixAddr, setsockopt};
use tracing::{debug, warn};

use super::error::StartError;
use super::inbox::{Got, Inbox};
use super::lock;
use super::registry::Registry;
use super::sender::Sender;
use super::unwanted;

/// Interval at which a stop is noticed.
const TICK: Duration = Duration::from_millis(250);

/// Time limit for the threads to end.
const ENDING: Duration = Duration::from_secs(2);
/// Room for the sender's credentials and for the maximum number of descriptors (`SCM_MAX_FD`).
/// The kernel would close descriptors without room during the receiving call.
const CONTROL: usize = 160;

/// The receiving threads. Dropping this value stops them and removes the socket.
pub(crate) struct Receiver {
    stop: Arc<AtomicBool>,
    /// Receiver whose senders the threads drop when they end.
    ended: Mutex<mpsc::Receiver<()>>,
    path: PathBuf,
    inode: Option<u64>,
}

impl Receiver {
    /// Creates the socket, replacing one that no process reads, and starts to read. It also reads
    /// the abstract sockets of the same name and of this `name`.
    pub(crate) fn start(
        path: &Path,
        name: Option<&Path>,
        registry: Arc<Mutex<Registry>>,
    ) -> Result<Receiver, StartError> {
        let fail = |what| {
            move |source| StartError::Socket {
                what,
                path: path.to_owned(),
                source,
            }
        };
        let socket = bind(path).map_err(fail("make"))?;
        // A proxy of any user may report its own sockets, and only those.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))
            .map_err(fail("set the mode of"))?;
        let (running, ended) = mpsc::channel::<()>();
        let inbox = Inbox::start(registry, running.clone()).map_err(fail("start a thread for"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let named = name.and_then(bind_abstract);
        for socket in [Some(socket), bind_abstract(path), named]
            .into_iter()
            .flatten()
        {
            let (inbox, running) = (inbox.clone(), running.clone());
            let stopped = Arc::clone(&stop);
            std::thread::Builder::new()
                .name("shim-socket".into())
                .spawn(move || {
                    run(&socket, &inbox, &stopped);
                    drop((socket, inbox, running));
                })
                .map_err(fail("start a thread for"))?;
        }
        Ok(Receiver {
            stop,
            ended: Mutex::new(ended),
            path: path.to_owned(),
            inode: inode(path),
        })
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Closing a descriptor in the queue may make the thread wait for its sender.
        if lock(&self.ended).recv_timeout(ENDING) == Err(RecvTimeoutError::Timeout) {
            debug!("the threads of the shim's socket have not ended in time");
        }
        // A newer daemon may have replaced the socket by its own.
        if self.inode.is_some() && inode(&self.path) == self.inode {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

fn inode(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(path).ok().map(|m| m.ino())
}

fn bind(path: &Path) -> io::Result<UnixDatagram> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let address = UnixAddr::new(path)?;
    match receiver_at(&address) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            if UnixDatagram::unbound()?.connect(path).is_ok() {
                return Err(e);
            }
            std::fs::remove_file(path)?;
            receiver_at(&address)
        }
        other => other,
    }
}

/// Binds the abstract socket of the same name, for proxies that have changed their root since
/// they started. Without it no reports of these proxies arrive after a restart of `dyscod`.
fn bind_abstract(path: &Path) -> Option<UnixDatagram> {
    let address = UnixAddr::new_abstract(path.as_os_str().as_bytes()).map_err(io::Error::from);
    let socket = address.and_then(|a| receiver_at(&a));
    let lost = |error: &io::Error| {
        warn!(path = %path.display(), %error,
            "the shim's abstract socket is not there: a proxy that has changed its root is not \
             heard again; see 'ss -xl' for its owner, and restart dyscod");
    };
    socket.inspect_err(lost).ok()
}

/// Creates a receiving socket at an address. The options are set before the socket is bound: the
/// kernel attaches the sender's credentials when a datagram is sent, and a shim sends as soon as
/// the address exists.
fn receiver_at(address: &UnixAddr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    setsockopt(&socket, PassCred, &true)?;
    socket.set_read_timeout(Some(TICK))?;
    unwanted::refuse(&socket);
    nix::sys::socket::bind(socket.as_raw_fd(), address)?;
    Ok(socket)
}

fn run(socket: &UnixDatagram, inbox: &Inbox, stop: &AtomicBool) {
    let mut complained = false;
    while !stop.load(Ordering::Relaxed) {
        let got = match receive(socket) {
            Ok(Some((from, report))) => Got::Report(from, report),
            Ok(None) => Got::Malformed,
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                continue;
            }
            Err(e) => {
                if !std::mem::replace(&mut complained, true) {
                    warn!(error = %e, "cannot receive on the shim's socket");
                }
                std::thread::sleep(TICK);
                continue;
            }
        };
        if !inbox.put(got) {
            break;
        }
    }
}

/// Receives one datagram and its sender; `None` if it is no report.
fn receive(socket: &UnixDatagram) -> io::Result<Option<(Sender, Report)>> {
    // The buffer has one byte more than a report, so that a longer datagram is noticed.
    let mut bytes = [0u8; Report::SIZE + 1];
    let mut control = [0u64; CONTROL];
    let mut iov = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all-zero is a valid msghdr; every pointer set is to a local of
    // the length that is given.
    let (n, msg) = unsafe {
        let mut msg: libc::msghdr = std::mem::zeroed();
        msg.msg_iov = &raw mut iov;
        msg.msg_iovlen = 1;
        msg.msg_control = control.as_mut_ptr().cast();
        msg.msg_controllen = size_of_val(&control) as _;
        let n = libc::recvmsg(socket.as_raw_fd(), &raw mut msg, libc::MSG_CMSG_CLOEXEC);
        if n < 0 {
            return Err(io::Error::last_os_error());
        }
        (n as usize, msg)
    };
    let from = credentials(&msg);
    Ok(bytes
        .get(..n)
        .and_then(Report::from_bytes)
        .and_then(|r| Some((from?, r))))
}

/// Returns the sender that the kernel attached. Closes descriptors that were sent along.
fn credentials(msg: &libc::msghdr) -> Option<Sender> {
    let mut from = None;
    // SAFETY: the kernel filled the control buffer; the CMSG functions stay
    // within the length it set, and data is read unaligned.
    unsafe {
        let mut c = libc::CMSG_FIRSTHDR(msg);
        while !c.is_null() {
            let data = libc::CMSG_DATA(c);
            match ((*c).cmsg_level, (*c).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                    let libc::ucred { pid, uid, .. } = data.cast::<libc::ucred>().read_unaligned();
                    from = Some(Sender { pid, uid });
                }
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    let len = (*c).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    for i in 0..len / size_of::<i32>() {
                        let fd = data.cast::<i32>().add(i).read_unaligned();
                        unwanted::close(OwnedFd::from_raw_fd(fd));
                    }
                }
                _ => {}
            }
            c = libc::CMSG_NXTHDR(msg, c);
        }
    }
    from.filter(|f| f.pid > 0)
}
