//! The system calls that the loop needs.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Calls that are allowed with all arguments.
const CALLS: &[i64] = &[
    // Its sockets, and `dyscod`.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_close,
    // Events.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Time, and keys of hash maps.
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    // Locks, and the end of the process.
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Allows the process, which has one thread, only the calls that are listed here.
pub(super) fn limit() -> Result<(), String> {
    let program = program().map_err(|error| error.to_string())?;
    seccompiler::apply_filter(&program).map_err(|error| error.to_string())
}

fn program() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: Rules = CALLS.iter().map(|call| (*call, Vec::new())).collect();
    // Memory that can be executed would be code of strangers.
    let not_executable = masked(2, libc::PROT_EXEC as u64, 0)?;
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let rule = SeccompRule::new(vec![not_executable.clone()])?;
        rules.insert(call, vec![rule]);
    }
    // Services open TCP connections.
    let stream = masked(1, 0xf, libc::SOCK_STREAM as u64)?;
    let families = [libc::AF_INET, libc::AF_INET6];
    let families = families.map(|family| equal(0, family as u64));
    for family in families {
        let rule = SeccompRule::new(vec![family?, stream.clone()])?;
        rules.entry(libc::SYS_socket).or_default().push(rule);
    }
    let options = [
        (libc::IPPROTO_TCP, libc::TCP_NODELAY),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE),
        (libc::SOL_SOCKET, libc::SO_LINGER),
    ];
    for (level, name) in options {
        let option = vec![equal(1, level as u64)?, equal(2, name as u64)?];
        let rules = rules.entry(libc::SYS_setsockopt).or_default();
        rules.push(SeccompRule::new(option)?);
    }
    // The process may abort itself.
    let itself = equal(0, u64::from(std::process::id()))?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![itself])?]);
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Errno(libc::EPERM as u32),
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?;
    filter.try_into()
}

fn equal(argument: u8, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    let (len, operator) = (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq);
    SeccompCondition::new(argument, len, operator, value)
}

fn masked(
    argument: u8,
    mask: u64,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    let (len, operator) = (SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask));
    SeccompCondition::new(argument, len, operator, value)
}
