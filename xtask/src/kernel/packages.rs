//! Debian's kernels, as packages, with a separate apt configuration in this folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::arch::Arch;
use crate::shell;

/// Suites with the kernels of other releases.
const SUITES: &[&str] = &[
    "bookworm",
    "bookworm-updates",
    "bookworm-backports",
    "trixie",
    "trixie-updates",
    "trixie-backports",
];
const SECURITY: &[&str] = &["bookworm-security", "trixie-security"];
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Name for the newest kernel of any series.
pub(crate) const NEWEST: &str = "newest";

/// An unpacked kernel.
pub(crate) struct Kernel {
    /// Release of the kernel, as `uname -r` prints it.
    pub release: String,
    /// Folder that contains `/lib/modules`.
    pub root: PathBuf,
    /// Path of the kernel, in the architecture's format for boot loaders.
    pub image: PathBuf,
}

/// Returns the newest kernel of a series, such as 6.1 or [`NEWEST`], for an architecture, unpacked
/// below `folder`.
///
/// # Errors
/// If no suite has such a kernel, or apt fails.
pub(crate) fn fetch(folder: &Path, series: &str, arch: Arch) -> Result<Kernel> {
    let apt = Apt::open(&folder.join(format!("apt-{}", arch.name())), arch)?;
    let release = apt.newest(series)?;
    let root = folder.join(&release);
    let done = root.join("unpacked");
    if !done.exists() {
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).with_context(|| format!("failed to make {}", root.display()))?;
        for package in apt.parts(&release)? {
            apt.unpack(&package, &root)?;
        }
        // Later packages use only one /lib.
        if !root.join("lib").exists() {
            std::os::unix::fs::symlink("usr/lib", root.join("lib"))?;
        }
        shell::run(Command::new("depmod").args([
            "-b".as_ref(),
            root.as_os_str(),
            release.as_ref(),
        ]))?;
        fs::write(&done, "")?;
    }
    let image = [
        root.join(format!("boot/vmlinuz-{release}")),
        root.join(format!("lib/modules/{release}/vmlinuz")),
    ];
    let image = image.into_iter().find(|file| file.exists());
    Ok(Kernel {
        image: image.context("the package has no kernel")?,
        release,
        root,
    })
}

/// apt with separate lists.
struct Apt {
    config: PathBuf,
    archives: PathBuf,
    arch: Arch,
}

impl Apt {
    /// Updates the lists, unless they are from today.
    fn open(dir: &Path, arch: Arch) -> Result<Apt> {
        let archives = dir.join("archives");
        for sub in ["lists/partial", "archives/partial", "etc", "state"] {
            let sub = dir.join(sub);
            fs::create_dir_all(&sub)
                .with_context(|| format!("failed to make {}", sub.display()))?;
        }
        let sources = sources(&own_sources()?)?;
        fs::write(dir.join("etc/sources.list"), sources)?;
        let config = dir.join("apt.conf");
        let at = dir.display();
        fs::write(
            &config,
            format!(
                "Dir::State \"{at}/state\";\nDir::State::lists \"{at}/lists\";\n\
                 Dir::State::status \"/var/lib/dpkg/status\";\n\
                 Dir::Cache \"{at}\";\nDir::Cache::archives \"{at}/archives\";\n\
                 Dir::Etc::SourceList \"{at}/etc/sources.list\";\nDir::Etc::SourceParts \"-\";\n\
                 APT::Architecture \"{arch}\";\nAPT::Architectures {{ \"{arch}\"; }};\n\
                 APT::Sandbox::User \"root\";\nAcquire::Languages \"none\";\n",
                arch = arch.name()
            ),
        )?;
        let apt = Apt {
            config,
            archives,
            arch,
        };
        if !is_fresh(&dir.join("updated")) {
            apt.run("apt-get", &["update", "-qq"])?;
            fs::write(dir.join("updated"), "")?;
        }
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &self.config).env("LC_ALL", "C");
        command
    }

    fn run(&self, program: &str, words: &[&str]) -> Result<()> {
        shell::run(self.command(program).args(words).stdout(std::io::stderr()))
    }

    fn ask(&self, words: &[&str]) -> Result<String> {
        let out = self.command("apt-cache").args(words).output();
        let out = out.context("failed to run apt-cache")?;
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    fn newest(&self, series: &str) -> Result<String> {
        let of = match series {
            NEWEST => String::new(),
            series => series.replace('.', "\\.") + "[.-]",
        };
        let arch = self.arch.name();
        let pattern = format!("^linux-image-{of}.*-{arch}$");
        let names = self.ask(&["search", "--names-only", &pattern])?;
        let newest = names
            .lines()
            .filter_map(|line| line.split_whitespace().next()?.strip_prefix("linux-image-"))
            .filter(|release| is_plain(release))
            .max_by_key(|release| numbers(release));
        let Some(newest) = newest else {
            bail!(
                "Debian has no kernel {series} for {arch}: {ALL} has the ones that it has",
                ALL = SUITES.join(", ")
            );
        };
        Ok(newest.to_owned())
    }

    /// Returns the packages of a kernel. Later kernels consist of three.
    fn parts(&self, release: &str) -> Result<Vec<String>> {
        let image = format!("linux-image-{release}");
        let shown = self.ask(&["show", &image])?;
        let split = format!("linux-binary-{release}");
        Ok(match shown.contains(&split) {
            true => vec![split, format!("linux-modules-{release}")],
            false => vec![image],
        })
    }

    fn unpack(&self, package: &str, root: &Path) -> Result<()> {
        let mut get = self.command("apt-get");
        get.args(["download", "-qq", package])
            .current_dir(&self.archives);
        shell::run(get.stdout(std::io::stderr()))?;
        let prefix = format!("{package}_");
        let files = fs::read_dir(&self.archives)?.flatten().map(|e| e.path());
        let is_it = |file: &PathBuf| {
            file.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        };
        let file = files
            .filter(is_it)
            .max()
            .context("apt-get downloaded nothing")?;
        shell::run(Command::new("dpkg").arg("-x").arg(&file).arg(root))?;
        Ok(fs::remove_file(file)?)
    }
}

