//! Checks of the kernel's permissions for `dyscod`. The checks try each operation that leaves no
//! trace.

use std::fs;
use std::io;

use dysco_agent::{AgentError, Xdp};
use dysco_config::{Attach, Config, Rights};
use dysco_proxy::port::{try_hold, try_repair};

use super::{Finding, Verdict};

/// Examines the kernel, and the rights that it grants to this process.
pub(super) fn examine(config: Option<&Config>) -> Vec<Finding> {
    let release = read("/proc/sys/kernel/osrelease");
    let plane = config.map(|config| &config.data_plane);
    let attach = plane.map(|plane| plane.attach);
    let mut findings = vec![kernel(release.trim(), attach)];
    findings.extend(filters(release.trim(), attach));
    let rights = rights(Rights::own());
    // Without these rights all further checks fail for the same reason.
    let enough = rights.hint.is_empty();
    findings.push(rights);
    if !enough {
        return findings;
    }
    let names = config.iter().flat_map(|config| &config.host.interfaces);
    let names: Vec<_> = names.map(|interface| interface.name.clone()).collect();
    let xdp = plane.map_or(Xdp::Off, |plane| plane.xdp.into());
    findings.push(programs(dysco_agent::try_programs(xdp, &names)));
    if plane.is_none_or(|plane| plane.adopt) {
        findings.push(sockets(dysco_agent::try_sockets()));
    }
    findings.push(receives(dysco_agent::try_receives()));
    findings.push(repair(try_repair()));
    findings.push(ports(try_hold()));
    findings.extend(tracing_of_others(&read(
        "/proc/sys/kernel/yama/ptrace_scope",
    )));
    findings.push(firewall(&read("/proc/sys/net/netfilter/nf_conntrack_max")));
    findings
}

/// Returns the first two numbers of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|n| n.parse::<u32>().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// Returns true if a release has TCX: from Linux 6.6 on.
fn has_tcx(release: &str) -> bool {
    version(release) >= Some((6, 6))
}

/// The cost of a kernel without TCX, where the programs are attached as filters then.
fn filters(release: &str, attach: Option<Attach>) -> Option<Finding> {
    let by_filters = attach.is_none_or(|attach| attach == Attach::Auto);
    (by_filters && !has_tcx(release)).then(|| {
        Finding::doubtful(
            "attach",
            format!(
                "Linux {release} has no TCX: dyscod attaches by tc filters (clsact), and a filter \
                 that another program adds later with preference 1 can keep packets from it"
            ),
            "run Linux 6.6 or later, or see that 'dyscoctl status' names no program that runs \
             first",
        )
    })
}

/// Returns a finding about the kernel's version. The programs require Linux 6.1, and TCX 6.6.
fn kernel(release: &str, attach: Option<Attach>) -> Finding {
    if version(release).is_some_and(|version| version < (6, 1)) {
        let found = format!("Linux {release} is too old");
        return Finding::ill("kernel", found, "run Linux 6.1 or later");
    }
    if attach == Some(Attach::Tcx) && !has_tcx(release) {
        let found = format!("Linux {release} has no TCX, and attach is \"tcx\"");
        return Finding::ill("kernel", found, "set attach = \"auto\" under [data_plane]");
    }
    Finding::well("kernel", format!("Linux {release}"))
}

/// Returns the contents of a file; empty if it cannot be read.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns a finding about the rights of this process.
fn rights(own: Rights) -> Finding {
    match own.missing().as_slice() {
        [] => Finding::well("rights", "all that dyscod needs"),
        missing => {
            let found = format!("this process lacks {}", missing.join(", "));
            let hint = "run it as root, as dyscod does; in a container add these capabilities";
            Finding::ill("rights", found, hint)
        }
    }
}

fn programs(tried: Result<(), AgentError>) -> Finding {
    let about = "programs";
    match tried {
        Ok(()) => Finding::well(about, "the kernel takes the eBPF programs"),
        Err(error) => Finding::of_agent(
            about,
            &error,
            "run a kernel that takes them, as Linux 6.18 does",
        ),
    }
}

/// Returns a finding about the iterator over sockets, which only the adoption of earlier sessions
/// needs.
fn sockets(tried: Result<(), AgentError>) -> Finding {
    let about = "sockets";
    match tried {
        Ok(()) => Finding::well(about, "sessions from before dyscod can be adopted"),
        Err(error) => Finding {
            verdict: Verdict::Doubtful,
            ..Finding::of_agent(about, &error, "set adopt = false under [data_plane]")
        },
    }
}

/// Returns a finding about the program that counts receiving calls. Without it only the shim
/// reports what its proxy splices.
fn receives(tried: Result<(), AgentError>) -> Finding {
    let about = "receives";
    match tried {
        Ok(()) => Finding::well(
            about,
            "the kernel tells whether a spliced session is read otherwise",
        ),
        Err(error) => Finding {
            verdict: Verdict::Doubtful,
            ..Finding::of_agent(
                about,
                &error,
                "run Linux 6.3 or later; until then dyscod cannot check a shim's reports",
            )
        },
    }
}

