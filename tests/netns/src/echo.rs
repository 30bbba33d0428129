//! An echo server, and clients that check its answers.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Socket, Type};

use crate::Host;

const PATIENCE: Duration = Duration::from_secs(60);

/// Serves on a host, as long as the host lives.
pub fn serve(host: &Host, at: SocketAddr) -> Result<()> {
    let listener = host.run(move || TcpListener::bind(at));
    let listener = listener.with_context(|| format!("failed to listen on {at}"))?;
    let serving = host.thread("echo", move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || echo(stream));
        }
    });
    serving.map(drop)
}

fn echo(mut stream: TcpStream) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(n @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..n]).is_err() {
            return;
        }
    }
}

/// Opens a session from a port of a host; 0 means any port.
pub fn connect(host: &Host, port: u16, to: SocketAddr) -> Result<TcpStream> {
    let connected = host.run(move || {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        if port != 0 {
            let any = if to.is_ipv4() { "0.0.0.0" } else { "::" };
            let ip: std::net::IpAddr = any.parse().map_err(io::Error::other)?;
            socket.bind(&SocketAddr::new(ip, port).into())?;
        }
        socket.connect_timeout(&to.into(), PATIENCE)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok::<_, io::Error>(stream)
    });
    connected.with_context(|| format!("failed to connect to {to}"))
}

/// Sets a TCP option for which there is no other call.
fn tcp_option<T>(socket: &Socket, name: i32, value: &T) -> io::Result<()> {
    let (at, size) = (std::ptr::from_ref(value).cast(), size_of::<T>() as u32);
    // SAFETY: the kernel reads `size` bytes of a value that outlives the call.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, name, at, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The kernel's `struct tcp_md5sig` (include/uapi/linux/tcp.h).
#[repr(C)]
struct Signature {
    peer: libc::sockaddr_storage,
    flags: u8,
    prefix: u8,
    length: u16,
    interface: u32,
    key: [u8; 80],
}

/// Makes a socket sign what it exchanges with this peer (TCP-MD5, RFC 2385), with the key of all
/// sockets that are signed so.
pub fn sign(socket: &Socket, peer: SocketAddr) -> io::Result<()> {
    let mut signature = Signature {
        // SAFETY: all zeroes are an address of no family.
        peer: unsafe { std::mem::zeroed() },
        flags: 0,
        prefix: 0,
        length: 4,
        interface: 0,
        key: [7; 80],
    };
    let address = socket2::SockAddr::from(SocketAddr::new(peer.ip(), 0));
    // SAFETY: the address fits the storage, which holds any address.
    unsafe {
        let to = std::ptr::from_mut(&mut signature.peer).cast::<u8>();
        to.copy_from_nonoverlapping(address.as_ptr().cast(), address.len() as usize);
    }
    tcp_option(socket, libc::TCP_MD5SIG, &signature)
}

/// Opens a session with TCP Fast Open: its first message is in the SYN.
pub fn connect_with_data(host: &Host, to: SocketAddr) -> Result<TcpStream> {
    let connected = host.run(move || {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        tcp_option(&socket, libc::TCP_FASTOPEN_CONNECT, &1_i32)?;
        socket.connect(&to.into())?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok::<_, io::Error>(stream)
    });
    connected.context("failed to connect with data")
}

/// Sends this number of messages of 1000 bytes that begin with `first`, one after the other. Each
/// must return unchanged.
pub fn talk(stream: &mut TcpStream, first: u8, messages: usize) -> Result<()> {
    for message in 0..messages {
        let said = vec![first.wrapping_add(message as u8); 1000];
        stream.write_all(&said).context("failed to say something")?;
        let mut heard = vec![0; said.len()];
        stream
            .read_exact(&mut heard)
            .context("failed to hear it again")?;
        ensure!(said == heard, "what came back is not what was said");
    }
    Ok(())
}

/// Ends a session by a reset.
pub fn reset(stream: TcpStream) -> Result<()> {
    let lingers = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    lingers.context("failed to set up a reset")
}
