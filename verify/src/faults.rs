//! Faults of a configuration: those that it names, and no others.

/// Returns the `Faults` of the calling module, with these numbers in place of those of its `NONE`.
macro_rules! faults {
    ($($kind:ident: $number:expr),+) => {
        Faults { $($kind: $number,)+ ..NONE }
    };
}

pub(crate) use faults;
