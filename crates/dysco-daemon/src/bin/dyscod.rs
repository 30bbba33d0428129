//! Main program of `dyscod`, the daemon of a host.

fn main() -> std::process::ExitCode {
    dysco_daemon::dyscod()
}
