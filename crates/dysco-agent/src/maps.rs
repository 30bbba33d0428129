//! The programs' maps: they are taken from a loaded object, and locked within this process.

use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::maps::{Map, MapError};
use aya::{Ebpf, Pod};
use dysco_common::{FlowRef, ShortKey};

use crate::error::AgentError;

macro_rules! pod {
    ($wrapper:ident, $inner:ty) => {
        #[repr(transparent)]
        #[derive(Clone, Copy)]
        pub(crate) struct $wrapper(pub(crate) $inner);
        // SAFETY: plain integers in `repr(C)`, any bit pattern is valid.
        unsafe impl Pod for $wrapper {}
    };
}

pub(crate) use pod;

pod!(Key, ShortKey);
pod!(Ref, FlowRef);

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data is valid after any panic: the lock guards single map operations.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Map, AgentError> {
    ebpf.take_map(name).ok_or(AgentError::Missing(name))
}

/// Takes a map, and opens it as one of its kind.
pub(crate) fn open<M>(ebpf: &mut Ebpf, name: &'static str) -> Result<M, AgentError>
where
    M: TryFrom<Map, Error = MapError>,
{
    M::try_from(take(ebpf, name)?).map_err(map_error("open", name))
}

pub(crate) fn map_error(
    operation: &'static str,
    map: &'static str,
) -> impl Fn(MapError) -> AgentError {
    move |source| AgentError::Map {
        operation,
        map,
        source,
    }
}
