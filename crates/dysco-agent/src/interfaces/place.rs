//! An interface that the programs shall be on.

use crate::attach::Attached;

/// An interface that the programs shall be on.
pub(crate) struct Place {
    pub attached: Attached,
    /// The index of the interface that the programs were last attached to.
    pub(super) last: u32,
    /// True if it has been reported that the programs cannot be attached to the present
    /// interface.
    pub(super) refused: bool,
}

impl Place {
    /// Makes the place of an interface that the programs are on.
    pub(crate) fn new(attached: Attached, index: u32) -> Place {
        Place {
            attached: Attached {
                index: Some(index),
                ..attached
            },
            last: index,
            refused: false,
        }
    }
}
