//! Faults on purpose, for tests of what happens when a daemon dies or a
//! message is lost at a given moment. Asked for by the environment; without
//! it, nothing here does anything.

use std::collections::HashMap;

/// The variable: words separated by commas. `die:NAME` ends the process, as
/// SIGKILL would, before the command or message of that name; `drop:NAME`
/// loses the first message of that name, `lose:NAME` every one.
const VARIABLE: &str = "DYSCOD_FAULTS";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Die,
    DropOnce,
    Lose,
}

/// The faults asked for, by name.
#[derive(Default)]
pub(super) struct Faults(HashMap<String, Fault>);

impl Faults {
    /// Those of the environment.
    pub fn from_env() -> Faults {
        let asked = std::env::var(VARIABLE).unwrap_or_default();
        let faults: HashMap<_, _> = asked
            .split(',')
            .filter_map(|word| word.split_once(':'))
            .filter_map(|(kind, name)| {
                let fault = match kind {
                    "die" => Fault::Die,
                    "drop" => Fault::DropOnce,
                    "lose" => Fault::Lose,
                    _ => return None,
                };
                Some((name.to_owned(), fault))
            })
            .collect();
        if !faults.is_empty() {
            tracing::warn!(asked, "{VARIABLE} is set: this daemon will fail on purpose");
        }
        Faults(faults)
    }

    /// To be called before a command or message of this name; false if the
    /// message shall be lost.
    pub fn pass(&mut self, name: &str) -> bool {
        match self.0.get(name) {
            None => true,
            Some(Fault::Lose) => false,
            Some(Fault::DropOnce) => {
                self.0.remove(name);
                false
            }
            Some(Fault::Die) => {
                // No destructor runs, no peer is told.
                let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
                false
            }
        }
    }
}
