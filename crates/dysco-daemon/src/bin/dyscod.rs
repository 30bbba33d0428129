//! The daemon of a host.

fn main() -> std::process::ExitCode {
    dysco_daemon::cli::dyscod(dysco_daemon::engine::run)
}
