//! `cargo xtask test`.

use anyhow::Result;
use clap::{ArgGroup, Args};

use crate::kernel::arch::Arch;
use crate::kernel::{self, Guests};
use crate::setup::Need;
use crate::{build, setup, shell};

/// Run all tests.
#[derive(Args)]
#[command(group = ArgGroup::new("guests").multiple(true).args(["kernel", "arm64"]))]
pub(crate) struct Test {
    /// Test the programs of a host on this kernel of Debian instead, under qemu: a series, such as
    /// 6.1, or newest, or all. May be repeated
    #[arg(long, value_name = "VERSION")]
    kernel: Vec<String>,
    /// Test on kernels for arm64 instead: programs are built for it, and emulated. The kernel is
    /// 6.1 unless --kernel names another
    #[arg(long)]
    arm64: bool,
    /// Also remove the proxy over each kind of link (vlan, bond, macvlan, ipvlan, vxlan, gre, ipip,
    /// wireguard), and run the tests that need more than this machine's kernel has, such as IPVS
    #[arg(long, requires = "guests")]
    links: bool,
    /// Print one JSON object per kernel
    #[arg(long, requires = "guests")]
    json: bool,
    /// Arguments of cargo nextest run: a filter, or options after --
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Test {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<()> {
        if let Some(guests) = self.guests() {
            return kernel::test(&guests, self.json);
        }
        dysco_netns::require_root()?;
        setup::ensure(Need::Tests)?;
        // Tests run the programs, in addition to being built with their code.
        build::programs_and_tests()?;
        let mut nextest = build::workspace(&["nextest", "run"]);
        shell::run(nextest.args(self.threads()).args(&self.arguments))
    }

    /// Returns the guests to test, if any are wanted.
    fn guests(&self) -> Option<Guests> {
        (self.arm64 || !self.kernel.is_empty()).then(|| Guests {
            arch: match self.arm64 {
                true => Arch::Arm64,
                false => Arch::Amd64,
            },
            kernels: self.kernel.clone(),
            links: self.links,
        })
    }

    /// Returns the option for the number of tests at the same time. A test waits for its hosts more
    /// than it computes: five run for each two processors, unless the user has set a number.
    fn threads(&self) -> Option<String> {
        let said = |a: &String| a.starts_with("--test-threads") || a.starts_with("-j");
        let processors = std::thread::available_parallelism().ok()?;
        let unsaid = !self.arguments.iter().any(said);
        unsaid.then(|| format!("--test-threads={}", (5 * processors.get()).div_ceil(2)))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn guests(words: &[&str]) -> Result<Option<Guests>, String> {
        let words = ["cargo xtask", "test"].iter().chain(words);
        match crate::Command::try_parse_from(words) {
            Ok(crate::Command::Test(test)) => Ok(test.guests()),
            Ok(_) => Err("another command".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn guests_are_of_this_machines_architecture_unless_arm64_is_named() {
        assert!(guests(&[]).expect("no arguments").is_none());
        let of = |words: &[&str]| guests(words).expect("it is right").expect("guests");
        let here = of(&["--kernel", "6.1", "--kernel", "newest", "--links", "--json"]);
        assert_eq!(here.arch, Arch::Amd64);
        assert_eq!(here.kernels, ["6.1", "newest"]);
        assert!(here.links);
        let there = of(&["--arm64", "--json"]);
        assert_eq!(there.arch, Arch::Arm64);
        assert!(there.kernels.is_empty() && !there.links);
        assert_eq!(of(&["--arm64", "--kernel", "6.12"]).kernels, ["6.12"]);
    }

    #[test]
    fn options_of_guests_need_guests() {
        assert!(guests(&["--json"]).is_err());
        assert!(guests(&["--links"]).is_err());
    }
}
