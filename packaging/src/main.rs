//! Writes the files of the packages that are generated from the command lines: man pages, and
//! completions for shells. The programs themselves need not contain them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Command, Parser};
use clap_complete::Shell;
use clap_mangen::Man;

/// Section of the manual for system administration.
const SECTION: &str = "8";

/// Write the man pages and completions.
#[derive(Parser)]
struct Cli {
    /// The folder for them
    folder: PathBuf,
}

fn main() -> Result<()> {
    let Cli { folder } = Cli::parse();
    for command in [dysco_daemon::command(), dysco_ctl::command()] {
        pages(&folder.join("man"), command.clone())?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let folder = folder.join("completions").join(shell.to_string());
            completions(&folder, shell, command.clone())?;
        }
    }
    Ok(())
}

/// Writes a page for a program, and a page for each of its subcommands.
fn pages(folder: &Path, command: Command) -> Result<()> {
    make(folder)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    page(folder, command)
}

fn page(folder: &Path, command: Command) -> Result<()> {
    for subcommand in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        page(folder, subcommand.clone())?;
    }
    let man = Man::new(command).section(SECTION);
    let file = folder.join(man.get_filename());
    let mut text = Vec::new();
    man.render(&mut text)?;
    fs::write(&file, text).with_context(|| format!("failed to write {}", file.display()))
}

fn completions(folder: &Path, shell: Shell, mut command: Command) -> Result<()> {
    make(folder)?;
    let name = command.get_name().to_owned();
    let file = clap_complete::generate_to(shell, &mut command, &name, folder);
    let file = file.with_context(|| format!("failed to write completions of {name}"))?;
    // bash finds completions by the program's name.
    if shell == Shell::Bash {
        let plain = folder.join(&name);
        fs::rename(&file, &plain)
            .with_context(|| format!("failed to write {}", plain.display()))?;
    }
    Ok(())
}

fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))
}
