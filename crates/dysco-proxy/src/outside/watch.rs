//! Observation of the counts of a proxy's sockets until it is clear which sockets belong
//! together. The proxy is not affected: descriptors are duplicated for microseconds, and only the
//! kernel's counts are read.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use super::judge::{Verdicts, judge};
use super::pairing::{Counts, Found, Kind, Rules, Series};
use super::unpaired::Unpaired;
use crate::duplicate::{Duplicate, Process};
use crate::held;
use crate::kernel;
use crate::pair::End;
use crate::process::sleeps;
use crate::sys::{cookie, gone, key};
use crate::table::Holder;

/// Pause between looks.
const PAUSE: Duration = Duration::from_millis(2);
/// Number of accepted sockets in one close look, each with its likeliest partners.
const CLOSE_LOOKS: usize = 16;
const PARTNERS: usize = 3;
/// Number of readings in a close look.
const PASSES: usize = 12;
/// Maximum number of moments that are kept, which take megabytes.
const MOMENTS: usize = 500_000;

/// A watched socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watched {
    /// Process and descriptor that have the socket open.
    pub holder: Holder,
    /// Identity of the socket.
    pub end: End,
    /// Time of the session's start, if the data plane knows it.
    pub born: Option<u64>,
}

/// Reason why the watch of a socket ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lost {
    /// The process has ended, or closed the socket.
    Gone,
    /// The descriptor belongs to another socket now.
    Changed,
}

/// Returns the identity of a socket, or `None` if it no longer exists.
pub(super) fn end(process: &Process, fd: i32, opened_here: bool) -> io::Result<Option<End>> {
    let Some(fd) = gone(process.socket(fd))? else {
        return Ok(None);
    };
    Ok(Some(End {
        key: key(&fd)?,
        cookie: cookie(&fd)?,
        opened_here,
    }))
}

/// A watch of sockets, and its observations.
pub(super) struct Watch<'a> {
    processes: &'a HashMap<i32, Process>,
    sockets: &'a [Watched],
    lost: Vec<Option<Lost>>,
    series: Series,
    moments: usize,
    begun: Instant,
}

