//! Attachment by a filter of the clsact qdisc.

use std::fs;
use std::path::Path;

use aya::programs::tc::{
    self, NlOptions, SchedClassifierLink, SchedClassifierLinkId, TcAttachOptions, TcHandle,
};
use aya::programs::{SchedClassifier, TcAttachType};

use crate::error::AnyError;
use crate::filters::{self, Filter};
use crate::hooks::SERVED_HOOKS;
use crate::pins::filter_path;

/// Places for our clsact filters, the best first. They are fixed, so that the filters are found
/// again. Of the filters of one priority the newest runs first, but all of them must be of one
/// kind and protocol: if other filters have priority 1, the second place is behind them.
const PLACES: [FilterPlace; 2] = places(0xd75c, 1);

/// Places for the filters of the packet plane's services, which are newer and so run first.
const SERVED_PLACES: [FilterPlace; 2] = places(0xd75d, 2);

const fn places(first: u16, second: u16) -> [FilterPlace; 2] {
    [
        FilterPlace {
            priority: 1,
            handle: first,
        },
        FilterPlace {
            priority: 0xd75c,
            handle: second,
        },
    ]
}

/// Returns the places for the filter of a program.
fn places_of(program: &str) -> [FilterPlace; 2] {
    let served = SERVED_HOOKS.iter().any(|(name, _)| *name == program);
    if served { SERVED_PLACES } else { PLACES }
}

/// A place for a clsact filter.
#[derive(Clone, Copy)]
struct FilterPlace {
    /// Filters with a lower one run first.
    priority: u16,
    /// Names a filter among those of the same priority.
    handle: u16,
}

impl FilterPlace {
    const fn tc_handle(self) -> TcHandle {
        TcHandle::new(0, self.handle)
    }

    fn holds(self, filter: &Filter) -> bool {
        (filter.priority, filter.handle) == (self.priority, u32::from(self.handle))
    }
}

/// Attaches a program by a filter, in place of that of an earlier run.
pub(super) fn clsact_hook(
    program: &mut SchedClassifier,
    dir: &Path,
    interface: &str,
    name: &'static str,
    kind: TcAttachType,
) -> Result<(), AnyError> {
    // Fails if the qdisc exists already, which is as good.
    let _ = tc::qdisc_add_clsact(interface);
    let places = places_of(name);
    let id = match replace(program, interface, kind, places)? {
        Some(id) => id,
        None => add(program, interface, kind, places)?,
    };
    tracing::debug!(interface, program = name, "attached by clsact");
    // The filter stays when this process ends.
    std::mem::forget(program.take_link(id)?);
    let path = filter_path(dir, interface, name);
    // An error means that there is none.
    let _ = fs::remove_file(&path);
    program.pin(&path)?;
    Ok(())
}

/// Replaces the filter of an earlier run in its place. Packets of changed sessions would go
/// untranslated between the removal of one filter and the addition of the next. Returns `None` if
/// there is no such filter.
fn replace(
    program: &mut SchedClassifier,
    interface: &str,
    kind: TcAttachType,
    places: [FilterPlace; 2],
) -> Result<Option<SchedClassifierLinkId>, AnyError> {
    for place in places {
        let (priority, handle) = (place.priority, place.tc_handle());
        let earlier = SchedClassifierLink::attached(interface, kind, priority, handle, None)?;
        if let Ok(id) = program.attach_to_link(earlier) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Adds a filter in the best place that is to be had.
fn add(
    program: &mut SchedClassifier,
    interface: &str,
    kind: TcAttachType,
    places: [FilterPlace; 2],
) -> Result<SchedClassifierLinkId, AnyError> {
    let [first, second] = places.map(|place| {
        TcAttachOptions::Netlink(NlOptions {
            priority: place.priority,
            handle: place.tc_handle(),
            ..NlOptions::default()
        })
    });
    match program.attach_with_options(interface, kind, first) {
        Ok(id) => Ok(id),
        Err(error) => {
            tracing::warn!(interface, %error, "other tc filters of preference 1 run before dyscod's");
            Ok(program.attach_with_options(interface, kind, second)?)
        }
    }
}

/// True if the filter has one of our places.
pub(crate) fn is_ours(filter: &Filter) -> bool {
    let mut places = PLACES.iter().chain(&SERVED_PLACES);
    places.any(|place| place.holds(filter))
}

/// True if the filter of a program is on its side of an interface, or if the kernel does not tell.
pub(crate) fn is_there(interface: &str, name: &str, side: TcAttachType) -> bool {
    match filters::filters(interface, side) {
        Ok(all) => all.iter().any(|one| is_ours(one) && one.name == name),
        Err(_) => true,
    }
}

/// Returns the names of the filters that run before ours on one side of an interface.
pub(crate) fn filters_before(interface: &str, side: TcAttachType) -> Vec<String> {
    let in_order = filters::filters(interface, side).unwrap_or_default();
    let before = in_order.iter().take_while(|filter| !is_ours(filter));
    before.map(|filter| filter.name.clone()).collect()
}
