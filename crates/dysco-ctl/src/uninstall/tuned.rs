//! Sockets whose options `dyscod` has set, by the files that it keeps of them.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use dysco_api::SessionId;
use dysco_config::{Config, Places};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Name of the file in a directory of state.
const FILE: &str = "tuned";

/// Line of the file (`engine/tuning/record` of the daemon).
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Tuned(SessionId, IgnoredAny),
    Over(SessionId),
    Renamed(SessionId, SessionId),
}

/// Returns how many sockets have options that were set, those of instances for other network
/// namespaces included.
pub(super) fn count(config: &Config) -> usize {
    let inner = fs::read_dir(config.places().run).into_iter().flatten();
    let inner = inner.flatten().map(|entry| Places {
        run: entry.path(),
        pins: PathBuf::new(),
    });
    let inner = inner.map(|places| places.state());
    let own = config.removal.state_dir.clone();
    inner.chain([own]).map(|state| listed(&state)).sum()
}

fn listed(state: &Path) -> usize {
    let text = fs::read(state.join(FILE)).unwrap_or_default();
    let lines = text.split(|byte| *byte == b'\n');
    let mut all = HashSet::new();
    for line in lines.filter_map(|line| serde_json::from_slice(line).ok()) {
        match line {
            Line::Tuned(session, _) => drop(all.insert(session)),
            Line::Over(session) => drop(all.remove(&session)),
            Line::Renamed(session, now) => {
                if all.remove(&session) {
                    all.insert(now);
                }
            }
        }
    }
    all.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_are_tuned_at_the_end_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(listed(dir.path()), 0);
        let set = r#"{"cookie":7,"set":[{"option":"nodelay","from":0,"to":1}]}"#;
        let line = |id| serde_json::to_string(&SessionId(id)).unwrap();
        let text = format!(
            "{{\"tuned\":[{one},{set}]}}\n{{\"tuned\":[{two},{set}]}}\n{{\"tuned\":[{one},{set}]}}\n\
             {{\"renamed\":[{one},{three}]}}\n{{\"over\":{two}}}\n{{\"tuned\":[{two}",
            one = line(1),
            two = line(2),
            three = line(3),
        );
        fs::write(dir.path().join(FILE), text).unwrap();
        assert_eq!(listed(dir.path()), 1);
    }
}
