//! Filters of clsact that belong to a data plane, and programs that it has on interfaces which are no
//! longer configured.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use aya::maps::MapInfo;
use aya::programs::{ProgramInfo, loaded_programs};
use nix::net::if_::if_nameindex;

use super::clsact::is_ours;
use super::detach;
use crate::filters::{Filter, filters};
use crate::hooks::{HANDLER, HOOKS};
use crate::pins::{filter_path, filters_in, links_in};

/// Marks by which the filters of a data plane are known from those of another one.
pub(crate) struct Owned {
    /// Numbers of programs that are pinned as programs of filters.
    programs: HashSet<u32>,
    /// Numbers of the tables of sessions.
    tables: Vec<u32>,
}

impl Owned {
    /// Reads the marks of the data plane that is pinned in these directories.
    pub(crate) fn of(dirs: &[PathBuf]) -> Owned {
        let pinned = dirs.iter().flat_map(|dir| {
            let pins = filters_in(dir).into_iter();
            pins.map(|(interface, program)| filter_path(dir, &interface, &program))
        });
        let programs = pinned.filter_map(|path| ProgramInfo::from_pin(path).ok());
        let tables = dirs
            .iter()
            .map(|dir| MapInfo::from_pin(dir.join("SESSIONS")));
        Owned {
            programs: programs.map(|program| program.id()).collect(),
            tables: tables.flatten().map(|table| table.id()).collect(),
        }
    }

    /// True if a filter is of this data plane. If nothing of it is pinned any more, each filter in a
    /// place of the programs is.
    pub(crate) fn has(&self, filter: &Filter) -> bool {
        let nothing = self.programs.is_empty() && self.tables.is_empty();
        is_ours(filter) && (nothing || filter.program.is_some_and(|id| self.has_program(id)))
    }

    fn has_program(&self, id: u32) -> bool {
        // The kernel shows the maps of a program only to a process with CAP_SYS_ADMIN.
        self.programs.contains(&id) || self.uses_table(id).unwrap_or(false)
    }

    fn uses_table(&self, id: u32) -> Option<bool> {
        let program = loaded_programs()
            .flatten()
            .find(|program| program.id() == id)?;
        let maps = program.map_ids().ok()??;
        Some(maps.iter().any(|map| self.tables.contains(map)))
    }
}

/// Returns all filters of an interface's clsact qdisc; none if it has no such qdisc.
pub(crate) fn on_both_sides(interface: &str) -> Vec<Filter> {
    let sides = HOOKS.iter();
    let listed = sides.filter_map(|(_, side)| filters(interface, *side).ok());
    listed.flatten().collect()
}

/// Takes the programs of an earlier run off all interfaces but these. They use the same maps: a packet
/// that passes one of those interfaces and one of these would be changed twice. Returns the names of
/// the interfaces. Links to handlers stay.
pub(crate) fn detach_others(dir: &Path, configured: &[String]) -> Vec<String> {
    let handler = |program: &str| HANDLER.iter().any(|(name, _)| *name == program);
    let links = links_in(dir).into_iter();
    let links = links.filter(|(_, program)| !handler(program));
    let mut others: Vec<String> = links.map(|(interface, _)| interface).collect();
    let owned = Owned::of(&[dir.to_owned()]);
    let present = if_nameindex().map(|all| {
        let names = all
            .iter()
            .map(|one| one.name().to_string_lossy().into_owned());
        names.collect::<Vec<_>>()
    });
    others.extend(present.into_iter().flatten().filter(|name| {
        let all = on_both_sides(name);
        all.iter()
            .any(|filter| !handler(&filter.name) && owned.has(filter))
    }));
    others.retain(|name| !configured.contains(name));
    others.sort_unstable();
    others.dedup();
    others.iter().for_each(|name| detach(dir, name));
    others
}
