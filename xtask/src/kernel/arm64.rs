//! `cargo xtask test --arm64`: builds the programs of a host for arm64, boots Debian's kernel for it
//! under qemu, and lets `dyscoctl doctor` load the eBPF programs there.
//!
//! The guest has no more than busybox, the C library and `dyscoctl`. It has no hosts with proxies:
//! those would need a whole file system of that architecture.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::packages::{Arch, Kernel, fetch, unpacked};
use super::{Found, guest, image, print};
use crate::setup::Need;
use crate::{build, setup, shell};

/// Kernel series. The kernels of later ones for arm64 are compressed in a way that qemu 7.2 does not
/// know.
const SERIES: &str = "6.1";
/// Packages of the guest's file system.
const PACKAGES: &[&str] = &["busybox-static", "libc6", "libgcc-s1"];
/// Time limit in seconds. The guest normally powers itself off before.
const LIMIT: &str = "600";

/// First program of the guest.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /run /tmp
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
uname -r
dyscoctl doctor -o json | tr -d '\n'
echo
poweroff -f
"#;

/// Builds for arm64, and loads the programs there.
pub fn test(json: bool) -> Result<()> {
    setup::ensure(Need::Arm64)?;
    let programs = build::for_arm64()?;
    let folder = shell::target()?.join("kernels");
    eprintln!("Linux {SERIES} for arm64: looking for its package");
    let kernel = fetch(&folder, SERIES, Arch::Arm64)?;
    eprintln!("Linux {}: booting it under qemu", kernel.release);
    let initrd = initrd(&folder, &kernel, &programs)?;
    let found = booted(&folder, &kernel, &initrd)?;
    match json {
        true => println!("{}", serde_json::to_string(&found)?),
        false => print(&found),
    }
    ensure!(found.is_well(), "it does not work on {}", found.kernel);
    Ok(())
}

/// Makes the guest's file system.
fn initrd(folder: &Path, kernel: &Kernel, programs: &Path) -> Result<PathBuf> {
    let root = folder.join(format!("{}.root", kernel.release));
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(root.join("usr/bin"))
        .with_context(|| format!("failed to make {}", root.display()))?;
    // The packages of later releases have all files below /usr.
    for dir in ["bin", "lib"] {
        symlink(Path::new("usr").join(dir), root.join(dir)).context("failed to make a link")?;
    }
    for package in PACKAGES {
        unpacked(folder, Arch::Arm64, package, &root)?;
    }
    fs::copy(programs.join("dyscoctl"), root.join("usr/bin/dyscoctl"))
        .context("failed to copy dyscoctl")?;
    let init = root.join("init");
    fs::write(&init, INIT)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    let initrd = folder.join(format!("{}.cpio", kernel.release));
    image::archive(&root, &initrd)?;
    fs::remove_dir_all(&root)?;
    Ok(initrd)
}

/// Boots the guest, and reads what it has said.
fn booted(folder: &Path, kernel: &Kernel, initrd: &Path) -> Result<Found> {
    let console = folder.join(format!("{}.console", kernel.release));
    let mut qemu = Command::new("timeout");
    qemu.args([LIMIT, "qemu-system-aarch64", "-M", "virt", "-cpu", "max"]);
    qemu.args(["-smp", "2", "-m", "2048", "-nographic", "-no-reboot"]);
    qemu.args(["-nodefaults", "-serial"])
        .arg(format!("file:{}", console.display()));
    qemu.arg("-kernel").arg(&kernel.image);
    qemu.arg("-initrd").arg(initrd);
    qemu.args(["-append", "console=ttyAMA0 quiet panic=-1 rdinit=/init"]);
    let status = qemu.status().context("failed to run qemu-system-aarch64")?;
    let said = fs::read(&console)
        .with_context(|| format!("the guest said nothing ({status}): {}", console.display()))?;
    let said = String::from_utf8_lossy(&said);
    let report = said.lines().find(|line| line.starts_with('{'));
    let report = report
        .with_context(|| format!("doctor said nothing ({status}): see {}", console.display()))?;
    let report: Value = serde_json::from_str(report.trim()).context("doctor printed no JSON")?;
    let mut found = Found {
        kernel: kernel.release.clone(),
        ..Found::default()
    };
    guest::take_findings(&report, &mut found);
    Ok(found)
}
