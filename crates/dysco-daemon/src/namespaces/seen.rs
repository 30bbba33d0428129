//! A namespace as it was found.

use dysco_api::NamespaceState;
use dysco_explain::Cause;

use super::container::Container;
use super::find::Found;

/// A namespace, and what its processes tell.
#[derive(Default)]
pub(super) struct Seen {
    pub found: Found,
    pub container: Option<Container>,
    /// Reason why no instance may or can be started now.
    pub obstacle: Option<(NamespaceState, Option<Cause>)>,
}

impl Seen {
    /// Returns the name by which reports list it.
    pub(super) fn name(&self) -> String {
        match (&self.container, &self.found.bound) {
            (Some(container), _) => container.name(),
            (None, Some(bound)) => bound.clone(),
            (None, None) => format!("net:[{}]", self.found.inode),
        }
    }
}
