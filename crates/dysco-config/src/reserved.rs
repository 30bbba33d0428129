//! Reservation of the source ports of new paths, so that the kernel assigns them to no other
//! connection. `dyscod` reserves the ports at its start; an uninstall releases them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use dysco_explain::{Explain, Explanation, display_explained};

use super::{Removal, private};

/// Kernel's list of the ports that it assigns to no connection.
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
/// File of the state directory that lists the ports added by `dyscod`.
const ADDED: &str = "reserved-ports";

/// A set of ports in the kernel's notation: `7,61000-64999`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ports(BTreeSet<u16>);

/// An error while reserving or releasing ports.
#[derive(Debug, thiserror::Error)]
pub struct PortsError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

display_explained!(PortsError);

impl Explain for PortsError {
    fn explain(&self) -> Explanation {
        let PortsError { what, path, source } = self;
        Explanation::new(format!("{what} {}", path.display()), source)
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PortsError {
    let path = path.to_owned();
    move |source| PortsError { what, path, source }
}

impl Ports {
    fn parse(text: &str) -> Ports {
        let bounds = |part: &str| -> Option<(u16, u16)> {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
        };
        let all = text.split(',').filter_map(bounds);
        Ports(all.flat_map(|(first, last)| first..=last).collect())
    }

    fn text(&self) -> String {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for port in &self.0 {
            match ranges.last_mut() {
                Some((_, last)) if u32::from(*last) + 1 == u32::from(*port) => *last = *port,
                _ => ranges.push((*port, *port)),
            }
        }
        let words = ranges.iter().map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
        words.collect::<Vec<_>>().join(",")
    }
}

/// Keeps the kernel from using the new paths' source ports for its own connections. Records in
/// the state directory which of these ports were not reserved before.
///
/// # Errors
/// If the kernel's list or the note cannot be read or written.
pub fn reserve_ports(removal: &Removal) -> Result<(), PortsError> {
    if removal.reserve_ports {
        reserve(removal, Path::new(RESERVED))?;
    }
    Ok(())
}

fn reserve(removal: &Removal, list: &Path) -> Result<(), PortsError> {
    let reserved = read(list)?;
    let ours: BTreeSet<u16> = (removal.ports.first..=removal.ports.last).collect();
    let note = removal.state_dir.join(ADDED);
    // Ports that were recorded before a reboot are no longer reserved.
    let noted = read(&note).unwrap_or_default();
    let mut added: BTreeSet<u16> = noted.0.intersection(&reserved.0).copied().collect();
    added.extend(ours.difference(&reserved.0));
    if !added.is_empty() {
        let noted = private::make_dir(&removal.state_dir)
            .and_then(|()| private::write(&note, Ports(added).text().as_bytes()));
        noted.map_err(failed("note the reserved ports in", &note))?;
    }
    let all = Ports(reserved.0.union(&ours).copied().collect());
    if all == reserved {
        return Ok(());
    }
    fs::write(list, all.text()).map_err(failed("reserve the ports of new paths in", list))
}

/// Releases the ports that were reserved for this configuration, and no others. The state
/// directory lists them. Returns these ports in the kernel's notation.
///
/// # Errors
/// If the kernel's list cannot be read or written.
pub fn release_ports(removal: &Removal, dry_run: bool) -> Result<String, PortsError> {
    release(&removal.state_dir, Path::new(RESERVED), dry_run)
}

fn release(state_dir: &Path, list: &Path, dry_run: bool) -> Result<String, PortsError> {
    let added = read(&state_dir.join(ADDED)).unwrap_or_default();
    let reserved = read(list)?;
    let back = Ports(added.0.intersection(&reserved.0).copied().collect());
    if !dry_run && !back.0.is_empty() {
        let rest = Ports(reserved.0.difference(&back.0).copied().collect());
        // The kernel keeps its list unless the written text ends in a line feed.
        let text = format!("{}\n", rest.text());
        fs::write(list, text).map_err(failed("give back the ports of new paths in", list))?;
    }
    Ok(back.text())
}

fn read(path: &Path) -> Result<Ports, PortsError> {
    let text = fs::read_to_string(path).map_err(failed("read", path))?;
    Ok(Ports::parse(&text))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use dysco_api::Mode;

    use super::*;
    use crate::PortRange;

    fn removal(dir: &Path, first: u16, last: u16) -> Removal {
        Removal {
            automatic: false,
            mode: Mode::Auto,
            relay_idle: Default::default(),
            timeout: Default::default(),
            concurrency: 1,
            ports: PortRange { first, last },
            reserve_ports: true,
            state_dir: dir.into(),
        }
    }

    #[test]
    fn only_what_was_added_is_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let (list, state) = (dir.path().join("list"), dir.path().join("state"));
        let text = || fs::read_to_string(&list).unwrap().trim().to_owned();
        fs::write(&list, "7,60900-61001\n").unwrap();
        // Two starts with the same ports, and a third with others.
        for (first, last) in [(61_000, 61_009), (61_000, 61_009), (61_005, 61_019)] {
            reserve(&removal(&state, first, last), &list).unwrap();
        }
        assert_eq!(text(), "7,60900-61019");
        let mode = fs::metadata(state.join(ADDED)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Another program has reserved a port meanwhile.
        fs::write(&list, "7,9,60900-61019\n").unwrap();
        assert_eq!(release(&state, &list, true).unwrap(), "61002-61019");
        assert_eq!(text(), "7,9,60900-61019");
        assert_eq!(release(&state, &list, false).unwrap(), "61002-61019");
        assert_eq!(text(), "7,9,60900-61001");
        assert_eq!(release(&state, &list, false).unwrap(), "");
    }

    #[test]
    fn what_was_noted_before_a_reboot_is_not_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("list");
        fs::write(&list, "\n").unwrap();
        reserve(&removal(dir.path(), 61_000, 61_009), &list).unwrap();
        // After the reboot the operator reserves some of these ports permanently.
        fs::write(&list, "\n").unwrap();
        reserve(&removal(dir.path(), 62_000, 62_009), &list).unwrap();
        fs::write(&list, "61000-61009,62000-62009\n").unwrap();
        assert_eq!(release(dir.path(), &list, false).unwrap(), "62000-62009");
    }
}