/// Returns a finding about repair mode, by which a proxy's sockets are closed without a packet.
fn repair(tried: io::Result<()>) -> Finding {
    match tried {
        Ok(()) => Finding::well("repair", "a proxy's sockets can be closed without a packet"),
        Err(error) => Finding::doubtful(
            "repair",
            format!("no proxy of this host can leave: TCP_REPAIR is refused ({error})"),
            "give dyscod CAP_NET_ADMIN in the user namespace that owns this network namespace",
        ),
    }
}

/// The kernel of a proxy's host may use the port of a session again that has lost its proxy.
fn ports(tried: io::Result<()>) -> Finding {
    match tried {
        Ok(()) => Finding::well("held-ports", "ports of proxies that have left can be held"),
        Err(error) => Finding::doubtful(
            "held-ports",
            format!(
                "ports of proxies that have left cannot be held ({error}): the kernel may choose \
                 such a port for a new connection of the proxy, whose SYN is then dropped"
            ),
            "run Linux 6.3 or later; until then the proxy may have to connect again",
        ),
    }
}

/// Returns a finding about Yama's setting (Documentation/admin-guide/LSM/Yama.rst). The value 3
/// forbids all tracing.
fn tracing_of_others(scope: &str) -> Option<Finding> {
    (scope.trim() == "3").then(|| {
        Finding::doubtful(
            "ptrace",
            "no proxy of this host can leave: kernel.yama.ptrace_scope is 3, by which nobody \
             may look at its sockets",
            "set it to 2 or less and boot again: until then it stays",
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

    #[test]
    fn missing_rights_are_named() {
        let of = |hex: &str| rights(Rights::of(&format!("CapEff:\t{hex}\n")));
        assert_eq!(of("000001ffffffffff").verdict, Verdict::Well);
        assert_eq!(of("0").verdict, Verdict::Ill);
        assert!(of("0").found.contains("CAP_NET_ADMIN, CAP_NET_RAW"));
    }

    #[test]
    fn nobody_may_look_at_sockets_with_scope_3_alone() {
        for scope in ["", "0\n", "1\n", "2\n"] {
            assert_eq!(tracing_of_others(scope), None, "{scope:?}");
        }
        assert!(tracing_of_others("3\n").is_some());
    }

    #[test]
    fn tcx_is_asked_of_a_kernel_that_has_it() {
        let of = |release, attach| kernel(release, attach).verdict;
        for release in ["6.6.0", "6.18.44-fc", "7.0", "10.1.2"] {
            assert_eq!(of(release, Some(Attach::Tcx)), Verdict::Well, "{release}");
        }
        for release in ["6.5.13", "6.1.0-57-amd64"] {
            assert_eq!(of(release, Some(Attach::Tcx)), Verdict::Ill, "{release}");
            assert_eq!(of(release, Some(Attach::Auto)), Verdict::Well);
            assert_eq!(of(release, None), Verdict::Well);
        }
    }

    #[test]
    fn a_kernel_before_6_1_is_ill() {
        for release in ["5.15.0-91-generic", "6.0.19", "4.19"] {
            let finding = kernel(release, None);
            assert_eq!(finding.verdict, Verdict::Ill, "{release}");
            assert!(finding.hint.contains("Linux 6.1"), "{finding:?}");
        }
        for release in ["6.1.0-57-amd64", "6.18", "another"] {
            assert_eq!(kernel(release, None).verdict, Verdict::Well, "{release}");
        }
    }

    #[test]
    fn a_kernel_without_tcx_is_reported_with_the_cost() {
        let old = |attach| filters("6.1.0-56-amd64", attach);
        assert_eq!(filters("6.18.44", None), None);
        for attach in [Attach::Tcx, Attach::Clsact] {
            assert_eq!(old(Some(attach)), None, "asked for by name");
        }
        for attach in [None, Some(Attach::Auto)] {
            let reported = old(attach).unwrap();
            assert_eq!(reported.verdict, Verdict::Doubtful);
            assert!(reported.found.contains("no TCX") && reported.found.contains("preference"));
            assert!(reported.hint.contains("Linux 6.6"));
        }
    }

    #[test]
    fn what_matters_to_some_hosts_alone_is_doubtful() {
        let finding = sockets(Err(AgentError::NoSockets("it is not understood".into())));
        assert_eq!(finding.verdict, Verdict::Doubtful);
        assert!(finding.hint.contains("BTF"), "{finding:?}");
        assert!(!finding.found.contains("BTF"), "{finding:?}");
        let finding = repair(Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(finding.verdict, Verdict::Doubtful);
        assert!(finding.found.contains("TCP_REPAIR"), "{finding:?}");
        assert_eq!(ports(try_hold()).verdict, Verdict::Well);
        let finding = ports(Err(io::ErrorKind::Unsupported.into()));
        assert_eq!(finding.verdict, Verdict::Doubtful);
    }
}
