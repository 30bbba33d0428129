//! A daemon that only receives, and programs that run under the shim.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod filter;
pub(crate) mod scene;

use std::io::{BufRead, BufReader, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use dysco_common::shim::{Report, ReportKind};

/// Returns the library under test, which cargo placed beside the test's program.
pub(crate) fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.ancestors()
        .skip(1)
        .take(2)
        .map(|d| d.join("libdysco_splice_preload.so"))
        .find(|p| p.exists())
        .expect("libdysco_splice_preload.so is not built beside the test")
}

/// Compiles a C program of this crate into `dir`.
pub(crate) fn compile(dir: &Path, source: &str, args: &[&str]) -> PathBuf {
    let out = dir.join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let done = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&out)
        .arg(source)
        .args(args)
        .status()
        .expect("a C compiler (cc) is missing");
    assert!(done.success());
    out
}

/// Compiles a C program of this crate that links with the library.
pub(crate) fn linked(dir: &Path, source: &str) -> PathBuf {
    let lib = library();
    let lib = lib.parent().unwrap().to_str().unwrap();
    let (at, run) = (format!("-L{lib}"), format!("-Wl,-rpath,{lib}"));
    compile(dir, source, &[&at, &run, "-ldysco_splice_preload"])
}

/// Returns the output of a program, whose `dyscod` has its API at this socket.
pub(crate) fn called(program: &mut Command, api: &Path) -> String {
    let ran = program
        .env("DYSCO_API_SOCKET", api)
        .env("DYSCO_SHIM_SOCKET", "/nowhere")
        // Cargo sets the variable to older builds.
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap();
    String::from_utf8(ran.stdout).unwrap().trim().to_owned()
}

/// Time limit for a report.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The daemon's end of the socket.
pub(crate) struct Daemon(pub UnixDatagram);

impl Daemon {
    pub(crate) fn start(path: &Path) -> Daemon {
        Daemon::on(UnixDatagram::bind(path).unwrap())
    }

    /// Returns a daemon without a path, as for a program that has changed its root.
    pub(crate) fn start_abstract(path: &Path) -> Daemon {
        let address = SocketAddr::from_abstract_name(path.as_os_str().as_bytes());
        Daemon::on(UnixDatagram::bind_addr(&address.unwrap()).unwrap())
    }

    fn on(socket: UnixDatagram) -> Daemon {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let on: libc::c_int = 1;
        // SAFETY: the value is a local integer of that size.
        let r = unsafe {
            let len = size_of_val(&on) as libc::socklen_t;
            let p = (&raw const on).cast();
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PASSCRED,
                p,
                len,
            )
        };
        assert_eq!(r, 0);
        Daemon(socket)
    }

    /// Returns the next report that is no hello, and the pid of its sender.
    pub(crate) fn next(&self) -> (i32, Report) {
        // Hellos arrive once a second, and are no answer.
        let begun = std::time::Instant::now();
        loop {
            let got = self.any().expect("no report came");
            assert!(begun.elapsed() < PATIENCE, "nothing but hellos came");
            if got.1.kind != ReportKind::Hello as u16 {
                return got;
            }
        }
    }

    /// Returns the reports that have arrived so far, without the hellos.
    pub(crate) fn rest(&self) -> Vec<(i32, Report)> {
        self.0.set_nonblocking(true).unwrap();
        let all = std::iter::from_fn(|| self.any());
        all.filter(|(_, r)| r.kind != ReportKind::Hello as u16)
            .collect()
    }

    /// Returns the next datagram, or `None` if none arrives.
    pub(crate) fn any(&self) -> Option<(i32, Report)> {
        let mut bytes = [0u8; 256];
        let mut control = [0u64; 8];
        // SAFETY: all-zero is a valid msghdr, and each pointer is to a local of the length given;
        // the kernel's answer is read as it says.
        unsafe {
            let mut iov = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            };
            let mut msg: libc::msghdr = std::mem::zeroed();
            (msg.msg_iov, msg.msg_iovlen) = (&raw mut iov, 1);
            msg.msg_control = control.as_mut_ptr().cast();
            msg.msg_controllen = size_of_val(&control) as _;
            let n = libc::recvmsg(self.0.as_raw_fd(), &raw mut msg, 0);
            if n < 0 {
                let e = std::io::Error::last_os_error();
                assert_eq!(e.kind(), ErrorKind::WouldBlock, "{e}");
                return None;
            }
            let c = libc::CMSG_FIRSTHDR(&raw const msg);
            assert!(!c.is_null() && (*c).cmsg_type == libc::SCM_CREDENTIALS);
            let who = libc::CMSG_DATA(c).cast::<libc::ucred>().read_unaligned();
            let report = Report::from_bytes(&bytes[..n as usize]).expect("not a report");
            Some((who.pid, report))
        }
    }
}

/// A program under the shim.
pub(crate) struct Run {
    pub child: Child,
    out: BufReader<ChildStdout>,
}

impl Run {
    /// Starts the program. Its input stays open until `finish` closes it.
    pub(crate) fn start(program: &Path, args: &[&str], socket: &Path) -> Run {
        Run::changed(program, args, socket, |_| ())
    }

    /// Starts the program by a command that was changed.
    pub(crate) fn changed(
        program: &Path,
        args: &[&str],
        socket: &Path,
        change: impl FnOnce(&mut Command),
    ) -> Run {
        let mut command = Command::new(program);
        command.args(args).env("LD_PRELOAD", library());
        change(&mut command);
        Run::spawn(&mut command, socket)
    }

    /// Starts a program that links the library itself.
    pub(crate) fn bare(program: &Path, args: &[&str], socket: &Path) -> Run {
        Run::spawn(Command::new(program).args(args), socket)
    }

    fn spawn(command: &mut Command, socket: &Path) -> Run {
        let mut child = command
            .env("DYSCO_SHIM_SOCKET", socket)
            // Cargo sets the variable to older builds.
            .env_remove("LD_LIBRARY_PATH")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Run { child, out }
    }

    /// Returns the pid of the program.
    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Returns the next line of the program's output.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Returns the descriptors of the next pair that the program relays.
    pub(crate) fn pair(&mut self) -> (i32, i32) {
        self.named_pair().0
    }

    /// Returns the descriptors of the next pair, and the cookies of the two sockets.
    pub(crate) fn named_pair(&mut self) -> ((i32, i32), (u64, u64)) {
        let line = self.line();
        let number = |key: &str| {
            let word = line.split(' ').find_map(|w| w.strip_prefix(key));
            word.and_then(|n| n.parse::<u64>().ok())
                .unwrap_or_else(|| panic!("not a pair: {line:?}"))
        };
        let fds = (number("a=") as i32, number("b=") as i32);
        (fds, (number("ca="), number("cb=")))
    }

    /// Closes the program's input, and requires that it ends successfully.
    pub(crate) fn finish(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }

    /// Asks the program to end, and waits for its end.
    pub(crate) fn terminate(mut self) {
        self.ask_to_end();
        self.child.wait().unwrap();
    }

    fn ask_to_end(&self) {
        // SAFETY: a child of this process, which was not waited for yet.
        unsafe { libc::kill(self.pid(), libc::SIGTERM) };
    }
}

/// A failed test leaves nothing running.
impl Drop for Run {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.ask_to_end();
            let _ = self.child.wait();
        }
    }
}

/// Runs a test in a fresh network namespace with its loopback up.
pub(crate) fn in_network(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // SAFETY: no pointers; the call affects this thread and those that it starts.
        let r = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(r, 0, "these tests need root, for network namespaces");
        let up = Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status();
        assert!(up.expect("iproute2 is missing").success());
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
