//! `dysco_delta`, by which a middlebox without sockets of the session declares the change in the
//! size of the stream. It needs the same rights as `dyscoctl delta`.

use std::net::SocketAddr;

use crate::api::{address, ask, judge};
use crate::system::set_errno;

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

fn tell(client: SocketAddr, server: SocketAddr, up: i32, down: i32) -> Result<(), i32> {
    let request = format!(
        "{{\"request\":\"delta\",\"session\":\"{client}>{server}\",\"to_server\":{up},\"to_client\":{down}}}\n"
    );
    judge(&ask(&request)?, "delta", libc::ERANGE).map(drop)
}
