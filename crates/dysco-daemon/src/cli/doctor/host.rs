//! What the kernel lets `dyscod` do here: tried, where trying leaves nothing behind.

use std::fs;
use std::io;

use dysco_agent::AgentError;

use super::Finding;
use crate::cli::exit::parts;
use crate::proxy::port::try_repair;

/// Those that a `dyscod` needs (linux/capability.h).
const CAPABILITIES: [(u32, &str); 5] = [
    (12, "CAP_NET_ADMIN"),
    (13, "CAP_NET_RAW"),
    (19, "CAP_SYS_PTRACE"),
    (38, "CAP_PERFMON"),
    (39, "CAP_BPF"),
];
/// Includes CAP_PERFMON and CAP_BPF.
const CAP_SYS_ADMIN: u32 = 21;
const INCLUDED: [u32; 2] = [38, 39];
/// So much of what the verifier says: its last words tell why.
const LAST_WORDS: usize = 300;

/// Looks at the kernel, and at what it grants this process.
pub fn examine() -> Vec<Finding> {
    let release = read("/proc/sys/kernel/osrelease");
    let mut findings = vec![Finding::well("kernel", format!("Linux {}", release.trim()))];
    let rights = rights(&read("/proc/self/status"));
    // Without them all else fails for that reason.
    let root = rights.mend.is_empty();
    findings.push(rights);
    if !root {
        return findings;
    }
    findings.push(programs(dysco_agent::try_programs()));
    findings.push(sockets(dysco_agent::try_sockets()));
    findings.push(repair(try_repair()));
    findings.extend(tracing_of_others(&read(
        "/proc/sys/kernel/yama/ptrace_scope",
    )));
    findings.push(firewall(&read("/proc/sys/net/netfilter/nf_conntrack_max")));
    findings
}

/// Empty where there is no such file.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// What this process may, by its `/proc/PID/status`.
fn rights(status: &str) -> Finding {
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let effective = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    let effective = effective.unwrap_or_default();
    let has = |bit: u32| effective >> bit & 1 == 1;
    let granted = |bit| has(bit) || INCLUDED.contains(&bit) && has(CAP_SYS_ADMIN);
    let missing: Vec<_> = CAPABILITIES.iter().filter(|(b, _)| !granted(*b)).collect();
    match missing.as_slice() {
        [] => Finding::well("rights", "all that dyscod needs"),
        missing => {
            let names: Vec<_> = missing.iter().map(|(_, name)| *name).collect();
            let found = format!("this process lacks {}", names.join(", "));
            let mend = "run it as root, as dyscod does; in a container add these capabilities";
            Finding::ill("rights", found, mend)
        }
    }
}

fn programs(tried: Result<(), AgentError>) -> Finding {
    match tried {
        Ok(()) => Finding::well("programs", "the kernel takes the eBPF programs"),
        Err(error) => of_agent("programs", &error, "use a kernel that does: see the README"),
    }
}

/// Sessions from before the start need it, and nothing else.
fn sockets(tried: Result<(), AgentError>) -> Finding {
    match tried {
        Ok(()) => Finding::well(
            "sockets",
            "sessions that are there before dyscod can be adopted",
        ),
        Err(error) => {
            let Finding { found, mend, .. } = of_agent("sockets", &error, "");
            Finding::doubtful("sockets", found, mend)
        }
    }
}

fn of_agent(about: &'static str, error: &AgentError, mend: &str) -> Finding {
    let text = error.to_string();
    let [what, why, own] = parts(&text);
    let found = match what {
        "" => why.to_owned(),
        what => format!("{what}: {}", last_words(why)),
    };
    Finding::ill(about, found, if own.is_empty() { mend } else { own })
}

/// The end of a long text, from a word on.
fn last_words(text: &str) -> &str {
    let begin = text.len().saturating_sub(LAST_WORDS);
    let words = text
        .char_indices()
        .map(|(at, _)| at)
        .find(|at| *at >= begin);
    text.get(words.unwrap_or(0)..).unwrap_or(text).trim()
}

/// A proxy's sockets are closed without a packet by it.
fn repair(tried: io::Result<()>) -> Finding {
    match tried {
        Ok(()) => Finding::well("repair", "a proxy's sockets can be closed without a packet"),
        Err(error) => Finding::ill(
            "repair",
            format!("TCP_REPAIR does not work: {error}"),
            "use a kernel with CONFIG_CHECKPOINT_RESTORE: no proxy of this host can leave else",
        ),
    }
}

/// Yama's setting (Documentation/admin-guide/LSM/Yama.rst): with 3 nobody may.
fn tracing_of_others(scope: &str) -> Option<Finding> {
    (scope.trim() == "3").then(|| {
        Finding::ill(
            "ptrace",
            "kernel.yama.ptrace_scope is 3: a proxy's sockets cannot be looked at",
            "set it to 2 or less and boot again: this one cannot be taken back",
        )
    })
}

fn firewall(most: &str) -> Finding {
    match most.trim() {
        "" => Finding::well(
            "firewall",
            "there is no connection tracking, so no state of it to move",
        ),
        most => Finding::well("firewall", format!("tracks {most} connections at most")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::Verdict;

    #[test]
    fn rights_are_read_from_the_status() {
        let of = |hex: &str| rights(&format!("Name:\tx\nCapEff:\t{hex}\n"));
        assert_eq!(of("000001ffffffffff").verdict, Verdict::Well);
        let all_but_bpf = 0x0000_01ff_ffff_ffff_u64 & !(1 << 39);
        // CAP_SYS_ADMIN includes it.
        assert_eq!(of(&format!("{all_but_bpf:016x}")).verdict, Verdict::Well);
        let without = of(&format!("{:016x}", all_but_bpf & !(1 << CAP_SYS_ADMIN)));
        assert_eq!(without.verdict, Verdict::Ill);
        assert_eq!(without.found, "this process lacks CAP_BPF");
        assert!(of("0").found.contains("CAP_NET_ADMIN, CAP_NET_RAW"));
        assert_eq!(rights("").verdict, Verdict::Ill);
    }

    #[test]
    fn nobody_may_look_at_sockets_with_scope_3_alone() {
        for scope in ["", "0\n", "1\n", "2\n"] {
            assert_eq!(tracing_of_others(scope), None, "{scope:?}");
        }
        assert!(tracing_of_others("3\n").is_some());
    }

    #[test]
    fn a_long_text_ends_as_it_did() {
        let text = format!("{} R1 is no pointer", "ä".repeat(1000));
        let told = last_words(&text);
        assert!(told.ends_with("R1 is no pointer") && told.len() <= LAST_WORDS);
        assert_eq!(last_words(" short "), "short");
    }

    #[test]
    fn what_the_kernel_refuses_is_told_with_a_mend() {
        let error = || AgentError::NoSockets("it does not know tcp_sock".into());
        let finding = sockets(Err(error()));
        assert_eq!(finding.verdict, Verdict::Doubtful);
        assert!(finding.mend.contains("adopt = false"), "{finding:?}");
        let finding = programs(Err(AgentError::Missing("dysco_ingress")));
        assert_eq!(finding.verdict, Verdict::Ill);
        assert!(!finding.mend.is_empty(), "{finding:?}");
        let finding = repair(Err(io::ErrorKind::PermissionDenied.into()));
        assert!(finding.found.contains("TCP_REPAIR"), "{finding:?}");
    }
}
