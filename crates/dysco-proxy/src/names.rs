//! The names of proxies' processes, as listings show them. They are read from `/proc` anew
//! after a while only: the engine asks for each session that it lists.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// A number is another process's, or its process has another name, after this.
const FOR: Duration = Duration::from_secs(10);

/// A process's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// The kernel's; empty of a process that has ended.
    pub comm: String,
    /// Its systemd unit.
    pub unit: Option<String>,
}

/// Names by number.
#[derive(Default)]
pub struct Names(HashMap<i32, (Instant, Name)>);

impl Names {
    /// Of a process.
    pub fn of(&mut self, pid: i32, now: Instant) -> Name {
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
    let text = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    Name {
        comm: text("comm").trim_end_matches('\n').to_owned(),
        unit: unit(&text("cgroup")),
    }
}

/// The innermost unit of a cgroup's path.
fn unit(groups: &str) -> Option<String> {
    let parts = groups.lines().flat_map(|line| line.split('/').rev());
    let mut units = parts.filter(|part| part.ends_with(".service") || part.ends_with(".scope"));
    units.next().map(str::to_owned)
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
        // Nobody has this number.
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
    }
}
