//! The real functions of libc, each looked up once.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function of the libraries that follow this one.
pub(crate) struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Real {
            name,
            found: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Returns the address of the function, or null if no library has it. May run before the
    /// constructor, because `dlsym` needs nothing of this library.
    #[inline(always)]
    pub(crate) fn get(&self) -> *mut c_void {
        let p = self.found.load(Ordering::Relaxed);
        if p.is_null() { self.look_up() } else { p }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name is a C string; RTLD_NEXT is a valid handle.
        let p = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(p, Ordering::Relaxed);
        p
    }
}

/// Calls libc's function of this name and type, or fails with ENOSYS.
macro_rules! real {
    ($name:ident: fn($($arg:expr => $ty:ty),*) -> $ret:ty) => {{
        static REAL: $crate::real::Real = $crate::real::Real::new(
            match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            },
        );
        let p = REAL.get();
        if p.is_null() {
            $crate::system::set_errno(libc::ENOSYS);
            -1
        } else {
            // SAFETY: the pointer is libc's function of this name, whose C prototype the types
            // repeat; the arguments are the caller's own.
            unsafe {
                let f: unsafe extern "C" fn($($ty),*) -> $ret = core::mem::transmute(p);
                f($($arg),*)
            }
        }
    }};
}
pub(crate) use real;
