//! The daemon of a host.

fn main() -> std::process::ExitCode {
    dysco_daemon::cli::dyscod(|_| async { anyhow::bail!("the engine is not built in") })
}