fn is_fresh(file: &Path) -> bool {
    let modified = file.metadata().and_then(|m| m.modified()).ok();
    let age = modified.and_then(|at| at.elapsed().ok());
    age.is_some_and(|age| age.as_secs() < 86_400)
}

/// True for an ordinary kernel. Flavours for a purpose, kernels with debug information, and the
/// package that only depends on the newest kernel of its series are excluded.
fn is_plain(release: &str) -> bool {
    let rest = Arch::stripped(release);
    let known = rest
        .chars()
        .all(|c| c.is_ascii_digit() || ".-+~bpodeu".contains(c));
    known && numbers(release).len() > 2
}

/// Returns the numbers of a release, for comparison.
fn numbers(release: &str) -> Vec<u32> {
    let parts = Arch::stripped(release).split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|part| part.parse().ok()).collect()
}

/// Returns the addresses of Debian's archive and of its security archive, according to this
/// machine's sources.
///
/// # Errors
/// If this machine has no source of Debian.
pub(crate) fn own_sources() -> Result<[String; 2]> {
    let files = fs::read_dir("/etc/apt/sources.list.d")
        .into_iter()
        .flatten();
    let files = files.flatten().map(|entry| entry.path());
    let text: String = files
        .chain([PathBuf::from("/etc/apt/sources.list")])
        .filter_map(|file| fs::read_to_string(file).ok())
        .collect();
    let uri = |end: &str| {
        let words = text
            .split_whitespace()
            .map(|word| word.trim_end_matches('/'));
        let mut found = words.filter(|word| word.contains("://") && word.ends_with(end));
        found.next().map(str::to_owned)
    };
    let main = uri("/debian").context("no source of packages here is Debian's")?;
    let security = uri("/debian-security").unwrap_or_else(|| format!("{main}-security"));
    Ok([main, security])
}

fn sources([main, security]: &[String; 2]) -> Result<String> {
    ensure!(
        Path::new(KEYRING).exists(),
        "{KEYRING} is missing: this is no Debian"
    );
    let lines = |uri: &str, suites: &[&str]| -> String {
        let line = |suite: &&str| format!("deb [signed-by={KEYRING}] {uri} {suite} main\n");
        suites.iter().map(line).collect()
    };
    Ok(lines(main, SUITES) + &lines(security, SECURITY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_as_numbers() {
        assert!(numbers("6.1.0-49-amd64") > numbers("6.1.0-9-amd64"));
        assert!(numbers("6.12.9+deb12-amd64") < numbers("6.12.90+deb12.1-amd64"));
        assert_eq!(numbers("6.1.0-57-arm64"), [6, 1, 0, 57]);
    }

    #[test]
    fn flavours_are_no_kernels_of_a_host() {
        assert!(is_plain("6.1.0-49-amd64") && is_plain("6.12.90+deb12.1-amd64"));
        assert!(is_plain("6.12.118+deb13-arm64"));
        assert!(!is_plain("6.12-amd64") && !is_plain("6.12-arm64"));
        for flavour in [
            "6.1.0-49-rt-amd64",
            "6.1.0-49-cloud-amd64",
            "6.1.0-49-amd64-dbg",
            "6.12.118+deb13-rt-arm64",
            "6.12.118+deb13-arm64-16k",
        ] {
            assert!(!is_plain(flavour), "{flavour}");
        }
    }
}
