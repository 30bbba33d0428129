//! `cargo xtask setup`: installs the programs that a fresh Debian lacks. It lists them, and asks
//! the package manager once. It takes milliseconds if nothing is missing. Each command installs
//! only the programs that it needs.

use std::fs::OpenOptions;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::shell;
use crates::{BPF_LINKER, CRATES, Crate, LIBRARIES};
use packages::install_packages;
use toolchain::Part;

mod crates;
mod packages;
mod toolchain;

/// Rust's name of Linux on 64 bits of Arm, with the GNU C library.
pub(crate) const ARM64: &str = "aarch64-unknown-linux-gnu";
/// Program that links for it.
pub(crate) const ARM64_LINKER: &str = "aarch64-linux-gnu-gcc";

/// Install the programs that the other commands need.
#[derive(Args)]
pub(crate) struct Setup {}

impl Setup {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<()> {
        ensure(Need::Tests)?;
        println!("all that is needed is installed");
        Ok(())
    }
}

/// Purpose for which a command needs programs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Need {
    /// To build.
    Build,
    /// To run the demos.
    Demo,
    /// To run hosts with proxies and traffic of each kind.
    Hosts,
    /// To run the tests.
    Tests,
    /// To make images of other kernels.
    Images,
    /// To boot them with this machine's files.
    Kernels,
    /// To join hosts by each kind of link there.
    Links,
    /// To make packages.
    Packages,
    /// To build the programs of packages for other machines.
    ReleasePackages,
    /// To install packages in a Debian of their own, and to check them.
    PackageChecks,
    /// To build for arm64, and to boot kernels for it.
    Arm64,
}

impl Need {
    /// Returns true if programs for `first` are needed: each need includes those before it, but
    /// packages need only the programs of the build, and their checks need the hosts of a demo. The
    /// hosts of a guest for arm64 have programs of their own.
    fn includes(self, first: Need) -> bool {
        match self {
            Need::Packages | Need::ReleasePackages => first == Need::Build || first == self,
            Need::PackageChecks => matches!(
                first,
                Need::Build | Need::Demo | Need::Packages | Need::PackageChecks
            ),
            Need::Arm64 => matches!(first, Need::Build | Need::Images | Need::Arm64),
            _ => first <= self,
        }
    }
}

/// Programs, each with its Debian package, and the first need that requires it.
const PROGRAMS: &[(&str, &str, Need)] = &[
    ("c++", "build-essential", Need::Build),
    ("protoc", "protobuf-compiler", Need::Build),
    ("ip", "iproute2", Need::Demo),
    ("ethtool", "ethtool", Need::Demo),
    ("nft", "nftables", Need::Demo),
    ("haproxy", "haproxy", Need::Demo),
    ("iptables", "iptables", Need::Hosts),
    ("conntrack", "conntrack", Need::Hosts),
    ("tcpdump", "tcpdump", Need::Demo),
    ("nginx", "nginx-light", Need::Demo),
    ("curl", "curl", Need::Hosts),
    ("socat", "socat", Need::Hosts),
    ("psql", "postgresql-client", Need::Hosts),
    ("pg_ctlcluster", "postgresql", Need::Hosts),
    ("ssh", "openssh-client", Need::Hosts),
    ("sshd", "openssh-server", Need::Hosts),
    ("go", "golang-go", Need::Hosts),
    ("wrk", "wrk", Need::Hosts),
    ("iperf3", "iperf3", Need::Hosts),
    ("bpftool", "bpftool", Need::Hosts),
    ("jq", "jq", Need::Hosts),
    ("prometheus", "prometheus", Need::Hosts),
    ("tmux", "tmux", Need::Hosts),
    ("etcd", "etcd-server", Need::Hosts),
    ("etcdctl", "etcd-client", Need::Hosts),
    ("podman", "podman", Need::Hosts),
    ("runc", "runc", Need::Hosts),
    ("qemu-system-x86_64", "qemu-system-x86", Need::Kernels),
    ("busybox", "busybox-static", Need::Kernels),
    ("cpio", "cpio", Need::Images),
    ("depmod", "kmod", Need::Images),
    ("xz", "xz-utils", Need::Images),
    ("zstd", "zstd", Need::Images),
    ("wg", "wireguard-tools", Need::Links),
    ("ipvsadm", "ipvsadm", Need::Links),
    ("strip", "binutils", Need::Packages),
    ("dh", "debhelper", Need::Packages),
    ("rpmbuild", "rpm", Need::Packages),
    ("mmdebstrap", "mmdebstrap", Need::PackageChecks),
    ("systemd-analyze", "systemd", Need::PackageChecks),
    ("podman", "podman", Need::PackageChecks),
    ("runc", "runc", Need::PackageChecks),
    (ARM64_LINKER, "gcc-aarch64-linux-gnu", Need::Arm64),
    ("qemu-system-aarch64", "qemu-system-arm", Need::Arm64),
    ("mmdebstrap", "mmdebstrap", Need::Arm64),
];

/// Files other than programs, each with its Debian package, and the first need that requires it.
const FILES: &[(&str, &str, Need)] = &[
    // protoc reads it for the messages of etcd.
    (
        "/usr/include/google/protobuf/descriptor.proto",
        "libprotobuf-dev",
        Need::Build,
    ),
    (
        "/usr/lib/nginx/modules/ngx_stream_module.so",
        "libnginx-mod-stream",
        Need::Hosts,
    ),
    ("/usr/lib/podman/netavark", "netavark", Need::Hosts),
    (
        "/usr/aarch64-linux-gnu/include/stdio.h",
        "libc6-dev-arm64-cross",
        Need::Arm64,
    ),
];

