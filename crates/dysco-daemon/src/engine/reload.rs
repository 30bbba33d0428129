//! Takes another configuration, other keys and another policy while `dyscod` runs. All files are
//! read and checked first; an error in any leaves everything unchanged.

pub(super) mod files;
mod revoked;

use std::time::{Duration, Instant};

use dysco_api::{Failure, FailureCode, KeysReport, ReloadReport, Reply};
use dysco_config::{Config, Source};
use dysco_explain::{Cause, Explain};
use dysco_fleet::RevokedList;
use dysco_pki::{Credentials, Revocations};
use dysco_scheduling::spawn_long;
use tokio::sync::mpsc;

use super::sections::{agent_config, proxy_config};
use super::{Answer, Engine, Plane, ThisHost};
use crate::{api, metrics};
use files::{Asker, Files, Reread, read};
pub(super) use revoked::KeptList;

const HINT: &str = "nothing was changed; try the file with 'dyscod --check'";

/// Interval between warnings of certificates that expire soon.
const DAY: Duration = Duration::from_secs(86_400);

/// Data needed to read everything again.
pub(super) struct Reload {
    source: Source,
    credentials: Credentials,
    list: KeptList,
    /// Time of the last check whether the certificates expire soon.
    looked: Option<Instant>,
    /// True while the files are being read.
    reading: bool,
    /// True if a SIGHUP arrived meanwhile, so that the files are read again afterwards.
    again: bool,
}

impl Reload {
    pub(super) fn new(source: Source, credentials: Credentials, list: KeptList) -> Reload {
        Reload {
            source,
            credentials,
            list,
            looked: None,
            reading: false,
            again: false,
        }
    }

    /// Returns true if the previous process has revoked as much as this one did at its start.
    pub(super) fn list_is_same(&self) -> bool {
        self.list.is_same
    }

    /// Returns the list of revoked certificates in use.
    pub(super) fn revoked(&self) -> Option<RevokedList> {
        list_of(&self.credentials)
    }

    /// Returns how long the certificates in use are valid.
    pub(super) fn keys(&self) -> KeysReport {
        let [authority_days, certificate_days] = self.credentials.days_left();
        KeysReport {
            authority_days,
            certificate_days,
        }
    }

    /// Warns of certificates that expire soon, once a day.
    pub(crate) fn warn_of_keys(&mut self, now: Instant) {
        if self.looked.is_some_and(|at| now - at < DAY) {
            return;
        }
        self.looked = Some(now);
        if let Some(trouble) = self.keys().trouble() {
            tracing::warn!("{trouble}");
        }
    }
}

fn failure(code: FailureCode, cause: impl Into<Cause>) -> Failure {
    let mut cause = cause.into();
    cause.hint = Some(match cause.hint {
        Some(own) => format!("{own}; {HINT}"),
        None => HINT.to_owned(),
    });
    Failure::new(code, cause.of("reload"))
}

impl Reload {
    /// Reads everything again, beside the engine's own work.
    pub(super) fn begin(
        &mut self,
        answers: &mpsc::UnboundedSender<Answer>,
        dry_run: bool,
        asker: Asker,
    ) {
        if self.reading {
            match asker {
                None => self.again = true,
                Some(asker) => {
                    let cause = Cause::new("another reload is in progress").hint("ask again");
                    let _ = asker.try_send(Reply::Error(failure(FailureCode::Busy, cause)));
                }
            }
            return;
        }
        self.reading = true;
        if !dry_run {
            crate::notify::notify_reloading();
        }
        let (source, answers) = (self.source.clone(), answers.clone());
        spawn_long(move || {
            let files = read(&source).map_err(|e| failure(FailureCode::BadRequest, e));
            let read = Reread {
                dry_run,
                asker,
                files,
            };
            // The engine has ended.
            let _ = answers.send(Answer::Reread(Box::new(read)));
        });
    }

