//! Removes the labs' folders when the process is interrupted, and reaps its children. Everything
//! else of a lab ends with the process.

use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, Once};

use anyhow::{Context, Result};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, killpg, raise, sigaction};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static CHILDREN: Mutex<Vec<Pid>> = Mutex::new(Vec::new());
static BELL: AtomicI32 = AtomicI32::new(-1);
const HEARD: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

extern "C" fn ring(signal: libc::c_int) {
    let byte = signal as u8;
    // SAFETY: write is async-signal-safe; the byte outlives the call.
    unsafe { libc::write(BELL.load(Ordering::Relaxed), (&raw const byte).cast(), 1) };
}

/// Removes `folder` if the process is interrupted before [`forget`].
pub(crate) fn remember(folder: &Path) -> Result<()> {
    static ONCE: Once = Once::new();
    let mut heard = Ok(());
    ONCE.call_once(|| heard = hear());
    heard?;
    lock(&FOLDERS).push(folder.into());
    Ok(())
}

pub(crate) fn forget(folder: &Path) {
    lock(&FOLDERS).retain(|f| f != folder);
}

/// Kills and reaps this child if the process is interrupted before [`forget_child`]. The child
/// would die in any case, but not every init reaps it.
pub(crate) fn remember_child(child: Pid) {
    lock(&CHILDREN).push(child);
}

pub(crate) fn forget_child(child: Pid) {
    lock(&CHILDREN).retain(|c| *c != child);
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Ends what the process has started, as far as it does not end by itself.
fn clean() {
    for child in lock(&CHILDREN).iter() {
        let _ = killpg(*child, Signal::SIGKILL);
        let _ = waitpid(*child, None);
    }
    for folder in lock(&FOLDERS).iter() {
        let _ = std::fs::remove_dir_all(folder);
    }
}

fn hear() -> Result<()> {
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)
        .context("failed to make a pipe for signals")?;
    BELL.store(write.into_raw_fd(), Ordering::Relaxed);
    std::thread::spawn(move || {
        let mut byte = [0];
        while !matches!(nix::unistd::read(&read, &mut byte), Ok(1)) {}
        clean();
        end_by(i32::from(byte[0]));
    });
    let action = SigAction::new(
        SigHandler::Handler(ring),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    for signal in HEARD {
        // SAFETY: the handler only writes to a pipe.
        unsafe { sigaction(signal, &action) }.context("failed to handle a signal")?;
    }
    Ok(())
}

/// Ends the process by the signal itself, as its parent expects.
fn end_by(signal: i32) -> ! {
    if let Ok(signal) = Signal::try_from(signal) {
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: the default disposition runs no code of this process.
        let _ = unsafe { sigaction(signal, &default) };
        let _ = raise(signal);
    }
    std::process::exit(130)
}
