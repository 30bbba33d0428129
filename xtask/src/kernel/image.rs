//! Images for qemu: the kernel without its slow decompression, and an initial file system that
//! mounts this machine's.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::arch::Arch;
use super::packages::Kernel;
use super::userland::Userland;
use crate::shell;

/// A kernel and its initial file system.
pub(super) struct Image {
    /// For amd64 an ELF file, which qemu starts by its PVH entry; for arm64 an `Image`.
    pub kernel: PathBuf,
    /// Archive in cpio format.
    pub initrd: PathBuf,
}

/// Modules that the initial file system needs to mount the next one.
const MODULES: &[&str] = &["virtio_pci", "9pnet_virtio", "9p", "overlay"];

/// First program of the guest. It makes a file system of this machine its root, with the modules of
/// the guest's kernel, and starts the host's script for it.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /new /lower /upper
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
for module in $(cat /modules/order); do insmod /modules/$module || echo "insmod $module failed"; done
options=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o $options,cache=loose,ro host /lower || poweroff -f
mount -t tmpfs -o size=80%,mode=755 upper /upper && mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower$(cat /modules/root),upperdir=/upper/files,workdir=/upper/work root /new || poweroff -f
mkdir -p /new/usr/lib/modules; mount -t tmpfs modules /new/usr/lib/modules
mkdir /new/usr/lib/modules/$(uname -r)
mount --bind /lower$(cat /modules/folder) /new/usr/lib/modules/$(uname -r)
for dir in $(cat /modules/added); do mkdir -p /new$dir; mount --bind /lower$dir /new$dir; done
mount --move /dev /new/dev; mount --move /proc /new/proc; mount --move /sys /new/sys
for dir in run tmp dev/shm; do mkdir -p /new/$dir; mount -t tmpfs $dir /new/$dir; done
mkdir -p /new/dev/pts /new/mnt; mount -t devpts pts /new/dev/pts
mount -t 9p -o $options out /new/mnt
exec switch_root /new /bin/sh /mnt/start
"#;

/// Makes the parts of the image that do not exist yet.
///
/// # Errors
/// If the package has an unknown form, or a program fails.
pub(super) fn make(
    folder: &Path,
    kernel: &Kernel,
    arch: Arch,
    userland: &Userland,
) -> Result<Image> {
    let of = |end: &str| folder.join(format!("{}.{end}", kernel.release));
    let image = Image {
        kernel: match arch {
            Arch::Amd64 => elf_file(kernel, of("elf"))?,
            Arch::Arm64 => uncompressed(&kernel.image)?,
        },
        initrd: of("cpio"),
    };
    let dir = of("initrd");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(dir.join("bin"))?;
    fs::create_dir_all(dir.join("modules"))?;
    fs::copy(&userland.busybox, dir.join("bin/busybox")).context("failed to copy busybox")?;
    let to = dir.join("modules");
    modules(kernel, &to)?;
    fs::write(to.join("root"), userland.root.display().to_string())?;
    let added = userland.added().unwrap_or(Path::new(""));
    fs::write(to.join("added"), added.display().to_string())?;
    let init = dir.join("init");
    fs::write(&init, INIT)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    archive(&dir, &image.initrd)?;
    fs::remove_dir_all(&dir)?;
    Ok(image)
}

/// Writes the ELF kernel of a bzImage to `elf`, unless it is there. Returns the path.
fn elf_file(kernel: &Kernel, elf: PathBuf) -> Result<PathBuf> {
    if !elf.exists() {
        fs::write(&elf, self::elf(&kernel.image)?)
            .with_context(|| format!("failed to write {}", elf.display()))?;
    }
    Ok(elf)
}

/// Returns the path of a kernel for arm64 if it is an `Image`, which qemu boots as it is
/// (Documentation/arch/arm64/booting.rst: `magic`).
fn uncompressed(kernel: &Path) -> Result<PathBuf> {
    let all = fs::read(kernel).with_context(|| format!("failed to read {}", kernel.display()))?;
    ensure!(
        is_image(&all),
        "{} is no Image: it may be compressed",
        kernel.display()
    );
    Ok(kernel.to_path_buf())
}

fn is_image(kernel: &[u8]) -> bool {
    kernel.get(0x38..0x3c) == Some(b"ARM\x64")
}