    /// Returns what differs in the files, if it can be taken up.
    fn differences(
        &self,
        host: &ThisHost,
        files: &Files,
        dry_run: bool,
    ) -> Result<ReloadReport, Failure> {
        let internal = |e| failure(FailureCode::Internal, Cause::new(e));
        let taken = host.plane.config.taking(&files.config);
        let (old, new) = (&self.credentials, &files.credentials);
        let policy = host.chains.of_file(files.policy.clone());
        let policy = policy.map_err(|e| failure(FailureCode::BadRequest, e))?;
        let path = &files.config.chain.policy;
        let policy = host.chains.is_other_policy(path, policy);
        if let Err(why) = Revocations::of(old).check_next(new) {
            let path = files.config.control.pki.revoked.display();
            let cause = Cause::new(why).after(format!("the list of revoked certificates {path}"));
            return Err(failure(FailureCode::BadRequest, cause.hint(revoked::HINT)));
        }
        let others = [
            ("certificate", old.cert != new.cert),
            ("authority", old.ca != new.ca),
            ("revoked", old.revoked != new.revoked),
            (
                "policy",
                policy.map_err(|e| failure(FailureCode::BadRequest, e.explain()))?,
            ),
        ];
        let others = others.into_iter().filter(|(_, other)| *other);
        Ok(ReloadReport {
            dry_run,
            changed: host.plane.config.changes_to(&taken).map_err(internal)?,
            files: others.map(|(name, _)| name.to_owned()).collect(),
            needs_restart: taken.changes_to(&files.config).map_err(internal)?,
        })
    }
}

impl Engine {
    /// Takes up the files that were read, or reports why not.
    pub(super) fn reload(&mut self, read: Reread) {
        self.reload.reading = false;
        let done = read.files.and_then(|files| {
            let report = (self.reload).differences(&self.core.host, &files, read.dry_run)?;
            if !read.dry_run {
                self.take_up_files(files, &report)?;
            }
            Ok(report)
        });
        if !read.dry_run {
            match &done {
                Ok(report) => {
                    self.core.host.plane.report("reloaded", None, text(report));
                    self.namespaces.reload();
                }
                Err(failure) => {
                    tracing::error!("{failure}");
                    self.core
                        .host
                        .plane
                        .tell_monitors("reload_refused", None, failure.to_string());
                }
            }
            crate::notify::notify_ready();
        }
        if let Some(asker) = read.asker {
            // The client's channel is fresh and has room, or the client has left.
            let _ = asker.try_send(done.map_or_else(Reply::Error, Reply::Reloaded));
        }
        if std::mem::take(&mut self.reload.again) {
            (self.reload).begin(&self.core.host.plane.answers, false, None);
        }
    }

    /// Takes the steps that may fail first, and undoes them after a failure. Then takes the other
    /// steps.
    fn take_up_files(&mut self, files: Files, report: &ReloadReport) -> Result<(), Failure> {
        let refused = |cause: Cause| failure(FailureCode::Refused, cause);
        let taken = self.core.host.plane.config.taking(&files.config);
        let before = self.core.host.plane.config.clone();
        dysco_config::change_filter(&taken.log).map_err(|e| refused(Cause::new(e)))?;
        let fallible = admit(&self.api, &self.metrics, taken.api.gid)
            .and_then(|()| add_interfaces(&self.core.host.plane, &taken))
            .and_then(|()| track(&self.core.host.plane, &taken))
            .and_then(|()| {
                let (chains, plane) = (&mut self.core.host.chains, &mut self.core.host.plane);
                let policy = chains.of_file(files.policy)?;
                chains.take_up_policy(plane, &taken.chain.policy, policy)
            });
        if let Err(why) = fallible {
            self.undo(&before, &taken);
            return Err(refused(why));
        }
        for gone in only_in(&before, &taken) {
            self.core.host.plane.agent.remove_interface(gone);
        }
        let open = self.core.host.plane.control.take_up(files.renewal);
        self.gauges.renew(&files.credentials);
        if let Err(error) = self.metrics.renew(&files.credentials) {
            tracing::error!(%error, "readers of metrics are accepted by the keys before");
        }
        self.reload.list.keep(&files.credentials);
        (self.core.host).set_revoked(list_of(&files.credentials));
        self.reload.credentials = files.credentials;
        self.reload.looked = None;
        let refuses = |name: &String| ["revoked", "authority"].contains(&name.as_str());
        if report.files.iter().any(refuses) {
            (self.core.host.chains).forget_closed_keys(&self.core.host.plane, &open);
        }
        self.core.host.plane.proxy.configure(&proxy_config(&taken));
        self.removals.set_concurrency(taken.removal.concurrency);
        let local = taken.removal.mode == dysco_api::Mode::Local;
        self.core.machine().answer_asks_locally(local);
        let sees_more = before.track != taken.track || only_in(&taken, &before).next().is_some();
        self.core.host.plane.config = taken;
        self.core.host.services.preload(&self.core.host.plane);
        if sees_more {
            self.adopting.begin(&self.core.host.plane, None);
        }
        Ok(())
    }

