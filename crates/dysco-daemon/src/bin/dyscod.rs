//! The daemon of a host.

fn main() -> std::process::ExitCode {
    dysco_daemon::dyscod()
}
