//! The object files with the eBPF programs, as built for this version.

/// The eBPF programs as built for this version.
#[repr(C, align(8))]
struct Aligned<B: ?Sized>(B);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/dysco")));
static HEADERLESS: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(
    env!("OUT_DIR"),
    "/dysco_headerless"
)));

/// Returns the object file with the eBPF programs, for tests that run them directly.
pub fn object() -> &'static [u8] {
    &OBJECT.0
}

/// Returns the object file with the programs for interfaces whose packets begin with the IP header.
pub(crate) fn headerless_object() -> &'static [u8] {
    &HEADERLESS.0
}