/// Programs and libraries that are missing here.
struct Missing {
    packages: Vec<&'static str>,
    crates: Vec<&'static Crate>,
    parts: Vec<&'static Part>,
}

/// Installs the missing programs for a command.
pub(crate) fn ensure(need: Need) -> Result<()> {
    if Missing::find(need).is_nothing() {
        return Ok(());
    }
    dysco_netns::require_root().context("some programs must be installed first")?;
    // Two commands at the same time install only once: the second finds everything done.
    let path = std::env::temp_dir().join("dysco-setup.lock");
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let lock = lock.with_context(|| format!("failed to open {}", path.display()))?;
    lock.lock()
        .with_context(|| format!("failed to lock {}", path.display()))?;
    Missing::find(need).install(need)
}

/// Returns the packages of the programs that this need is the first to require.
pub(crate) fn packages_from(need: Need) -> impl Iterator<Item = &'static str> {
    let first = PROGRAMS.iter().filter(move |(.., first)| *first == need);
    first.map(|(_, package, _)| *package)
}

/// Programs of a need that are missing here.
fn absent_programs(
    need: Need,
) -> impl Iterator<Item = &'static (&'static str, &'static str, Need)> {
    let absent = |program: &str| shell::find(program).is_none();
    PROGRAMS
        .iter()
        .filter(move |(program, _, first)| required(need, *first) && absent(program))
}

impl Missing {
    fn find(need: Need) -> Missing {
        let crates: Vec<_> = CRATES
            .iter()
            .filter(|c| required(need, c.need) && !c.is_there())
            .copied()
            .collect();
        let absent_programs = absent_programs(need);
        let mut packages: Vec<_> = absent_programs.map(|(_, package, _)| *package).collect();
        let absent = |files: &[(&'static str, &'static str)]| -> Vec<_> {
            let absent = files.iter().filter(|(file, _)| !Path::new(file).exists());
            absent.map(|(_, package)| *package).collect()
        };
        let files = FILES.iter().filter(|(.., first)| required(need, *first));
        let files: Vec<_> = files.map(|(file, package, _)| (*file, *package)).collect();
        packages.extend(absent(&files));
        if crates.iter().any(|c| c.name == BPF_LINKER.name) {
            packages.extend(absent(LIBRARIES));
        }
        Missing {
            packages,
            crates,
            parts: match builds(need) {
                true => toolchain::absent(need),
                false => Vec::new(),
            },
        }
    }

    fn is_nothing(&self) -> bool {
        self.packages.is_empty() && self.crates.is_empty() && self.parts.is_empty()
    }

    fn install(&self, need: Need) -> Result<()> {
        if !self.packages.is_empty() {
            install_packages(&self.packages)?;
            let still: Vec<_> = absent_programs(need).map(|(program, ..)| program).collect();
            ensure!(
                still.is_empty(),
                "still missing after the installation: {still:?}"
            );
        }
        self.parts.iter().try_for_each(|part| part.install())?;
        self.crates.iter().try_for_each(|c| c.install())
    }
}

/// Returns true if a command needs programs for `first`. Without a build, those of the build are not
/// needed.
fn required(need: Need, first: Need) -> bool {
    need.includes(first) && (builds(need) || first > Need::Build)
}

/// Returns true if a command builds programs: the build and the tests always do, and the others do
/// unless `DYSCO_BIN_DIR` names built programs.
fn builds(need: Need) -> bool {
    matches!(
        need,
        Need::Build
            | Need::Tests
            | Need::Packages
            | Need::ReleasePackages
            | Need::PackageChecks
            | Need::Arm64
    ) || std::env::var_os("DYSCO_BIN_DIR").is_none()
}

#[cfg(test)]
mod tests {
    use super::crates::NEXTEST;
    use super::*;

    #[test]
    fn a_demo_needs_no_tests() {
        let of = |need: Need| {
            let all = PROGRAMS
                .iter()
                .filter(move |(.., first)| need.includes(*first));
            all.map(|(program, ..)| *program).collect::<Vec<_>>()
        };
        assert_eq!(of(Need::Build), ["c++", "protoc"]);
        assert_eq!(
            of(Need::Demo),
            [
                "c++", "protoc", "ip", "ethtool", "nft", "haproxy", "tcpdump", "nginx"
            ]
        );
        assert!(of(Need::Kernels).contains(&"curl"));
        assert!(!of(Need::Kernels).contains(&"mmdebstrap"));
        assert_eq!(
            of(Need::Packages),
            ["c++", "protoc", "strip", "dh", "rpmbuild"]
        );
        assert!(of(Need::PackageChecks).contains(&"dh"));
        assert!(!of(Need::PackageChecks).contains(&"curl"));
        assert!(!of(Need::Tests).contains(&"qemu-system-x86_64"));
        assert_eq!(
            of(Need::Arm64),
            [
                "c++",
                "protoc",
                "cpio",
                "depmod",
                "xz",
                "zstd",
                ARM64_LINKER,
                "qemu-system-aarch64",
                "mmdebstrap"
            ]
        );
        assert!(of(Need::Kernels).contains(&"cpio"));
        for need in [Need::Tests, Need::Links, Need::PackageChecks] {
            assert!(!of(need).contains(&ARM64_LINKER), "{need:?}");
        }
        assert!(BPF_LINKER.need <= Need::Demo && NEXTEST.need > Need::Demo);
    }
}
