//! Values that the verifier forgets.

use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;

/// Place that [`forget`] writes to and reads from, so that the verifier forgets the value.
#[map]
static FORGOTTEN: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Returns the same word, with a value that the verifier does not know. The verifier then checks
/// the following code once, and not for each value that it has found possible.
#[inline(always)]
pub(super) fn forget(word: u64) -> Option<u64> {
    let place = FORGOTTEN.get_ptr_mut(0)?;
    // SAFETY: this CPU's own element. No program that uses it otherwise runs between the two
    // accesses.
    unsafe {
        place.write_volatile(word);
        Some(place.read_volatile())
    }
}
