//! Architectures of guests: their names, and the machines that qemu emulates for them.

use crate::setup::Need;

/// Architecture of a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arch {
    /// 64 bits of x86: this machine's.
    Amd64,
    /// 64 bits of Arm.
    Arm64,
}

impl Arch {
    /// Name, as Debian has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Arch::Amd64 => "amd64",
            Arch::Arm64 => "arm64",
        }
    }

    /// Purpose for which its guests need programs of this machine.
    pub(crate) fn need(self) -> Need {
        match self {
            Arch::Amd64 => Need::Kernels,
            Arch::Arm64 => Need::Arm64,
        }
    }

    /// Returns the release of a kernel without the name of an architecture at its end.
    pub(crate) fn stripped(release: &str) -> &str {
        let ends = [Arch::Amd64, Arch::Arm64].map(Arch::name);
        ends.into_iter()
            .find_map(|end| release.strip_suffix(end)?.strip_suffix('-'))
            .unwrap_or(release)
    }

    /// qemu's program, and its options for the machine.
    pub(crate) fn qemu(self) -> &'static [&'static str] {
        match self {
            Arch::Amd64 => &["qemu-system-x86_64", "-M", "pc", "-cpu", "max"],
            // Authentication of pointers as the architecture describes it takes an emulated
            // processor half of its time.
            Arch::Arm64 => &[
                "qemu-system-aarch64",
                "-M",
                "virt",
                "-cpu",
                "max,pauth-impdef=on",
            ],
        }
    }

    /// Options of the kernel for this machine.
    pub(crate) fn options(self) -> &'static str {
        match self {
            Arch::Amd64 => "console=ttyS0 mitigations=off tsc=reliable",
            Arch::Arm64 => "console=ttyAMA0 mitigations=off",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Arch;

    #[test]
    fn a_release_is_stripped_of_either_architecture() {
        assert_eq!(Arch::stripped("6.1.0-57-arm64"), "6.1.0-57");
        assert_eq!(Arch::stripped("6.1.0-57-amd64"), "6.1.0-57");
        assert_eq!(Arch::stripped("6.12.118+deb13"), "6.12.118+deb13");
        assert_eq!(Arch::stripped("6.1.0-57-rt-arm64"), "6.1.0-57-rt");
    }
}
