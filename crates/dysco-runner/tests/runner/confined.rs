//! A runner that is confined, in a process of its own.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::Command;

use dysco_runner::protocol::{Client, End, Report, Request, listen};
use dysco_runner::{confine, run};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, Uid, fork, geteuid, setresuid};

use crate::lab::{Runner, Session, bytes, read, read_to_end, send};

const NOBODY: u32 = 65534;

/// Runs a function in a child. It must return an error rather than panic in what matters.
pub(crate) fn child(body: impl FnOnce() -> Result<(), String>) -> Pid {
    // SAFETY: the child runs on one thread. glibc's allocator works in it, and the child takes no
    // lock that another thread of this process may have held.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            let code = match result {
                Ok(Ok(())) => 0,
                Ok(Err(why)) => {
                    let _ = writeln!(std::io::stderr(), "{why}");
                    1
                }
                Err(_) => 2,
            };
            // SAFETY: the call ends the process without running what the parent registered.
            unsafe { libc::_exit(code) }
        }
    }
}

fn succeeds(child: Pid) {
    assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
}

fn denied<T>(what: &str, result: std::io::Result<T>) -> Result<(), String> {
    match result {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(format!("{what}: {error}")),
        Ok(_) => Err(format!("{what} is allowed")),
    }
}

/// Returns three quarters of the host's memory, in bytes. A confined process cannot ask for it.
fn most() -> usize {
    let host = rustix::system::sysinfo();
    host.totalram as usize / 4 * 3 * host.mem_unit as usize
}

/// Checks what a confined process cannot do, such as to allocate so many bytes.
fn is_confined(most: usize) -> Result<(), String> {
    denied("open a file", File::open("/"))?;
    denied("make a file", File::create("/x"))?;
    denied("run a program", Command::new("/bin/true").spawn())?;
    denied("make a thread", std::thread::Builder::new().spawn(|| {}))?;
    denied("open a unix socket", UnixStream::pair())?;
    denied("listen", TcpListener::bind("127.0.0.1:0"))?;
    // Such a size is refused only by the limit.
    if Vec::<u8>::new().try_reserve_exact(most).is_ok() {
        return Err("it gets three quarters of the host's memory".into());
    }
    // SAFETY: the call makes a new mapping, which nothing uses.
    let code = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0)
    };
    match code == libc::MAP_FAILED {
        true => Ok(()),
        false => Err("memory can be executed".into()),
    }
}

/// Checks that a process has the user nobody, no privilege, and a filter of system calls.
fn has_nothing(child: Pid) {
    let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap();
    let has = |key: &str, value: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let words: Vec<_> = line.unwrap().split_whitespace().collect();
        assert!(words.iter().all(|word| *word == value), "{key} {words:?}");
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        has(set, "0000000000000000");
    }
    has("Uid:", "65534");
    has("Gid:", "65534");
    has("Groups:", "");
    has("NoNewPrivs:", "1");
    has("Seccomp:", "2");
}

