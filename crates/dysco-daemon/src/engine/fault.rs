//! Injected faults, for tests of a daemon that dies or a message that is lost at a given moment.
//! The environment requests them; without it, this module does nothing.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dysco_common::session::translation;

/// Environment variable: words separated by commas, or `@FILE` with the same words. The file is
/// read again each time, so that a test need not restart the daemon.
///
/// `die:NAME` ends the process, as SIGKILL would, before the command or message of that name;
/// `drop:NAME` loses the first command or message of that name, `lose:NAME` every one. `die:NAME:2`
/// and `drop:NAME:2` mean the second of them. Names of services begin with `Service`; some of them are
/// steps of a session's services, before which a daemon only dies. `WriteAhead` is the append of several changes' first
/// records, before their commands, and `WrittenAhead` the moment after it. `spoil:Sack` leaves the SACK blocks of new paths
/// untranslated at this end. With `spoil:Pace`, a new path is taken no matter how much the session
/// sends while it opens.
const VARIABLE: &str = "DYSCOD_FAULTS";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Die,
    Drop,
    Lose,
    Spoil,
}

#[derive(Debug)]
struct Fault {
    kind: Kind,
    name: String,
    /// Number of commands or messages of that name until the fault happens; 0 once it has.
    countdown: u32,
}

/// Requested faults.
#[derive(Default)]
pub(super) struct Faults {
    file: Option<PathBuf>,
    asked: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    words: String,
    faults: Vec<Fault>,
}

impl Faults {
    /// Returns the faults that the environment requests.
    pub(crate) fn from_env() -> Faults {
        let asked = std::env::var(VARIABLE).unwrap_or_default();
        let mut faults = Faults::default();
        match asked.strip_prefix('@') {
            Some(file) => faults.file = Some(file.into()),
            None => faults.now().ask(asked),
        }
        faults
    }

    /// Returns true if a fault of this name is requested, whether or not it has happened.
    pub(super) fn names(&self, name: &str) -> bool {
        self.now().faults.iter().any(|f| f.name == name)
    }

    /// Returns the faults that are requested at this moment.
    fn now(&self) -> MutexGuard<'_, Asked> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &self.file {
            asked.ask(std::fs::read_to_string(file).unwrap_or_default());
        }
        asked
    }

    /// To be called before a command or message of this name. Returns false if the command or
    /// message has to be lost.
    pub(super) fn pass(&self, name: &str) -> bool {
        self.now().pass(name)
    }

    /// To be called before a step of this name that cannot be lost.
    pub(super) fn reach(&self, name: &str) {
        self.now().reach(name);
    }

    /// Returns bits for the translation of a new path.
    pub(super) fn spoilt(&self) -> u32 {
        match self.spoils("Sack") {
            true => translation::LEAVE_SACK,
            false => 0,
        }
    }

    /// Returns true if a rule of this name is not to be kept.
    pub(crate) fn spoils(&self, name: &str) -> bool {
        let spoils = |f: &Fault| f.kind == Kind::Spoil && f.name == name;
        self.now().faults.iter().any(spoils)
    }
}

impl Asked {
    fn ask(&mut self, words: String) {
        if words == self.words {
            return;
        }
        self.faults = words.trim().split(',').filter_map(parse).collect();
        tracing::warn!(words, "{VARIABLE} is set: this daemon fails on purpose");
        self.words = words;
    }

    fn reach(&mut self, name: &str) {
        let deaths = |f: &&mut Fault| f.kind == Kind::Die && f.name == name;
        for fault in self.faults.iter_mut().filter(deaths) {
            if fault.is_due() {
                die();
            }
        }
    }

    fn pass(&mut self, name: &str) -> bool {
        let mut pass = true;
        for fault in self.faults.iter_mut().filter(|f| f.name == name) {
            let due = fault.is_due();
            match fault.kind {
                Kind::Die if due => die(),
                Kind::Lose => pass = false,
                Kind::Drop if due => pass = false,
                Kind::Die | Kind::Drop | Kind::Spoil => {}
            }
        }
        if !pass {
            // Each loss is a line of its own: repeated warnings are counted.
            tracing::info!("{name} is lost on purpose");
        }
        pass
    }
}

impl Fault {
    /// Counts a command or message of that name. Returns true if the fault happens now.
    fn is_due(&mut self) -> bool {
        let due = self.countdown == 1;
        self.countdown = self.countdown.saturating_sub(1);
        due
    }
}

/// Ends the process. No destructor runs, no peer is notified.
fn die() {
    let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
}

fn parse(word: &str) -> Option<Fault> {
    let mut parts = word.split(':');
    let kind = match parts.next()? {
        "die" => Kind::Die,
        "drop" => Kind::Drop,
        "lose" => Kind::Lose,
        "spoil" => Kind::Spoil,
        _ => return None,
    };
    let name = parts.next()?.to_owned();
    let countdown = parts.next().map_or(Some(1), |n| n.parse().ok())?;
    Some(Fault {
        kind,
        name,
        countdown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_mean_what_they_say() {
        let faults = Faults::default();
        faults
            .now()
            .ask("drop:Leave,drop:Done:2,lose:SetUp,nonsense,die".into());
        assert!(!faults.pass("Leave") && faults.pass("Leave"));
        assert!(faults.pass("Done") && !faults.pass("Done") && faults.pass("Done"));
        assert!(!faults.pass("SetUp") && !faults.pass("SetUp"));
        assert!(faults.pass("Switched"));
        assert!(faults.names("Done") && !faults.names("Persist"));
        assert_eq!(faults.spoilt(), 0);
        // A step is not lost.
        faults.now().ask("drop:ServiceIn,die:ServiceIn:3".into());
        faults.reach("ServiceIn");
        faults.reach("ServiceForget");
        assert!(!faults.pass("ServiceIn"));
        faults.now().ask("spoil:Sack".into());
        assert!(faults.pass("SetUp"));
        assert_eq!(faults.spoilt(), translation::LEAVE_SACK);
    }
}
