//! Network namespaces of this machine, as `/proc` and `/run/netns` show them.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

use dysco_config::{NAMED, Namespaces};

/// A network namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Found {
    /// Inode.
    pub inode: u64,
    /// Name in `/run/netns`, or path of the configuration.
    pub bound: Option<String>,
    /// File of the namespace.
    pub path: PathBuf,
    /// Processes in it, in ascending order.
    pub pids: Vec<i32>,
}

/// A file to which a namespace is bound.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Bound {
    name: String,
    inode: u64,
    listed: bool,
}

/// All network namespaces that are visible at a moment.
#[derive(Debug, Default)]
pub(super) struct Scene {
    own: u64,
    bound: Vec<Bound>,
    processes: Vec<(i32, u64)>,
}

impl Scene {
    /// Looks at all processes, at the names in `/run/netns`, and at the listed files. The processes
    /// `without` do not count: they are the instances themselves. Nor do handlers of services.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub(super) fn look(selection: &Namespaces, without: &[i32]) -> io::Result<Scene> {
        let own = fs::metadata("/proc/self/ns/net")?;
        let listed = match selection {
            Namespaces::All => Vec::new(),
            Namespaces::Listed(names) => names.clone(),
        };
        let named = fs::read_dir(NAMED).into_iter().flatten().flatten();
        let named = named.filter_map(|entry| entry.file_name().into_string().ok());
        let named: Vec<String> = named.filter(|name| !listed.contains(name)).collect();
        let all = listed.into_iter().map(|name| (name, true));
        let all = all.chain(named.into_iter().map(|name| (name, false)));
        let bound = all.filter_map(|(name, listed)| {
            let there = fs::metadata(Namespaces::path(&name)).ok()?;
            // All namespaces are on one file system.
            (there.st_dev() == own.st_dev()).then(|| Bound {
                name,
                inode: there.st_ino(),
                listed,
            })
        });
        let processes = fs::read_dir("/proc")?.flatten().filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            // A process that has ended has none.
            let link = fs::read_link(entry.path().join("ns/net")).ok()?;
            let inode = inode_in(&link)?;
            let elsewhere = inode != own.st_ino();
            let handler = elsewhere && is_handler(&fs::read(entry.path().join("cmdline")).ok()?);
            (!handler).then_some((pid, inode))
        });
        Ok(Scene {
            own: own.st_ino(),
            bound: bound.collect(),
            processes: processes
                .filter(|(pid, _)| !without.contains(pid))
                .collect(),
        })
    }

    /// Returns the namespaces of this selection, except the own one.
    pub(super) fn select(&self, selection: &Namespaces) -> Vec<Found> {
        let mut found: BTreeMap<u64, Found> = BTreeMap::new();
        for bound in self.bound.iter().filter(|bound| bound.inode != self.own) {
            if bound.listed || *selection == Namespaces::All {
                found.entry(bound.inode).or_insert_with(|| Found {
                    inode: bound.inode,
                    bound: Some(bound.name.clone()),
                    path: Namespaces::path(&bound.name),
                    pids: Vec::new(),
                });
            }
        }
        for (pid, inode) in self
            .processes
            .iter()
            .filter(|(_, inode)| *inode != self.own)
        {
            if *selection == Namespaces::All {
                found.entry(*inode).or_insert_with(|| Found {
                    inode: *inode,
                    bound: None,
                    path: Path::new("/proc").join(pid.to_string()).join("ns/net"),
                    pids: Vec::new(),
                });
            }
            if let Some(found) = found.get_mut(inode) {
                found.pids.push(*pid);
            }
        }
        let mut all: Vec<Found> = found.into_values().collect();
        all.iter_mut().for_each(|found| found.pids.sort_unstable());
        all
    }

    /// Returns the inodes of all visible namespaces, whether they are selected or not.
    pub(super) fn inodes(&self) -> HashSet<u64> {
        let bound = self.bound.iter().map(|bound| bound.inode);
        let theirs = self.processes.iter().map(|(_, inode)| *inode);
        bound.chain(theirs).chain([self.own]).collect()
    }
}

/// Returns true for the arguments of a process that runs services, whose namespace has nothing to
/// serve (`handlers::process::start`).
fn is_handler(arguments: &[u8]) -> bool {
    arguments.starts_with(b"dyscod\0--handler\0")
}

/// Returns the number in `net:[4026531840]`.
fn inode_in(link: &Path) -> Option<u64> {
    let text = link.to_str()?.strip_prefix("net:[")?;
    text.strip_suffix(']')?.parse().ok()
}

