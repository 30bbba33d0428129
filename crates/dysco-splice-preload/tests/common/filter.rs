//! A filter of system calls that a program inherits.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// System calls that the kernel refuses.
#[derive(Clone, Copy)]
pub(crate) struct Refused {
    pub number: libc::c_long,
    /// Index of an argument and its least value; others of the calls are permitted.
    pub least: Option<(u32, u32)>,
    /// Index of an argument and its value.
    pub equal: Option<(u32, u32)>,
    pub errno: i32,
}

impl Refused {
    /// All calls of this number.
    pub(crate) fn all(number: libc::c_long, errno: i32) -> Refused {
        Refused {
            number,
            least: None,
            equal: None,
            errno,
        }
    }

    /// Those with this value of an argument.
    pub(crate) fn equal(number: libc::c_long, index: u32, value: i32, errno: i32) -> Refused {
        Refused {
            equal: Some((index, value as u32)),
            ..Refused::all(number, errno)
        }
    }

    /// Those with at least this value of an argument.
    pub(crate) fn least(number: libc::c_long, index: u32, value: i32, errno: i32) -> Refused {
        Refused {
            least: Some((index, value as u32)),
            ..Refused::all(number, errno)
        }
    }

    /// Loads the filter when the program of the command starts.
    pub(crate) fn load_in(self, command: &mut Command) {
        let mut filter = self.filter();
        // SAFETY: the closure makes system calls only, and changes no memory of others.
        unsafe { command.pre_exec(move || load(&mut filter)) };
    }

    fn filter(self) -> Vec<libc::sock_filter> {
        let checks = [
            Some((0, libc::BPF_JEQ, self.number as u32)),
            self.least.map(|(i, v)| (argument(i), libc::BPF_JGE, v)),
            self.equal.map(|(i, v)| (argument(i), libc::BPF_JEQ, v)),
        ];
        let checks: Vec<_> = checks.into_iter().flatten().collect();
        let step = |code: u32, jf: usize, k: u32| libc::sock_filter {
            code: code as u16,
            jt: 0,
            jf: jf as u8,
            k,
        };
        let mut all = Vec::new();
        for (i, (at, test, value)) in checks.iter().enumerate() {
            all.push(step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, *at));
            // Over the other checks and the refusal.
            let rest = 2 * (checks.len() - i - 1) + 1;
            all.push(step(libc::BPF_JMP | test | libc::BPF_K, rest, *value));
        }
        let refusal = libc::SECCOMP_RET_ERRNO | self.errno as u32;
        all.push(step(libc::BPF_RET | libc::BPF_K, 0, refusal));
        all.push(step(
            libc::BPF_RET | libc::BPF_K,
            0,
            libc::SECCOMP_RET_ALLOW,
        ));
        all
    }
}

/// Offset of the low word of an argument in `struct seccomp_data`.
fn argument(index: u32) -> u32 {
    16 + 8 * index + if cfg!(target_endian = "big") { 4 } else { 0 }
}

fn load(filter: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program is a local variable, and its filter outlives the call.
    let r = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program)
    };
    if r == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}
