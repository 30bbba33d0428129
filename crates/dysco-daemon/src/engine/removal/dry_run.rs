//! Dry runs: they also report what only the proxy's sockets show.

use dysco_api::Reply;
use dysco_proxy::Pair;
use tokio::sync::mpsc;

use super::Removals;
use super::found::{Candidates, Read, Windows};
use crate::engine::Answer;
use crate::engine::core::Core;

impl Removals {
    /// Reads the windows of all sessions that this host's proxies relay, and then continues.
    pub(super) fn read_windows(
        &mut self,
        core: &mut Core,
        found: Candidates,
        replies: &mpsc::Sender<Reply>,
    ) {
        let tasks = found.tasks.iter().enumerate();
        let pairs: Vec<(usize, Pair)> = tasks
            .filter(|(_, task)| task.ask.is_none() && !task.relayed)
            .filter_map(|(at, task)| Some((at, core.host.plane.pair_of_session(&task.subsession)?)))
            .collect();
        if pairs.is_empty() {
            return self.begin_batch(core, found, true, replies);
        }
        let (proxy, answers, replies) = (
            core.host.plane.proxy.clone(),
            core.host.plane.answers.clone(),
            replies.clone(),
        );
        tokio::spawn(async move {
            let sending = proxy.sending(pairs.iter().map(|(_, pair)| *pair).collect());
            let read = pairs.iter().zip(sending.await);
            let read = read.map(|((task, pair), sending)| Read {
                task: *task,
                pair: *pair,
                sending,
            });
            let _ = answers.send(Answer::Windows(Box::new(Windows {
                read: read.collect(),
                found,
                replies,
            })));
        });
    }

    /// Reports the outcome of a dry run whose windows were read.
    pub(in crate::engine) fn go_on_dry(&mut self, core: &mut Core, windows: Windows) {
        let Windows {
            mut found,
            replies,
            read,
        } = windows;
        for r in read {
            let sending = r.sending.as_ref();
            let objection = sending.and_then(|s| core.host.plane.window_objection(&r.pair, s));
            if let (Some(task), Some(reason)) = (found.tasks.get_mut(r.task), objection) {
                task.objections.push(reason.cause());
            }
        }
        self.begin_batch(core, found, true, &replies);
    }
}