/// Returns true if an interface in a process's network namespace, other than the loopback device,
/// has an address that another host can reach.
pub(crate) fn is_connected(pid: i32) -> bool {
    let read = |name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    has_route(&read("route")) || has_address(&read("if_inet6"))
}

/// Returns true if a table of IPv4 routes has one (`/proc/net/route`).
fn has_route(table: &str) -> bool {
    let devices = table.lines().skip(1);
    let mut devices = devices.filter_map(|line| line.split_whitespace().next());
    devices.any(|device| device != "lo")
}

/// Returns true if a list of IPv6 addresses has one that is not link-local (`/proc/net/if_inet6`).
fn has_address(list: &str) -> bool {
    list.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        // Address, index, length, scope (20: link-local), flags, device.
        matches!(words[..], [_, _, _, scope, _, device] if scope != "20" && device != "lo")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene() -> Scene {
        let bound = |name: &str, inode, listed| Bound {
            name: name.into(),
            inode,
            listed,
        };
        Scene {
            own: 1,
            bound: vec![
                bound("/a/b", 4, true),
                bound("web", 2, true),
                bound("cni-1", 3, false),
                bound("host", 1, false),
            ],
            processes: vec![(90, 2), (12, 2), (7, 3), (5, 1), (40, 6)],
        }
    }

    fn reported(found: &[Found]) -> Vec<(u64, Option<&str>, &[i32])> {
        let reported = found
            .iter()
            .map(|f| (f.inode, f.bound.as_deref(), &f.pids[..]));
        reported.collect()
    }

    #[test]
    fn all_are_those_with_a_name_or_a_process() {
        let found = scene().select(&Namespaces::All);
        assert_eq!(
            reported(&found),
            [
                (2, Some("web"), &[12, 90][..]),
                (3, Some("cni-1"), &[7]),
                (4, Some("/a/b"), &[]),
                (6, None, &[40]),
            ]
        );
        assert_eq!(found[0].path, Path::new("/run/netns/web"));
        assert_eq!(found[2].path, Path::new("/a/b"));
        assert_eq!(found[3].path, Path::new("/proc/40/ns/net"));
    }

    #[test]
    fn a_list_has_no_others() {
        let listed = Namespaces::Listed(vec!["web".into(), "/a/b".into(), "none".into()]);
        let found = scene().select(&listed);
        assert_eq!(
            reported(&found),
            [(2, Some("web"), &[12, 90][..]), (4, Some("/a/b"), &[])]
        );
        // The others exist nevertheless: what is kept for them stays.
        assert_eq!(scene().inodes(), HashSet::from([1, 2, 3, 4, 6]));
    }

    #[test]
    fn a_handler_is_known_by_its_arguments() {
        assert!(is_handler(b"dyscod\x00--handler\x0065534\0"));
        assert!(!is_handler(b"dyscod\0--config\0/etc/dysco/dyscod.toml\0"));
        assert!(!is_handler(b"sh\0dyscod\0--handler\0") && !is_handler(b""));
    }

    #[test]
    fn this_process_is_in_its_own_namespace() {
        let scene = Scene::look(&Namespaces::All, &[]).unwrap();
        let own = std::process::id().cast_signed();
        assert!(scene.processes.contains(&(own, scene.own)));
        let found = scene.select(&Namespaces::All);
        assert!(found.iter().all(|f| f.inode != scene.own));
        let without = Scene::look(&Namespaces::All, &[own]).unwrap();
        assert!(!without.processes.contains(&(own, scene.own)));
        // No file but that of a namespace is one.
        let listed = Namespaces::Listed(vec!["/proc/self/status".into()]);
        assert!(
            Scene::look(&listed, &[])
                .unwrap()
                .select(&listed)
                .is_empty()
        );
    }

    #[test]
    fn an_address_of_the_loopback_device_or_a_link_reaches_no_host() {
        let route = "Iface\tDestination\tGateway\n";
        assert!(!has_route("") && !has_route(route));
        assert!(has_route(&format!("{route}eth0\t000011AC\t00000000\n")));
        let lo = "00000000000000000000000000000001 01 80 10 80       lo\n";
        let link = "fe80000000000000b46d7dfffe4d1a2b 02 40 20 80     eth0\n";
        let global = "fd000001000000000000000000000001 02 40 00 80     eth0\n";
        assert!(!has_address("") && !has_address(&format!("{lo}{link}")));
        assert!(has_address(&format!("{lo}{link}{global}")));
    }
}
