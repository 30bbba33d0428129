//! Tests of the program as it is run.

use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};

fn chaos(words: &[&str]) -> Result<Output> {
    let program = env!("CARGO_BIN_EXE_dysco-chaos");
    Command::new(program)
        .args(words)
        .output()
        .context("failed to run it")
}

#[test]
fn a_seed_shows_the_same_plan_again() -> Result<()> {
    let show = |seed: &str| chaos(&["--seed", seed, "--show"]);
    let [first, again, other] = [show("7")?, show("7")?, show("8")?];
    ensure!(first.status.success(), "it ended with {}", first.status);
    assert_eq!(first.stdout, again.stdout);
    assert_ne!(first.stdout, other.stdout);
    Ok(())
}

#[test]
fn a_plan_is_read_from_a_file() -> Result<()> {
    let shown = chaos(&["--seed", "9", "--show"])?;
    let file = tempfile::NamedTempFile::new().context("failed to make a file")?;
    std::fs::write(file.path(), &shown.stdout).context("failed to write a plan")?;
    let path = file.path().to_string_lossy();
    let read = chaos(&["--plan", &path, "--show"])?;
    assert_eq!(shown.stdout, read.stdout);
    std::fs::write(file.path(), "{}").context("failed to write no plan")?;
    assert!(!chaos(&["--plan", &path, "--show"])?.status.success());
    Ok(())
}
