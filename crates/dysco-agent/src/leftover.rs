//! The data plane on a host, with or without the daemon that made it: inspection and removal.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use aya::maps::MapData;
use aya::programs::tc;
use dysco_common::Session;
use dysco_common::view::Need;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::net::if_::{if_nameindex, if_nametoindex};
use rtnetlink::packet_route::tc::TcHandle;

use crate::attach::owned::{Owned, on_both_sides};
use crate::error::AgentError;
use crate::hooks::{HANDLER, HOOKS, SERVED_HOOKS};
use crate::maps::map_error;
use crate::memory::Memory;
use crate::need::need_of;
use crate::pins::{LAYOUT, holder_of, is_layout, links_in, refuse_others};

/// Data plane that is pinned in a directory, or attached by clsact.
#[derive(Debug)]
pub struct Leftover {
    pin_dir: PathBuf,
    /// Interfaces with programs attached by TCX or XDP. Those attached by clsact follow.
    linked: Vec<String>,
    filtered: Vec<String>,
}

/// Locks that keep any daemon from starting while they are held.
#[derive(Debug)]
pub struct Alone {
    _locks: Vec<Flock<File>>,
}

impl Leftover {
    /// Lists the data plane on this host.
    ///
    /// # Errors
    /// If the kernel does not list its filters.
    pub fn find(pin_dir: &Path) -> Result<Leftover, AgentError> {
        let system = |operation| move |source| AgentError::System { operation, source };
        let layouts = layouts(pin_dir);
        let links = layouts.iter().flat_map(|dir| links_in(dir));
        let mut linked: Vec<String> = links.map(|(interface, _)| interface).collect();
        linked.sort_unstable();
        linked.dedup();
        let filtered = filtered(&Owned::of(&layouts)).map_err(system("list filters"))?;
        Ok(Leftover {
            pin_dir: pin_dir.into(),
            linked,
            filtered,
        })
    }

    /// True if there is nothing.
    pub fn is_nothing(&self) -> bool {
        self.linked.is_empty() && self.filtered.is_empty() && layouts(&self.pin_dir).is_empty()
    }

    /// Returns the interfaces that programs are on, and the method of attachment.
    pub fn interfaces(&self) -> impl Iterator<Item = (&str, &'static str)> {
        let linked = self.linked.iter().map(|name| (name.as_str(), "link"));
        let filtered = self.filtered.iter().map(|name| (name.as_str(), "clsact"));
        linked.chain(filtered)
    }

    /// Returns the sessions that would stop without the data plane.
    ///
    /// # Errors
    /// If its table cannot be read, such as one of another release.
    pub fn needed_by(&self) -> Result<Vec<(Session, Need)>, AgentError> {
        refuse_others(&self.pin_dir)?;
        let path = self.pin_dir.join(LAYOUT).join("SESSIONS");
        if !path.exists() {
            return Ok(Vec::new());
        }
        let failed = map_error("open", "SESSIONS");
        let map = MapData::from_pin(&path).map_err(&failed)?;
        let room = map.info().map_err(&failed)?.max_entries();
        let memory = Memory::map(map.fd(), room)?;
        let used = (0..memory.len()).filter(|slot| !memory.is_unused(*slot));
        let sessions = used.map(|slot| memory.read(slot));
        Ok(sessions.filter_map(|s| Some((s, need_of(&s)?))).collect())
    }

    /// Keeps daemons from starting, those of other releases included. If one runs, returns its process
    /// id as far as known.
    ///
    /// # Errors
    /// If a directory cannot be locked.
    pub fn lock(&self) -> Result<Result<Alone, Option<u32>>, AgentError> {
        let mut alone = Alone { _locks: Vec::new() };
        for dir in layouts(&self.pin_dir) {
            let unusable = |source| AgentError::PinDirectory {
                path: dir.clone(),
                source,
            };
            let open = match File::open(&dir) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                opened => opened.map_err(unusable)?,
            };
            match Flock::lock(open, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => alone._locks.push(lock),
                Err((file, Errno::EWOULDBLOCK)) => {
                    return Ok(Err(holder_of(&file).map_err(unusable)?));
                }
                Err((_, error)) => return Err(unusable(error.into())),
            }
        }
        Ok(Ok(alone))
    }

    /// Takes the programs off all interfaces, and removes the pins and these links to handlers.
    ///
    /// # Errors
    /// If something is still there then.
    pub fn remove(self, handlers: &[String]) -> Result<(), AgentError> {
        let system = |operation| move |source| AgentError::System { operation, source };
        let owned = Owned::of(&layouts(&self.pin_dir));
        for interface in &self.filtered {
            for (name, kind) in HOOKS.into_iter().chain(SERVED_HOOKS).chain(HANDLER) {
                // Some of the filters may be missing. The check below finds those that remain.
                let _ = tc::qdisc_detach_program(interface, kind, name);
            }
        }
        blocking(remove_empty(&self.filtered)).map_err(system("remove a qdisc"))?;
        let filtered = filtered(&owned).map_err(system("list filters"))?;
        blocking(remove_links(handlers)).map_err(system("remove a link to a handler"))?;
        for path in layouts(&self.pin_dir) {
            fs::remove_dir_all(&path)
                .map_err(|source| AgentError::PinDirectory { path, source })?;
        }
        // Fails if other files are in the directory.
        let _ = fs::remove_dir(&self.pin_dir);
        match filtered.first() {
            None => Ok(()),
            Some(interface) => Err(AgentError::Attach {
                interface: interface.clone(),
                source: "its filters could not be removed".into(),
            }),
        }
    }
}

/// Returns the pin directories of this release, and of others.
fn layouts(pin_dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(pin_dir).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_layout));
    ours.map(|entry| entry.path()).collect()
}

/// Returns the interfaces with filters of this data plane.
fn filtered(owned: &Owned) -> std::io::Result<Vec<String>> {
    let interfaces = if_nameindex()?;
    let names = interfaces
        .iter()
        .map(|interface| interface.name().to_string_lossy());
    let ours = names.filter(|name| on_both_sides(name).iter().any(|one| owned.has(one)));
    Ok(ours.map(Into::into).collect())
}

/// Removes the clsact qdisc of these interfaces, unless filters of others are on it.
async fn remove_empty(interfaces: &[String]) -> std::io::Result<()> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    tokio::spawn(connection);
    for interface in &if_nameindex()? {
        let name = interface.name().to_string_lossy();
        if interfaces.iter().any(|i| *i == name) && on_both_sides(&name).is_empty() {
            let mut qdisc = handle.qdisc().del(interface.index().cast_signed());
            qdisc.message_mut().header.parent = TcHandle::CLSACT;
            qdisc.message_mut().header.handle = TcHandle {
                major: u16::MAX,
                minor: 0,
            };
            qdisc.execute().await.map_err(std::io::Error::other)?;
        }
    }
    Ok(())
}

/// Removes these links, as far as they exist.
async fn remove_links(names: &[String]) -> std::io::Result<()> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    tokio::spawn(connection);
    for name in names {
        let Ok(index) = if_nametoindex(name.as_str()) else {
            continue;
        };
        let removed = handle.link().del(index).execute().await;
        removed.map_err(std::io::Error::other)?;
    }
    Ok(())
}

/// Runs a netlink request to its end.
fn blocking<T>(asks: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build()?.block_on(asks)
}
