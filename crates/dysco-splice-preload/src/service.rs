//! `dysco_service_call`, by which a program asks a service of one of its own sessions.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::net::SocketAddr;

use crate::api::{address, ask, judge};
use crate::system::set_errno;

/// Calls a service of the session that a socket is an end of. Writes the answer, which is JSON, and
/// a zero to `answer`, as much of it as has room. Returns the length of the whole answer, or -1 and
/// errno: see `dysco.h`.
///
/// # Safety
/// `service` and `verb` are strings, `argument` is one or null, and `answer` has room for `size`
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dysco_service_call(
    fd: libc::c_int,
    service: *const libc::c_char,
    verb: *const libc::c_char,
    argument: *const libc::c_char,
    answer: *mut libc::c_char,
    size: libc::size_t,
) -> libc::ssize_t {
    // SAFETY: required of the caller.
    let words = unsafe { [service, verb, argument].map(|text| words(text)) };
    match call(fd, words) {
        Ok(text) => {
            if size > 0 && !answer.is_null() {
                let part = text.len().min(size - 1);
                // SAFETY: within the `size` bytes of the caller.
                unsafe {
                    answer.copy_from_nonoverlapping(text.as_ptr().cast(), part);
                    answer.add(part).write(0);
                }
            }
            text.len() as libc::ssize_t
        }
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// Returns a text of the caller; nothing if it is null.
///
/// # Safety
/// The pointer is null, or points to a string.
unsafe fn words<'a>(text: *const libc::c_char) -> Option<&'a [u8]> {
    if text.is_null() {
        return None;
    }
    // SAFETY: required of the caller.
    Some(unsafe { CStr::from_ptr(text) }.to_bytes())
}

fn call(fd: i32, [service, verb, argument]: [Option<&[u8]>; 3]) -> Result<String, i32> {
    let service = service.and_then(name).ok_or(libc::EINVAL)?;
    let verb = verb.and_then(name).ok_or(libc::EINVAL)?;
    let argument = match argument {
        None => String::new(),
        Some(json) => {
            let json = std::str::from_utf8(json).map_err(|_| libc::EINVAL)?;
            // A request is one line.
            if json.contains('\n') {
                return Err(libc::EINVAL);
            }
            format!(",\"argument\":{json}")
        }
    };
    let local = end(fd, libc::getsockname)?;
    let remote = end(fd, libc::getpeername)?;
    let request = format!(
        "{{\"request\":\"call_service\",\"session\":\"{local}>{remote}\",\"service\":\"{service}\",\"verb\":\"{verb}\"{argument}}}\n"
    );
    let reply = ask(&request)?;
    if reply.contains("\"code\":\"bad_request\"") {
        return Err(libc::EINVAL);
    }
    let reply = judge(&reply, "service_answer", libc::EOPNOTSUPP)?;
    // The answer is the last member of the object, and no name before it has a quote.
    let (_, answer) = reply.split_once("\"answer\":").ok_or(libc::EPROTO)?;
    let answer = answer.trim_end().strip_suffix('}').ok_or(libc::EPROTO)?;
    Ok(answer.to_owned())
}

/// Returns a name of a service or an operation.
fn name(word: &[u8]) -> Option<&str> {
    let allowed = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-' || *b == b'_';
    let fits = !word.is_empty() && word.iter().all(allowed);
    fits.then(|| std::str::from_utf8(word).ok()).flatten()
}

type NameOf =
    unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn end(fd: i32, name_of: NameOf) -> Result<SocketAddr, i32> {
    let mut at = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: `at` has `len` bytes to write to.
    let done = unsafe { name_of(fd, at.as_mut_ptr().cast(), &raw mut len) };
    if done != 0 {
        let error = std::io::Error::last_os_error();
        return Err(error.raw_os_error().unwrap_or(libc::EBADF));
    }
    // SAFETY: the storage has an address of the family that it states, or zeros.
    let address = unsafe { address(at.as_ptr().cast()) }.ok_or(libc::EAFNOSUPPORT)?;
    // An IPv6 socket may have an IPv4 session.
    Ok(SocketAddr::new(address.ip().to_canonical(), address.port()))
}