#[test]
fn a_confined_runner_does_all_it_has_to_and_nothing_else() {
    assert!(geteuid().is_root(), "this test needs to run as root");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runner");
    let root = tempfile::tempdir().unwrap();
    let listener = listen(&path).unwrap();
    let (client, other) = Client::pair().unwrap();
    let most = most();
    let child = child(|| {
        let confined = confine(NOBODY, NOBODY, Some(root.path()));
        let failed = confined.map_err(|error| error.to_string())?;
        if !failed.is_empty() {
            return Err(format!("{failed:?}"));
        }
        is_confined(most)?;
        run(other, Some(listener)).map_err(|error| error.to_string())
    });
    // The child has a copy of `client`, so that only another connection can be closed.
    let runner = Runner::new(Client::connect(&path).unwrap());
    drop(client);
    has_nothing(child);

    let session = Session::open();
    let services = ["count", "null"];
    runner.put(1, &services, &session);
    let [forward, back] = [bytes(1, 1 << 20), bytes(2, 1 << 20)];
    (&session.opener).write_all(&forward[..10]).unwrap();
    assert_eq!(read(&session.other, 10), forward[..10]);
    assert_eq!(runner.take(1), [0, 0]);
    std::thread::scope(|scope| {
        scope.spawn(|| send(&session.opener, &forward[10..]));
        scope.spawn(|| send(&session.other, &back));
        let received = scope.spawn(|| read_to_end(&session.other));
        assert!(read_to_end(&session.opener) == back);
        assert!(received.join().unwrap() == forward[10..]);
    });
    assert!(matches!(runner.report(), Report::Ended { session: 1, .. }));

    // A key, and a reset.
    let session = Session::open();
    runner.request_half(2, &["compress", "crypt"], &session.middle, Some(End::Other));
    assert!(matches!(
        runner.report(),
        Report::Put { result: Ok(()), .. }
    ));
    runner.send(Request::Open { session: 2 });
    (&session.opener).write_all(b"1").unwrap();
    read(&session.other, 4 + 2 + 1 + 16);
    let forged = [&[0, 0, 0, 19, 0, 1][..], &[0; 17]].concat();
    (&session.other).write_all(&forged).unwrap();
    assert!(matches!(runner.report(), Report::Ended { session: 2, .. }));
    drop(runner);
    succeeds(child);
}

#[test]
fn an_unprivileged_process_says_what_it_could_not_give_up() {
    assert!(geteuid().is_root(), "this test needs to run as root");
    let most = most();
    succeeds(child(|| {
        let nobody = Uid::from_raw(NOBODY);
        setresuid(nobody, nobody, nobody).map_err(|error| error.to_string())?;
        let confined = confine(NOBODY - 1, NOBODY - 1, None);
        let failed = confined.map_err(|error| error.to_string())?;
        let failed: Vec<_> = failed.iter().map(|step| step.what.as_str()).collect();
        let expected = [
            "empty the bounding set",
            "drop all groups",
            "change the group",
            "change the user",
        ];
        if failed != expected {
            return Err(format!("{failed:?}"));
        }
        is_confined(most)
    }));
}

/// Forbids the call that Landlock begins with, as the filter of a unit may.
fn forbid_landlock(errno: i32) -> Result<(), String> {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    let rules = [(libc::SYS_landlock_create_ruleset, Vec::new())].into();
    let (denied, else_allowed) = (SeccompAction::Errno(errno as u32), SeccompAction::Allow);
    let arch = std::env::consts::ARCH.try_into();
    let filter = arch.and_then(|arch| SeccompFilter::new(rules, else_allowed, denied, arch));
    let program: Result<BpfProgram, _> = filter.and_then(TryInto::try_into);
    let program = program.map_err(|error| error.to_string())?;
    seccompiler::apply_filter(&program).map_err(|error| error.to_string())
}

#[test]
fn a_filter_against_landlock_is_told_apart_from_a_kernel_without_it() {
    assert!(geteuid().is_root(), "this test needs to run as root");
    for (errno, reason) in [
        (libc::EPERM, "a filter forbids the system calls of Landlock"),
        (libc::ENOSYS, "the kernel has no Landlock"),
        (libc::EOPNOTSUPP, "Landlock is disabled at boot"),
    ] {
        succeeds(child(|| {
            forbid_landlock(errno)?;
            let confined = confine(NOBODY, NOBODY, None);
            let failed = confined.map_err(|error| error.to_string())?;
            match failed.as_slice() {
                [step] if step.why.starts_with(reason) => Ok(()),
                _ => Err(format!("{failed:?}")),
            }
        }));
    }
}

#[test]
fn a_process_with_several_threads_is_not_confined() {
    // The test has a thread besides the main one.
    let error = confine(NOBODY, NOBODY, None).unwrap_err().to_string();
    assert!(
        error.starts_with("failed to confine the process: it has"),
        "{error}"
    );
}
