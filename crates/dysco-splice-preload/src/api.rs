//! Requests to the local API of `dyscod`. Unlike the rest of the shim, they block.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const DEFAULT_PATH: &str = "/run/dysco/dyscod.sock";
/// Time limit for an answer, which is longer than dyscod takes.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum length of an answer in bytes.
const MOST: u64 = 64 * 1024;

/// Sends a request, which is a line of JSON. Returns the first line of the answer.
///
/// # Errors
/// An errno: `EACCES`, `ENOTCONN` or `ETIMEDOUT`.
pub(crate) fn ask(request: &str) -> Result<String, i32> {
    let path = std::env::var_os("DYSCO_API_SOCKET");
    let path = path.unwrap_or_else(|| OsString::from(DEFAULT_PATH));
    let mut stream = UnixStream::connect(path).map_err(|e| match e.kind() {
        ErrorKind::PermissionDenied => libc::EACCES,
        _ => libc::ENOTCONN,
    })?;
    let failed = |e: std::io::Error| match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => libc::ETIMEDOUT,
        _ => libc::ENOTCONN,
    };
    let bounds = stream.set_read_timeout(Some(PATIENCE));
    bounds
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .map_err(failed)?;
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    BufReader::new(stream.take(MOST))
        .read_line(&mut answer)
        .map_err(failed)?;
    Ok(answer)
}

/// Returns the answer, if it is the expected reply. dyscod writes no blanks between tokens.
///
/// # Errors
/// An errno: `refused` if dyscod has refused, and else by the code of the failure.
pub(crate) fn judge<'a>(answer: &'a str, reply: &str, refused: i32) -> Result<&'a str, i32> {
    let said = |word: &str| answer.contains(word);
    if said(&format!("\"reply\":\"{reply}\"")) {
        return Ok(answer);
    }
    Err(match () {
        () if answer.is_empty() => libc::ENOTCONN,
        () if said("\"code\":\"not_allowed\"") => libc::EACCES,
        () if said("\"code\":\"not_found\"") => libc::ENOENT,
        () if said("\"code\":\"refused\"") => refused,
        () if said("\"code\":\"busy\"") => libc::EAGAIN,
        () => libc::EPROTO,
    })
}

/// Reads an address.
///
/// # Safety
/// The pointer is null, or points to a `sockaddr_in` or `sockaddr_in6` according to its family.
pub(crate) unsafe fn address(at: *const libc::sockaddr) -> Option<SocketAddr> {
    if at.is_null() {
        return None;
    }
    // SAFETY: each address is read as the type that its family states.
    unsafe {
        match i32::from((*at).sa_family) {
            libc::AF_INET => {
                let at = at.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(at.sin_addr.s_addr.to_ne_bytes());
                Some((ip, u16::from_be(at.sin_port)).into())
            }
            libc::AF_INET6 => {
                let at = at.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(at.sin6_addr.s6_addr);
                Some((ip, u16::from_be(at.sin6_port)).into())
            }
            _ => None,
        }
    }
}
