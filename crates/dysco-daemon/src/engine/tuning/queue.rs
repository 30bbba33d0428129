//! Queue of requests.

use std::collections::VecDeque;

use super::Job;

/// Maximum number of root's requests that wait.
const ROOTS: usize = 32;
/// Maximum number of readers' requests that wait, so that root's come to their turn.
const READERS: usize = 8;

/// Requests that wait, in the order of their arrival.
#[derive(Default)]
pub(super) struct Queue(VecDeque<Job>);

impl Queue {
    /// Adds a request, or returns it if there is no room. A request whose client has left takes no
    /// room.
    pub(super) fn push(&mut self, job: Job) -> Option<Job> {
        self.0.retain(|job| !job.is_abandoned());
        let is_root = job.caller.is_root();
        let of_kind = self.0.iter().filter(|job| job.caller.is_root() == is_root);
        let room = if is_root { ROOTS } else { READERS };
        if of_kind.count() >= room {
            return Some(job);
        }
        self.0.push_back(job);
        None
    }

    /// Returns the next request whose client is there.
    pub(super) fn take(&mut self) -> Option<Job> {
        while let Some(job) = self.0.pop_front() {
            if !job.is_abandoned() {
                return Some(job);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use dysco_api::{Reply, Tune, TuneAction};
    use tokio::sync::mpsc;

    use super::*;
    use crate::api::Caller;

    fn job(uid: u32) -> (Job, mpsc::Receiver<Reply>) {
        let (replies, client) = mpsc::channel(1);
        let request = Tune {
            sessions: Vec::new(),
            all: true,
            filter: Default::default(),
            action: TuneAction::Restore,
            dry_run: true,
        };
        let caller = Caller {
            pid: 1,
            uid,
            gids: Vec::new(),
            process: None,
        };
        let job = Job {
            request,
            caller,
            replies,
        };
        (job, client)
    }

    #[test]
    fn a_request_whose_client_has_left_is_not_carried_out() {
        let mut queue = Queue::default();
        let (first, gone) = job(0);
        let (second, _there) = job(7);
        assert!(queue.push(first).is_none() && queue.push(second).is_none());
        drop(gone);
        assert_eq!(queue.take().unwrap().caller.uid, 7);
        assert!(queue.take().is_none());
    }

    #[test]
    fn readers_do_not_take_the_room_of_root() {
        let mut queue = Queue::default();
        let mut clients = Vec::new();
        let mut push = |queue: &mut Queue, uid| {
            let (job, client) = job(uid);
            let pushed = queue.push(job).is_none();
            clients.push(client);
            pushed
        };
        assert!((0..READERS).all(|_| push(&mut queue, 7)));
        assert!(!push(&mut queue, 8));
        assert!((0..ROOTS).all(|_| push(&mut queue, 0)));
        assert!(!push(&mut queue, 0));
        // Those who have left make room.
        clients.remove(0);
        let (last, _client) = job(8);
        assert!(queue.push(last).is_none());
    }
}
