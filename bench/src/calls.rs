//! Time that the shim adds to each call of a program: the same calls of the same program with the
//! shim and without it, in turns.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use dysco_netns::Host;
use dysco_netns::fleet::built;
use serde_json::{Map, Value, json};

use crate::Effort;
use crate::figure::{Figure, median};
use crate::pair::{fix_buffers, stay};

/// Number of calls per block, with one byte each, and number of blocks. The fastest block counts.
const BLOCK: usize = 10_000;
const BLOCKS: usize = 20;
const BUFFER: usize = 1 << 20;

const NAMES: [&str; 4] = ["recv", "send", "splice_read", "epoll_wait"];

/// A call from [`NAMES`]. Returns true if the call was successful.
type Call<'a> = Box<dyn FnMut() -> bool + 'a>;

/// Makes all calls, and prints the time of each in nanoseconds.
pub(crate) fn make() -> Result<()> {
    stay(0);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut peer, _) = listener.accept()?;
    for end in [&near, &peer] {
        fix_buffers(end, BUFFER)?;
    }
    let fd = near.as_raw_fd();
    let (out, into) = nix::unistd::pipe()?;
    let epoll = nix::sys::epoll::Epoll::new(nix::sys::epoll::EpollCreateFlags::empty())?;
    let mut all = Map::new();
    for name in NAMES {
        let call: Call<'_> = match name {
            "recv" => Box::new(|| recv(fd)),
            "send" => Box::new(|| send(fd)),
            "splice_read" => Box::new(|| splice(fd, into.as_raw_fd()) && read(out.as_raw_fd())),
            _ => Box::new(|| epoll.wait(&mut [], 0u8).is_err()),
        };
        let (filled, drained) = match name {
            "recv" | "splice_read" => (true, false),
            other => (false, other == "send"),
        };
        // Data that is sent byte by byte stays together, and the peer sleeps.
        cork(fd, drained)?;
        let ns = quickest(call, |after| {
            if filled && !after {
                peer.write_all(&[0; BLOCK])?;
                wait_for(&near)?;
            }
            if drained && after {
                cork(fd, false)?;
                peer.read_exact(&mut [0; BLOCK])?;
                cork(fd, true)?;
            }
            Ok(())
        });
        all.insert(
            name.into(),
            json!(ns.with_context(|| format!("failed to {name}"))?),
        );
    }
    near.flush()?;
    println!("{}", Value::from(all));
    Ok(())
}

/// Nanoseconds of a call in the fastest of all blocks. `around` is called before and after each
/// block.
fn quickest(mut call: Call<'_>, mut around: impl FnMut(bool) -> Result<()>) -> Result<f64> {
    let mut best = f64::MAX;
    for _ in 0..BLOCKS {
        around(false)?;
        let start = Instant::now();
        let done = (0..BLOCK).all(|_| call());
        let took = start.elapsed().as_secs_f64() * 1e9 / BLOCK as f64;
        ensure!(done, "a call failed: {}", std::io::Error::last_os_error());
        best = best.min(took);
        around(true)?;
    }
    Ok(best)
}

/// Waits until a whole block can be read.
fn wait_for(socket: &TcpStream) -> Result<()> {
    dysco_netns::wait::until("bytes to read", std::time::Duration::from_secs(5), || {
        (socket.peek(&mut [0; BLOCK]).ok()? == BLOCK).then_some(())
    })
}

/// Sets whether the kernel delays data until it fills a segment.
fn cork(fd: i32, on: bool) -> Result<()> {
    let on = i32::from(on);
    let (at, len) = ((&raw const on).cast(), size_of_val(&on) as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes of a number that outlives the call.
    let done = unsafe { libc::setsockopt(fd, libc::SOL_TCP, libc::TCP_CORK, at, len) };
    ensure!(done == 0, "{}", std::io::Error::last_os_error());
    Ok(())
}

fn recv(fd: i32) -> bool {
    let mut byte = 0u8;
    // SAFETY: the buffer has room for the one requested byte.
    unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) == 1 }
}

fn send(fd: i32) -> bool {
    let byte = 0u8;
    // SAFETY: the buffer holds the one byte that is sent.
    unsafe { libc::send(fd, (&raw const byte).cast(), 1, libc::MSG_DONTWAIT) == 1 }
}

fn splice(from: i32, to: i32) -> bool {
    let none = std::ptr::null_mut();
    // SAFETY: both descriptors are open, and no offset is given.
    unsafe { libc::splice(from, none, to, none, 1, libc::SPLICE_F_NONBLOCK) == 1 }
}

fn read(fd: i32) -> bool {
    let mut byte = 0u8;
    // SAFETY: the buffer has room for the one requested byte.
    unsafe { libc::read(fd, (&raw mut byte).cast(), 1) == 1 }
}

/// Figures of the time that the shim adds to each of [`NAMES`] on a host with `dyscod`.
pub(crate) fn figures(effort: &Effort, host: &Host) -> Result<Vec<Figure>> {
    let own = std::env::current_exe().context("failed to find this program's own path")?;
    let (own, dyscoctl) = (own.to_string_lossy(), built("dyscoctl")?);
    let dyscoctl = dyscoctl.to_string_lossy();
    let times = |program: &str, words: &[&str]| -> Result<[f64; NAMES.len()]> {
        let text = host.output(program, words)?;
        let reported: Value = serde_json::from_str(&text).context("no times were printed")?;
        let mut times = [0.0; NAMES.len()];
        for (time, name) in times.iter_mut().zip(NAMES) {
            let ns = reported[name].as_f64();
            *time = ns.with_context(|| format!("the output has no time of {name}: {text}"))?;
        }
        Ok(times)
    };
    let mut bare = NAMES.map(|_| Vec::new());
    let mut under = NAMES.map(|_| Vec::new());
    for turn in 0..effort.pick(12, 2) {
        for shimmed in [turn % 2 == 0, turn % 2 == 1] {
            let (times, all) = match shimmed {
                true => (times(&dyscoctl, &["run", "--", &own, "calls"])?, &mut under),
                false => (times(&own, &["calls"])?, &mut bare),
            };
            all.iter_mut().zip(times).for_each(|(all, ns)| all.push(ns));
        }
    }
    let each = NAMES.iter().zip(bare.iter().zip(&under));
    let figure = |(name, (bare, under)): (&&str, (&Vec<f64>, &Vec<f64>))| {
        let added = under.iter().zip(bare).map(|(under, bare)| under - bare);
        Figure::median(format!("shim_added_ns_{name}"), "ns", added.collect())
            .aside("without, ns", median(bare))
            .aside("under the shim, ns", median(under))
    };
    Ok(each.map(figure).collect())
}
