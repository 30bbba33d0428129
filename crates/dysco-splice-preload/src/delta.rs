//! `dysco_delta`, by which a middlebox without sockets of the session declares the change in the
//! size of the stream. Unlike the rest of the shim, this function blocks: it sends a request to
//! dyscod's local API, as `dyscoctl delta` does, and needs the same rights.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::link::set_errno;

const DEFAULT_PATH: &str = "/run/dysco/dyscod.sock";
/// Time limit for an answer, which is longer than dyscod takes.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum length of an answer in bytes.
const MOST: u64 = 64 * 1024;

/// Declares that from now on this middlebox does not change the size of the session's stream, and
/// that it has added `to_server` bytes to the direction to the server and `to_client` bytes to
/// the direction to the client. Returns 0, or -1 and errno: see `dysco.h`.
///
/// # Safety
/// Both pointers are null, or point to a `sockaddr_in` or `sockaddr_in6` according to their
/// family.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dysco_delta(
    client: *const libc::sockaddr,
    server: *const libc::sockaddr,
    to_server: libc::c_int,
    to_client: libc::c_int,
) -> libc::c_int {
    // SAFETY: required of the caller.
    let ends = unsafe { (address(client), address(server)) };
    let reported = match ends {
        (Some(client), Some(server)) => tell(client, server, to_server, to_client),
        _ => Err(libc::EAFNOSUPPORT),
    };
    match reported {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// # Safety
/// As of [`dysco_delta`].
unsafe fn address(at: *const libc::sockaddr) -> Option<SocketAddr> {
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

fn tell(client: SocketAddr, server: SocketAddr, up: i32, down: i32) -> Result<(), i32> {
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
    let request = format!(
        "{{\"request\":\"delta\",\"session\":\"{client}>{server}\",\"to_server\":{up},\"to_client\":{down}}}\n"
    );
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    BufReader::new(stream.take(MOST))
        .read_line(&mut answer)
        .map_err(failed)?;
    judge(&answer)
}

/// Returns the meaning of an answer of the API. dyscod writes no blanks between tokens.
fn judge(answer: &str) -> Result<(), i32> {
    let said = |word: &str| answer.contains(word);
    if said("\"reply\":\"delta\"") {
        return Ok(());
    }
    Err(match () {
        () if answer.is_empty() => libc::ENOTCONN,
        () if said("\"code\":\"not_allowed\"") => libc::EACCES,
        () if said("\"code\":\"not_found\"") => libc::ENOENT,
        () if said("\"code\":\"refused\"") => libc::ERANGE,
        () if said("\"code\":\"busy\"") => libc::EAGAIN,
        () => libc::EPROTO,
    })
}
