//! `cargo xtask test`.

use anyhow::Result;
use clap::Args;

use crate::setup::Need;
use crate::{build, kernel, setup, shell};

/// Run all tests.
#[derive(Args)]
pub struct Test {
    /// Test what runs on a host on this kernel of Debian's instead, under qemu: the series of a
    /// release, such as 6.1, or newest, or all; again for more
    #[arg(long, value_name = "VERSION")]
    kernel: Vec<String>,
    /// Also remove the proxy over each kind of link: vlan, bond, macvlan, ipvlan, vxlan, gre,
    /// wireguard
    #[arg(long, requires = "kernel")]
    links: bool,
    /// Print one JSON object a kernel
    #[arg(long, requires = "kernel")]
    json: bool,
    /// For cargo nextest run: a filter, or options after --
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Test {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        if !self.kernel.is_empty() {
            return kernel::test(&self.kernel, self.links, self.json);
        }
        dysco_netns::require_root()?;
        setup::ensure(Need::Tests)?;
        // Tests run these programs, in addition to being built with their code.
        build::everything(false)?;
        let mut nextest = shell::cargo();
        nextest.args([
            "nextest",
            "run",
            "--workspace",
            "--exclude",
            "dysco-ebpf",
            "--exclude",
            "dysco-rivals",
        ]);
        shell::run(nextest.args(self.threads()).args(&self.arguments))
    }

    /// Returns the option for the number of tests at the same time. Tests wait for each other's
    /// hosts as much as they compute: two run per processor, unless the user has set a number.
    fn threads(&self) -> Option<String> {
        let said = |a: &String| a.starts_with("--test-threads") || a.starts_with("-j");
        let processors = std::thread::available_parallelism().ok()?;
        let unsaid = !self.arguments.iter().any(said);
        unsaid.then(|| format!("--test-threads={}", 2 * processors.get()))
    }
}