    /// Undoes the steps that were taken for another configuration.
    fn undo(&self, before: &Config, taken: &Config) {
        for added in only_in(taken, before) {
            self.core.host.plane.agent.remove_interface(added);
        }
        let undone = [
            admit(&self.api, &self.metrics, before.api.gid),
            track(&self.core.host.plane, before),
            dysco_config::change_filter(&before.log).map_err(Cause::new),
        ];
        for error in undone.into_iter().filter_map(Result::err) {
            tracing::error!(%error, "a part of the refused configuration is in force");
        }
    }
}

/// Gives the sockets of the API and of metrics to a group.
fn admit(api: &api::Server, metrics: &metrics::Server, read_gid: Option<u32>) -> Result<(), Cause> {
    let api = api.set_policy(api::Policy { read_gid });
    // Each is tried: this undoes a failed attempt, too.
    let metrics = metrics.admit(read_gid);
    api.and(metrics).map_err(|e| e.explain().into())
}

fn add_interfaces(plane: &Plane, new: &Config) -> Result<(), Cause> {
    for gone in only_in(&plane.config, new) {
        may_leave(plane, gone)?;
    }
    let attach = agent_config(new).attach;
    for name in only_in(new, &plane.config) {
        let added = plane.agent.add_interface(name, attach);
        added.map_err(|e| e.explain())?;
    }
    Ok(())
}

/// Returns an error if sessions leave by an interface: they would stop without the programs
/// there.
fn may_leave(plane: &Plane, interface: &str) -> Result<(), Cause> {
    let ours = plane.config.host.interfaces.iter();
    let index = { ours }.find(|i| i.name == interface).map(|i| i.index);
    match index.map_or(0, |index| plane.agent.leaving_by(index)) {
        0 => Ok(()),
        count => Err(Cause::new(format!(
            "{interface} cannot be left out of interfaces: {count} changed sessions leave by it"
        ))
        .hint("wait for their end")),
    }
}

fn track(plane: &Plane, new: &Config) -> Result<(), Cause> {
    (plane.agent.track(&new.rules())).map_err(|e| e.explain().into())
}

/// Returns the interfaces that the first configuration has and the second has not.
fn only_in<'a>(one: &'a Config, other: &'a Config) -> impl Iterator<Item = &'a str> {
    let has = |name: &str| other.host.interfaces.iter().any(|i| i.name == name);
    let names = one.host.interfaces.iter().map(|i| i.name.as_str());
    names.filter(move |name| !has(name))
}

/// Returns a report's text for the log.
fn text(report: &ReloadReport) -> String {
    let keys = report.changed.iter().map(|change| change.key.as_str());
    let changed: Vec<_> = keys
        .chain(report.files.iter().map(String::as_str))
        .collect();
    let changed = match changed.is_empty() {
        true => "nothing has changed".to_owned(),
        false => format!("reloaded: {}", changed.join(", ")),
    };
    let left = report.needs_restart.iter().map(|c| c.key.as_str());
    match left.collect::<Vec<_>>().join(", ").as_str() {
        "" => changed,
        left => format!("{changed}; needs a restart: {left}"),
    }
}

/// Returns the list of revoked certificates that credentials have, with its authority.
fn list_of(credentials: &Credentials) -> Option<RevokedList> {
    Some(RevokedList {
        list: credentials.revoked.clone()?,
        authority: credentials.ca.clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[tokio::test]
    async fn another_group_gets_both_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let [asked, read] = ["dyscod.sock", "metrics.sock"].map(|name| dir.path().join(name));
        let config = api::ServerConfig {
            socket: asked.clone(),
            policy: api::Policy::default(),
        };
        let api = api::serve(config, mpsc::channel(1).0).unwrap();
        let config = metrics::ServerConfig {
            socket: read.clone(),
            gid: None,
            listen: None,
            tls: None,
        };
        let metrics = metrics::serve(config, mpsc::channel(1).0).unwrap();
        let of_both = || {
            [&asked, &read].map(|path| {
                let there = path.metadata().unwrap();
                (there.mode() & 0o777, there.gid())
            })
        };
        assert_eq!(of_both(), [(0o600, 0); 2]);
        admit(&api, &metrics, Some(4242)).unwrap();
        assert_eq!(of_both(), [(0o660, 4242); 2]);
        admit(&api, &metrics, None).unwrap();
        assert_eq!(of_both(), [(0o600, 0); 2]);
        // One that cannot be given away keeps nothing from the other.
        std::fs::remove_file(&asked).unwrap();
        assert!(admit(&api, &metrics, Some(4242)).is_err());
        assert_eq!(read.metadata().unwrap().gid(), 4242);
    }
}
