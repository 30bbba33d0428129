//! Names of proxies' processes for listings. The names are cached, because the engine requests
//! one for each session that it lists, and are read from `/proc` again after a while.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use dysco_explain::tame;

use super::process::comm;

/// Lifetime of a cached name. The pid may belong to another process afterwards, or the process
/// may have another name.
const FOR: Duration = Duration::from_secs(10);

/// The names of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Name {
    /// The kernel's name; empty if the process has ended.
    pub comm: String,
    /// Name of the systemd unit.
    pub unit: Option<String>,
}

/// Names by pid.
#[derive(Default)]
pub(crate) struct Names(HashMap<i32, (Instant, Name)>);

impl Names {
    /// Returns the names of a process.
    pub(crate) fn of(&mut self, pid: i32, now: Instant) -> Name {
        let known = self.0.get(&pid);
        let known = known.filter(|(read, _)| now.saturating_duration_since(*read) < FOR);
        if let Some((_, name)) = known {
            return name.clone();
        }
        self.0
            .retain(|_, (read, _)| now.saturating_duration_since(*read) < FOR);
        let name = read(pid);
        self.0.insert(pid, (now, name.clone()));
        name
    }
}

fn read(pid: i32) -> Name {
    let groups = fs::read(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    Name {
        comm: comm(pid),
        unit: unit(&String::from_utf8_lossy(&groups)),
    }
}

/// Returns the innermost unit of a cgroup's path.
fn unit(groups: &str) -> Option<String> {
    let parts = groups.lines().flat_map(|line| line.split('/').rev());
    let mut units = parts.filter(|part| part.ends_with(".service") || part.ends_with(".scope"));
    units.next().map(tame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_once_in_a_while() {
        let own = std::process::id().cast_signed();
        let (mut names, now) = (Names::default(), Instant::now());
        let first = names.of(own, now);
        assert_eq!(
            first.comm,
            fs::read_to_string("/proc/self/comm").unwrap().trim_end()
        );
        // No process has this pid.
        assert_eq!(names.of(-1, now), Name::default());
        names.0.insert(-1, (now, first.clone()));
        assert_eq!(names.of(-1, now + FOR / 2), first);
        assert_eq!(names.of(-1, now + FOR), Name::default());
        assert_eq!(names.0.len(), 1, "what is old is dropped");
    }

    #[test]
    fn the_unit_is_the_innermost() {
        let of = |text| unit(text);
        let nested = "0::/system.slice/a.service/b.scope/x\n";
        assert_eq!(of(nested).as_deref(), Some("b.scope"));
        assert_eq!(
            of("0::/system.slice/haproxy.service\n").as_deref(),
            Some("haproxy.service")
        );
        assert_eq!(of("0::/\n"), None);
        // A user names the groups of its own.
        let own = of("0::/user.slice/\u{1b}[2J.scope\n");
        assert_eq!(own.as_deref(), Some("\\u{1b}[2J.scope"));
    }
}
