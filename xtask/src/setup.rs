//! `cargo xtask setup`: installs the programs that a fresh Debian lacks. It lists them, and asks
//! the package manager once. It takes milliseconds if nothing is missing. Each command installs by
//! itself what it needs, and no more.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::shell;
use packages::{install_packages, to_stderr};

mod packages;

/// Install the programs that the other commands need.
#[derive(Args)]
pub struct Setup {}

impl Setup {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        ensure(Need::Tests)?;
        println!("all that is needed is installed");
        Ok(())
    }
}

/// Purpose for which a command needs programs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Need {
    /// To build.
    Build,
    /// To run the demos.
    Demo,
    /// To run hosts with proxies and traffic of each kind.
    Hosts,
    /// To run the tests.
    Tests,
    /// To boot other kernels.
    Kernels,
    /// To join hosts by each kind of link there.
    Links,
    /// To make packages.
    Packages,
    /// To build what is in packages that others install.
    ReleasePackages,
    /// To install packages in a Debian of their own, and to check them.
    PackageChecks,
}

impl Need {
    /// Returns true if programs for `first` are needed: each need includes those before it, but
    /// packages need only the programs of the build, and their checks need the hosts of a demo.
    fn includes(self, first: Need) -> bool {
        match self {
            Need::Packages | Need::ReleasePackages => first == Need::Build || first == self,
            Need::PackageChecks => matches!(
                first,
                Need::Build | Need::Demo | Need::Packages | Need::PackageChecks
            ),
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
    ("nginx", "nginx-light", Need::Hosts),
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
    ("qemu-system-x86_64", "qemu-system-x86", Need::Kernels),
    ("busybox", "busybox-static", Need::Kernels),
    ("cpio", "cpio", Need::Kernels),
    ("depmod", "kmod", Need::Kernels),
    ("xz", "xz-utils", Need::Kernels),
    ("zstd", "zstd", Need::Kernels),
    ("wg", "wireguard-tools", Need::Links),
    ("strip", "binutils", Need::Packages),
    ("dh", "debhelper", Need::Packages),
    ("rpmbuild", "rpm", Need::Packages),
    ("mmdebstrap", "mmdebstrap", Need::PackageChecks),
    ("systemd-analyze", "systemd", Need::PackageChecks),
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
];

const LLVM: &str = "/usr/lib/llvm-22";
/// Libraries from which bpf-linker is built.
const LIBRARIES: &[(&str, &str)] = &[
    ("/usr/lib/llvm-22/bin/llvm-config", "llvm-22-dev"),
    ("/usr/include/zlib.h", "zlib1g-dev"),
    ("/usr/include/zstd.h", "libzstd-dev"),
];

/// A program that cargo installs, at this version or a later one.
struct Crate {
    name: &'static str,
    version: [u32; 3],
    options: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    need: Need,
}

const BPF_LINKER: Crate = Crate {
    name: "bpf-linker",
    version: [0, 13, 0],
    options: &["--no-default-features", "--features", "llvm-22"],
    env: &[
        ("LLVM_PREFIX", LLVM),
        // LLVM does the work, and is already built.
        ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
        ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ],
    need: Need::Build,
};

/// Environment for programs that need not be fast: it halves their build time.
const QUICK_BUILD: &[(&str, &str)] = &[
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
];

const NEXTEST: Crate = Crate {
    name: "cargo-nextest",
    version: [0, 9, 151],
    options: &["--no-default-features", "--features", "default-no-update"],
    env: QUICK_BUILD,
    need: Need::Tests,
};

const AUDITABLE: Crate = Crate {
    name: "cargo-auditable",
    version: [0, 7, 7],
    options: &[],
    env: QUICK_BUILD,
    need: Need::ReleasePackages,
};

const CRATES: &[&Crate] = &[&BPF_LINKER, &NEXTEST, &AUDITABLE];

/// Programs and libraries that are missing here.
struct Missing {
    packages: Vec<&'static str>,
    crates: Vec<&'static Crate>,
    rust_src: bool,
}

/// Installs the missing programs for a command.
pub fn ensure(need: Need) -> Result<()> {
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

/// Programs of a need that are missing here.
fn absent_programs(
    need: Need,
) -> impl Iterator<Item = &'static (&'static str, &'static str, Need)> {
    let absent = |program: &str| shell::find(program).is_none();
    PROGRAMS
        .iter()
        .filter(move |(program, _, first)| need.includes(*first) && absent(program))
}

impl Missing {
    fn find(need: Need) -> Missing {
        let crates: Vec<_> = CRATES
            .iter()
            .filter(|c| need.includes(c.need) && (builds(need) || c.need > Need::Build))
            .filter(|c| !c.is_there())
            .copied()
            .collect();
        let absent_programs = absent_programs(need);
        let mut packages: Vec<_> = absent_programs.map(|(_, package, _)| *package).collect();
        let absent = |files: &[(&'static str, &'static str)]| -> Vec<_> {
            let absent = files.iter().filter(|(file, _)| !Path::new(file).exists());
            absent.map(|(_, package)| *package).collect()
        };
        let files = FILES.iter().filter(|(.., first)| need.includes(*first));
        let files: Vec<_> = files.map(|(file, package, _)| (*file, *package)).collect();
        packages.extend(absent(&files));
        if crates.iter().any(|c| c.name == BPF_LINKER.name) {
            packages.extend(absent(LIBRARIES));
        }
        Missing {
            packages,
            crates,
            rust_src: builds(need) && !has_rust_src(),
        }
    }

    fn is_nothing(&self) -> bool {
        self.packages.is_empty() && self.crates.is_empty() && !self.rust_src
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
        if self.rust_src {
            eprintln!("missing: the component rust-src; asking rustup");
            shell::run(to_stderr(Command::new("rustup").args([
                "component",
                "add",
                "rust-src",
            ])))
            .context("failed to add rust-src, which the eBPF programs are built with")?;
        }
        self.crates.iter().try_for_each(|c| c.install())
    }
}

impl Crate {
    fn is_there(&self) -> bool {
        let Some(program) = shell::find(self.name) else {
            return false;
        };
        let Ok(said) = Command::new(program).arg("--version").output() else {
            return false;
        };
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let reported = said.split_whitespace().nth(1).and_then(version);
        let known = reported.or_else(|| self.installed());
        known.is_some_and(|v| v >= self.version)
    }

    /// Version that cargo has installed. It is used for a program that does not report its version.
    fn installed(&self) -> Option<[u32; 3]> {
        let list = shell::cargo().args(["install", "--list"]).output().ok()?;
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        let prefix = format!("{} v", self.name);
        let found = list.lines().find_map(|line| line.strip_prefix(&prefix))?;
        version(found.trim_end_matches(':'))
    }

    fn install(&self) -> Result<()> {
        let [a, b, c] = self.version;
        let exact = format!("{a}.{b}.{c}");
        eprintln!(
            "missing: {} {exact}; cargo builds it, which takes minutes",
            self.name
        );
        let mut cargo = shell::cargo();
        cargo
            .args(["install", "--locked", "--version", &exact, self.name])
            .args(self.options);
        // The program is built outside this repository's target folder, so that cargo clean does
        // not cause a new build.
        cargo
            .env_remove("CARGO_TARGET_DIR")
            .envs(self.env.iter().copied());
        shell::run(to_stderr(&mut cargo))
            .with_context(|| format!("failed to install {}", self.name))
    }
}

fn version(text: &str) -> Option<[u32; 3]> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    Some([parts.next()??, parts.next()??, parts.next()??])
}

/// Returns true if a command builds programs: the build and the tests always do, and the others do
/// unless `DYSCO_BIN_DIR` names built programs.
fn builds(need: Need) -> bool {
    matches!(
        need,
        Need::Build | Need::Tests | Need::Packages | Need::ReleasePackages | Need::PackageChecks
    ) || std::env::var_os("DYSCO_BIN_DIR").is_none()
}

/// True if the toolchain has the source of its library.
fn has_rust_src() -> bool {
    let source = Path::new("lib/rustlib/src/rust/library/Cargo.lock");
    // Cargo names its own path, which makes a call of rustc unnecessary.
    let own = std::env::var_os("CARGO").map(PathBuf::from);
    if let Some(toolchain) = own.iter().flat_map(|cargo| cargo.ancestors().nth(2)).next() {
        return toolchain.join(source).exists();
    }
    let asked = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = asked.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    sysroot.is_ok_and(|sysroot| Path::new(&sysroot).join(source).exists())
}

#[cfg(test)]
mod tests {
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
                "c++", "protoc", "ip", "ethtool", "nft", "haproxy", "tcpdump"
            ]
        );
        assert!(of(Need::Kernels).contains(&"nginx"));
        assert!(!of(Need::Kernels).contains(&"mmdebstrap"));
        assert_eq!(
            of(Need::Packages),
            ["c++", "protoc", "strip", "dh", "rpmbuild"]
        );
        assert!(of(Need::PackageChecks).contains(&"dh"));
        assert!(!of(Need::PackageChecks).contains(&"nginx"));
        assert!(!of(Need::Tests).contains(&"qemu-system-x86_64"));
        assert!(BPF_LINKER.need <= Need::Demo && NEXTEST.need > Need::Demo);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(version("0.9.151"), Some([0, 9, 151]));
        assert!(version("0.10.0") > version("0.9.151"));
        assert_eq!(version("nightly"), None);
    }
}
