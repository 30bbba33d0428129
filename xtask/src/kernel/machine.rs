//! A boot under qemu.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Found;
use super::arch::Arch;
use super::image::Image;
use super::packages::Kernel;
use super::userland::Userland;

/// Factor by which the guest computes more slowly, and waits longer.
const SLOW: u32 = 10;
/// Time limit. The guest normally powers itself off before.
const LIMIT: Duration = Duration::from_secs(1800);
const MEMORY: &str = "4096";
/// File with the findings of the guest.
const RESULT: &str = "found.json";

/// Boots an image, and returns the findings of its guest. All files of the guest are in a folder
/// with the kernel's name below `folder`.
///
/// # Errors
/// If qemu fails, or the guest left no findings.
pub(super) fn run(
    folder: &Path,
    kernel: &Kernel,
    image: &Image,
    (arch, links): (Arch, bool),
    userland: &Userland,
) -> Result<Found> {
    let out = folder.join(format!("{}.out", kernel.release));
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out).with_context(|| format!("failed to make {}", out.display()))?;
    fs::write(out.join("start"), start(userland, links))?;
    let mut qemu = qemu(&out, image, arch);
    let status = qemu.status().context("failed to run timeout and qemu")?;
    let result = fs::read(out.join(RESULT)).ok();
    let result = result
        .with_context(|| format!("the guest found nothing ({status}): see {}", out.display()))?;
    let found: Found = serde_json::from_slice(&result)?;
    ensure!(
        found.kernel == kernel.release,
        "another kernel was booted: {}",
        found.kernel
    );
    Ok(found)
}

/// Returns the command that boots an image, whose guest writes to the folder `out`.
fn qemu(out: &Path, image: &Image, arch: Arch) -> Command {
    let share = |path: &Path, tag: &str, more: &str| {
        format!(
            "local,path={},mount_tag={tag},security_model=none{more}",
            path.display()
        )
    };
    let mut qemu = Command::new("timeout");
    qemu.arg(LIMIT.as_secs().to_string()).args(arch.qemu());
    // Inside some virtual machines, stock kernels do not boot under KVM.
    qemu.args(["-accel", "tcg,thread=multi,tb-size=512", "-smp", "2"]);
    qemu.args(["-m", MEMORY, "-nographic", "-no-reboot", "-nodefaults"]);
    qemu.args([
        "-serial",
        &format!("file:{}", out.join("console").display()),
    ]);
    qemu.arg("-kernel")
        .arg(&image.kernel)
        .arg("-initrd")
        .arg(&image.initrd);
    qemu.args([
        "-append",
        &format!(
            "{} quiet panic=-1 rdinit=/init net.ifnames=0",
            arch.options()
        ),
    ]);
    qemu.args(["-device", "virtio-rng-pci"]);
    qemu.args([
        "-virtfs",
        &share(Path::new("/"), "host", ",readonly=on,multidevs=remap"),
    ]);
    qemu.args(["-virtfs", &share(out, "out", "")]);
    qemu
}

/// Returns the script that the guest runs first.
fn start(userland: &Userland, links: bool) -> String {
    let mut words = String::new();
    if links {
        words += " --links";
    }
    if let Some(tests) = &userland.tests {
        words += &format!(" --tests {}", tests.display());
    }
    format!(
        "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8\n\
         export DYSCO_BIN_DIR={} DYSCO_SLOW={SLOW}\n\
         ip link set lo up\n\
         mount -t bpf bpf /sys/fs/bpf\n\
         mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null\n\
         mount -t cgroup2 cgroup /sys/fs/cgroup 2>/dev/null\n\
         for what in send receive; do echo 1 > /sys/kernel/tracing/events/tcp/tcp_${{what}}_reset/enable; done\n\
         ulimit -n 1048576; ulimit -l unlimited\n\
         {} guest /mnt/{RESULT}{words} > /mnt/log 2>&1\n\
         dmesg > /mnt/dmesg; cp /sys/kernel/tracing/trace /mnt/resets\n\
         mkdir /mnt/labs; cp --parents /tmp/dysco-*/*/*.log /mnt/labs 2>/dev/null\n\
         sync\n\
         echo o > /proc/sysrq-trigger\n\
         sleep 60\n",
        userland.programs.display(),
        userland.xtask.display(),
    )
}