impl<'a> Watch<'a> {
    /// Begins a watch.
    pub(super) fn new(processes: &'a HashMap<i32, Process>, sockets: &'a [Watched]) -> Watch<'a> {
        let kind = |w: &Watched| Kind {
            accepted: !w.end.opened_here,
            port: w.end.key.local().port(),
            born: w.born,
        };
        Watch {
            processes,
            sockets,
            lost: vec![None; sockets.len()],
            series: Series::new(sockets.iter().map(kind).collect()),
            moments: 0,
            begun: Instant::now(),
        }
    }

    /// Watches until the verdicts on `wanted` are clear or `limit` has passed. Blocks.
    pub(super) fn run(
        mut self,
        rules: &Rules,
        limit: Duration,
        wanted: &[usize],
    ) -> (Verdicts, Vec<Option<Lost>>) {
        let mut verdicts: Verdicts = Vec::new();
        let (mut judged, mut turn) = (Instant::now(), 0);
        let mut cost = Duration::ZERO;
        loop {
            self.look_at_all();
            turn = self.look_closely(&verdicts, turn);
            let over = self.begun.elapsed() >= limit || self.moments >= MOMENTS;
            // Judging many sockets is costly, and takes at most a quarter of the time.
            let due = judged.elapsed() > (3 * cost).max(Duration::from_millis(50));
            if over || (due && self.begun.elapsed() > rules.window) {
                let begun = Instant::now();
                verdicts = judge(&self.series, rules);
                (cost, judged) = (begun.elapsed(), Instant::now());
                let clear = |(a, v): &(usize, Result<Found, Unpaired>)| {
                    let open = v.as_ref().is_err_and(Unpaired::may_pass);
                    !open || self.lost[*a].is_some() || !wanted.contains(a)
                };
                if over || verdicts.iter().all(clear) {
                    return (verdicts, self.lost);
                }
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Reads every socket twice. The counts of a socket that did not move in between were valid
    /// at one moment.
    fn look_at_all(&mut self) {
        let all: Vec<usize> = (0..self.sockets.len()).collect();
        let first = self.read(&all, None);
        let asleep = self.sleeps();
        let second = self.read(&all, None);
        self.keep(&all, &first, &second, asleep);
    }

    /// Returns true if the process of the sockets has no work to do. Only sockets of one process
    /// are watched together.
    fn sleeps(&self) -> bool {
        self.sockets.first().is_some_and(|s| sleeps(s.holder.pid))
    }

    /// Reads a few sockets at a time, because busy sockets are still for microseconds only.
    fn look_closely(&mut self, verdicts: &Verdicts, turn: usize) -> usize {
        let known = |a: &usize| verdicts.iter().any(|(x, v)| x == a && v.is_ok());
        let open: Vec<usize> = (0..self.sockets.len())
            .filter(|a| !self.sockets[*a].end.opened_here && self.series.moved(*a) != (0, 0))
            .filter(|a| !known(a))
            .collect();
        if open.is_empty() {
            return 0;
        }
        for i in 0..open.len().min(CLOSE_LOOKS) {
            let a = open[(turn + i) % open.len()];
            let mut few = self.series.nearest(a, PARTNERS);
            few.push(a);
            let fds: Vec<Option<Duplicate>> = few.iter().map(|i| self.take(*i)).collect();
            let mut before = self.read(&few, Some(&fds));
            for _ in 1..PASSES {
                let now = self.read(&few, Some(&fds));
                self.keep(&few, &before, &now, false);
                before = now;
            }
        }
        (turn + CLOSE_LOOKS) % open.len()
    }

    fn keep(&mut self, which: &[usize], first: &[Reading], second: &[Reading], asleep: bool) {
        let moment = self.series.moment(self.begun.elapsed(), asleep);
        self.moments += 1;
        for ((socket, one), two) in which.iter().zip(first).zip(second) {
            let (Some(one), Some(two)) = (one, two) else {
                continue;
            };
            self.series.reading(*socket, two.read, two.written);
            let counts = Counts {
                read: (one.read == two.read).then_some(two.read),
                written: (one.written == two.written).then_some(two.written),
                no_input: one.no_input && two.no_input,
                has_room: one.has_room && two.has_room,
            };
            self.series.still(moment, *socket, counts);
        }
    }

    fn read(&mut self, which: &[usize], held: Option<&[Option<Duplicate>]>) -> Vec<Reading> {
        let read = |(i, socket): (usize, &usize)| {
            let opened = self.sockets[*socket].end.opened_here;
            let counts = |fd: &Duplicate| kernel::counts(fd, opened).ok().flatten();
            match held {
                Some(held) => held[i].as_ref().and_then(counts),
                None => self.take(*socket).as_ref().and_then(counts),
            }
        };
        which.iter().enumerate().map(read).collect()
    }

    /// Returns a duplicate of a socket's descriptor, if the descriptor still is that socket's.
    fn take(&mut self, socket: usize) -> Option<Duplicate> {
        if self.lost[socket].is_some() {
            return None;
        }
        let Watched { holder, end, .. } = self.sockets[socket];
        let fd = self.processes.get(&holder.pid).map(|p| p.socket(holder.fd));
        self.lost[socket] = match fd {
            Some(Ok(fd)) if held::is(&fd, &end) => return Some(fd),
            Some(Ok(fd)) if cookie(&fd).is_ok_and(|c| c == end.cookie) => Some(Lost::Gone),
            Some(Ok(_)) => Some(Lost::Changed),
            Some(Err(_)) | None => Some(Lost::Gone),
        };
        None
    }
}

/// A reading of a socket; `None` if it met a change.
type Reading = Option<kernel::Still>;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::process::{Child, Command};

    use super::*;

    const RULES: Rules = Rules {
        moments: 8,
        bytes: 1000,
        window: Duration::from_millis(10),
    };

    /// Starts a process with an accepted socket as its input and an opened one as its output.
    fn holder() -> (Child, Vec<Watched>, HashMap<i32, Process>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let opened = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let child = Command::new("sleep")
            .arg("1000")
            .stdin(OwnedFd::from(accepted))
            .stdout(OwnedFd::from(opened))
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let process = Process::open(pid).unwrap();
        let watched = |fd, opened| Watched {
            holder: Holder { pid, fd },
            end: end(&process, fd, opened).unwrap().unwrap(),
            born: None,
        };
        let own = vec![watched(0, false), watched(1, true)];
        (child, own, HashMap::from([(pid, process)]))
    }

    fn lost(own: &[Watched], processes: &HashMap<i32, Process>) -> Vec<Option<Lost>> {
        let watch = Watch::new(processes, own);
        let (verdicts, lost) = watch.run(&RULES, Duration::from_secs(5), &[0]);
        assert!(verdicts.iter().all(|(_, v)| v.is_err()), "{verdicts:?}");
        lost
    }

    #[test]
    fn a_process_that_ends_is_lost_and_not_paired() {
        let (mut child, own, processes) = holder();
        assert_eq!(lost(&own, &processes), [None, None]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(lost(&own, &processes), [Some(Lost::Gone); 2]);
    }

    #[test]
    fn a_descriptor_that_became_another_sockets_is_lost() {
        let (mut child, mut own, processes) = holder();
        own[0].end.cookie += 1_000_000;
        assert_eq!(lost(&own, &processes), [Some(Lost::Changed), None]);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
