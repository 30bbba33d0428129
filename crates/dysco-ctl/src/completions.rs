//! `dyscoctl completions`.

use clap::CommandFactory;
use clap_complete::Shell;
use dysco_api::Exit;

use super::context::print_line;
use super::exit::CliError;

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Prints completions for a shell.
pub(crate) fn run(args: &Args) -> Result<Exit, CliError> {
    let mut script = Vec::new();
    let mut command = super::Cli::command();
    clap_complete::generate(args.shell, &mut command, "dyscoctl", &mut script);
    print_line(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
