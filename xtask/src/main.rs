//! `cargo xtask`: the commands of this repository.

mod bench;
mod build;
mod chaos;
mod demo;
mod dependencies;
mod dist;
mod kernel;
mod setup;
mod shell;
mod test;
mod verify;

use anyhow::Result;
use clap::Parser;

/// Commands of this repository. Each command installs the programs that it needs.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Install the programs that the other commands need
    Setup(setup::Setup),
    /// Build everything
    Build(build::Build),
    /// Run all tests; arguments go to cargo nextest
    Test(test::Test),
    /// Explore the protocol machine that ships, fault by fault
    Verify(verify::Verify),
    /// Look for faults in random networks, under random changes and kills
    Chaos(chaos::Chaos),
    /// Take a real HAProxy out of live connections, and show it
    Demo(demo::Demo),
    /// Test this kernel; inside the guest of test --kernel
    #[command(hide = true)]
    Guest(kernel::guest::Guest),
    /// Build packages for Debian and for distributions with RPM
    Dist(dist::Dist),
    /// Check the licences, sources and versions of all dependencies
    Dependencies(dependencies::Dependencies),
    /// Measure every published figure again
    Bench(bench::Bench),
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Setup(setup) => setup.run(),
        Command::Build(build) => build.run(),
        Command::Test(test) => test.run(),
        Command::Verify(verify) => verify.run(),
        Command::Chaos(chaos) => chaos.run(),
        Command::Demo(demo) => demo.run(),
        Command::Guest(guest) => guest.run(),
        Command::Dist(dist) => dist.run(),
        Command::Dependencies(dependencies) => dependencies.run(),
        Command::Bench(bench) => bench.run(),
    }
}