/// Returns the ELF kernel in a bzImage (Documentation/arch/x86/boot.rst: `setup_sects`,
/// `payload_offset`, `payload_length`; all little-endian).
fn elf(bzimage: &Path) -> Result<Vec<u8>> {
    let all = fs::read(bzimage).with_context(|| format!("failed to read {}", bzimage.display()))?;
    let word = |at: usize| -> Result<usize> {
        let bytes = all.get(at..at + 4).context("the kernel is cut short")?;
        Ok(u32::from_le_bytes(bytes.try_into()?) as usize)
    };
    ensure!(
        all.get(0x202..0x206) == Some(b"HdrS"),
        "{} is no bzImage",
        bzimage.display()
    );
    let sectors = match all.get(0x1f1) {
        Some(0) | None => 4,
        Some(n) => usize::from(*n),
    };
    let start = (sectors + 1) * 512 + word(0x248)?;
    let payload = all.get(start..start + word(0x24c)?);
    let payload = payload.context("the kernel is cut short")?;
    // In these formats the length follows the data. It is not part of the compressed stream.
    let (program, data): (&[&str], &[u8]) = match payload {
        [0xfd, b'7', b'z', ..] => (&["xz", "-dc", "--single-stream"], strip_length(payload)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => (&["zstd", "-dcq"], strip_length(payload)),
        [0x1f, 0x8b, ..] => (&["gzip", "-dcq"], payload),
        [0x7f, b'E', b'L', b'F', ..] => return Ok(payload.to_vec()),
        _ => bail!("the kernel is compressed in a way that is not known"),
    };
    let elf = filter(program, data)?;
    ensure!(elf.starts_with(b"\x7fELF"), "the kernel is no ELF file");
    Ok(elf)
}

fn strip_length(payload: &[u8]) -> &[u8] {
    &payload[..payload.len().saturating_sub(4)]
}

/// Filters data through a program. Its exit code is ignored: further bytes may follow the data.
fn filter(words: &[&str], data: &[u8]) -> Result<Vec<u8>> {
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to run {}", words[0]))?;
    let mut input = child.stdin.take().context("it has no input")?;
    std::thread::scope(|scope| {
        scope.spawn(move || input.write_all(data));
        child.wait_with_output().map(|out| out.stdout)
    })
    .context("failed to decompress the kernel")
}

/// Installs the modules in [`MODULES`] and those that they need, decompressed, in the order in
/// which they are loaded.
fn modules(kernel: &Kernel, to: &Path) -> Result<()> {
    let (mut order, mut seen) = (Vec::new(), BTreeSet::new());
    for module in MODULES {
        let out = Command::new("modprobe")
            .args(["--show-depends", "-d"])
            .arg(&kernel.root)
            .args(["-S", &kernel.release, module])
            .output()
            .context("failed to run modprobe")?;
        for line in String::from_utf8_lossy(&out.stdout).lines() {
            let Some(file) = line.strip_prefix("insmod ") else {
                continue;
            };
            let file = Path::new(file.trim());
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let name = name.split(".ko").next().unwrap_or_default().to_owned() + ".ko";
            if seen.insert(name.clone()) {
                fs::write(to.join(&name), decompressed(file)?)?;
                order.push(name);
            }
        }
    }
    fs::write(to.join("order"), order.join("\n"))?;
    let folder = kernel.root.join("lib/modules").join(&kernel.release);
    Ok(fs::write(to.join("folder"), folder.display().to_string())?)
}

fn decompressed(module: &Path) -> Result<Vec<u8>> {
    let data = fs::read(module).with_context(|| format!("failed to read {}", module.display()))?;
    match module.extension().and_then(|e| e.to_str()) {
        Some("xz") => filter(&["xz", "-dc"], &data),
        Some("zst") => filter(&["zstd", "-dcq"], &data),
        Some("gz") => filter(&["gzip", "-dc"], &data),
        _ => Ok(data),
    }
}

fn archive(dir: &Path, to: &Path) -> Result<()> {
    let file = File::create(to).with_context(|| format!("failed to make {}", to.display()))?;
    let mut find = Command::new("find")
        .arg(".")
        .current_dir(dir)
        .stdout(Stdio::piped())
        .spawn()?;
    let names = find.stdout.take().context("find has no output")?;
    let mut cpio = Command::new("cpio");
    cpio.args(["-o", "-H", "newc", "--quiet"]).current_dir(dir);
    shell::run(cpio.stdin(names).stdout(file))?;
    find.wait()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_image;

    #[test]
    fn an_image_has_its_magic_number_behind_the_header() {
        let mut kernel = vec![0; 0x40];
        kernel[..2].copy_from_slice(b"MZ");
        assert!(!is_image(&kernel));
        kernel[0x38..0x3c].copy_from_slice(b"ARM\x64");
        assert!(is_image(&kernel));
        assert!(!is_image(&kernel[..0x3b]));
        // Compressed, with a program of EFI that decompresses it.
        kernel[4..8].copy_from_slice(b"zimg");
        kernel[0x38..0x3c].copy_from_slice(b"\xcd\x23\x82\x81");
        assert!(!is_image(&kernel));
    }
}
