//! The command line of an operator.

fn main() -> std::process::ExitCode {
    dysco_ctl::dyscoctl()
}
