//! Exchange between etcd and this host: what etcd has is put in force, and what is in force is told.

use std::path::PathBuf;

use dysco_api::{
    Failure, FailureCode, FleetHost, FleetReport, PublishReport, RefusedPolicy, Reply,
};
use dysco_explain::{Cause, Explain};
use dysco_fleet::{Event, Fleet, OwnState, RevokedList};
use tokio::sync::mpsc;

use super::{Copy, Open, now, peers, settings};
use crate::engine::ThisHost;
use crate::engine::answers::Answer;
use crate::metrics::StoreGauges;

impl ThisHost {
    /// Takes up what a former process had of the store, and connects to a member that is not on a list
    /// of revoked certificates. Call it before the chains are started.
    pub(in crate::engine) fn start_store(&mut self, revoked: Option<RevokedList>) {
        let config = &self.plane.config;
        if !config.has_store() {
            return;
        }
        let settings = settings(config);
        let key = format!("etcd:{}", settings.policy_key());
        let copy = Copy::open(config.removal.state_dir.join("fleet"));
        let kept = copy.kept.clone();
        let answers = self.plane.answers.clone();
        let fleet = Fleet::start(settings, revoked, move |event| {
            // The engine has ended.
            let _ = answers.send(Answer::Store(Box::new(event)));
        });
        let (since, since_1970) = now();
        self.chains.expect_store(PathBuf::from(&key), kept.policy);
        let peers = peers(&config.host.addresses, &config.host.name, &kept.hosts);
        self.chains.take_store_peers(&self.plane, peers);
        self.store.open = Some(Open {
            fleet,
            key,
            url: None,
            connected: false,
            error: None,
            since,
            since_1970,
            copy,
        });
    }

    /// Connects to no member of the store that is on a list of revoked certificates.
    pub(in crate::engine) fn set_revoked(&self, list: Option<RevokedList>) {
        if let Some(open) = &self.store.open {
            open.fleet.set_revoked(list);
        }
    }

    /// Takes an event of the store.
    pub(in crate::engine) fn take_store(&mut self, event: Event) {
        let Some(open) = &mut self.store.open else {
            return;
        };
        match event {
            Event::Connected { url } => {
                open.error = None;
                let text = format!("etcd at {url} answers");
                open.url = Some(url);
                if open.turns(true) {
                    self.plane.report("etcd_connected", None, text);
                }
            }
            Event::Lost(error) => {
                let is_first = open.error.is_none();
                let is_news = open.turns(false) || is_first;
                open.error = Some(error.explain().into());
                if is_news {
                    let text = format!("{error}; what etcd had stays in force");
                    tracing::warn!("{text}");
                    self.plane.tell_monitors("etcd_lost", None, text);
                }
            }
            Event::Contents(contents) => {
                let published = contents.policy.as_ref();
                self.chains.take_published(&mut self.plane, published);
                let host = &self.plane.config.host;
                let peers = peers(&host.addresses, &host.name, &contents.hosts);
                self.chains.take_store_peers(&self.plane, peers);
                // Changes of hosts are many when a fleet starts, and are written with the sweep.
                if open.copy.set(self.chains.published(), contents.hosts) {
                    open.copy.write();
                }
            }
        }
        self.tell_store();
    }

    /// Tells the other hosts which policy is in force here.
    pub(in crate::engine) fn tell_store(&self) {
        if let Some(open) = &self.store.open {
            let state: OwnState = self.chains.own_state();
            open.fleet.set_own(state);
        }
    }

    /// Writes the copy of what etcd has. To be called from time to time.
    pub(in crate::engine) fn flush_store(&mut self) {
        if let Some(open) = &mut self.store.open {
            open.copy.write();
        }
    }

    /// Carries out `policy publish`.
    pub(in crate::engine) fn publish(&self, text: String, replies: mpsc::Sender<Reply>) {
        let failed = |code, cause: Cause| {
            let reported = cause.of("publish the policy");
            Reply::Error(Failure::new(code, reported))
        };
        let Some(open) = &self.store.open else {
            let cause = Cause::new("this host has no etcd")
                .hint("name its members under [fleet] (/usr/share/doc/dysco/run-a-fleet.md), or put the file in force here alone with 'dyscoctl policy apply'");
            let _ = replies.try_send(failed(FailureCode::BadRequest, cause));
            return;
        };
        if let Err(cause) = self.chains.check_published(&text) {
            let _ = replies.try_send(failed(FailureCode::BadRequest, cause));
            return;
        }
        let (publisher, key) = (open.fleet.publisher(), open.key.clone());
        tokio::spawn(async move {
            let reply = match publisher.publish(text).await {
                Ok(revision) => Reply::Published(PublishReport { key, revision }),
                Err(error) => failed(FailureCode::Refused, error.explain().into()),
            };
            // The client has left.
            let _ = replies.send(reply).await;
        });
    }

    /// Returns the state of the store; none if none is configured.
    pub(in crate::engine) fn store_report(&self) -> Option<FleetReport> {
        let open = self.store.open.as_ref()?;
        let hosts = open.copy.kept.hosts.iter();
        let hosts = hosts.map(|(name, host)| FleetHost {
            name: name.clone(),
            addresses: host.addresses.clone(),
            policy: host.policy,
            refused: host.refused.as_ref().map(|refused| RefusedPolicy {
                revision: refused.revision,
                why: refused.why.clone(),
            }),
        });
        Some(FleetReport {
            key: open.key.clone(),
            connected: open.connected,
            url: open.url.clone(),
            for_s: open.since.elapsed().as_secs(),
            error: open.error.clone(),
            policy: self.chains.published().map(|p| p.revision),
            refused: self.chains.refused_of_store().cloned(),
            hosts: hosts.collect(),
        })
    }

    /// Returns the numbers of the store for metrics; none if none is configured.
    pub(in crate::engine) fn store_gauges(&self) -> Option<StoreGauges> {
        let open = self.store.open.as_ref()?;
        Some(StoreGauges {
            up: open.connected,
            since: open.since_1970,
            policy: self.chains.published().map(|p| p.revision),
            refused: self.chains.refused_of_store().is_some(),
            hosts: open.copy.kept.hosts.len() as u64,
        })
    }
}
