//! Socket options of sessions' ends, set on request and put back on request.
//!
//! Requests are carried out one after the other, each in two steps by tasks: the first reads what
//! the sockets have, and the second sets options. In between the engine writes down what was
//! there, so that a daemon that dies can put it back.

mod choice;
pub(super) mod end;
mod queue;
mod record;
mod report;

use dysco_api::{Failure, FailureCode, Reply, SessionId, SessionName, Tune, TuneAction};
use dysco_common::FlowKey;
use dysco_explain::Cause;
use dysco_proxy::tuning::{self, Carried, Plan, TuneError, Wish};
use dysco_scheduling::spawn_long;
use tokio::sync::mpsc;

use super::{Answer, Plane};
use crate::api::Caller;
use choice::{Target, targets};
use queue::Queue;
pub(super) use record::{Entry, Tunings};
use report::Told;

/// Requests, of which one is carried out.
#[derive(Default)]
pub(super) struct Tuner {
    waiting: Queue,
    busy: bool,
}

/// A request, and the client that waits for its result.
struct Job {
    request: Tune,
    caller: Caller,
    replies: mpsc::Sender<Reply>,
}

impl Job {
    /// Returns true if the client has left: nobody would hear the result.
    fn is_abandoned(&self) -> bool {
        self.replies.is_closed()
    }
}

/// Request that is carried out.
struct Batch {
    job: Job,
    targets: Vec<Target>,
}

/// Changes of a socket that are made, and the record's entry before.
struct Made {
    plan: Plan,
    before: Option<Entry>,
}

/// Result of a task.
pub(super) struct Step {
    batch: Batch,
    done: Done,
}

enum Done {
    /// Plans for the targets with a wish, in their order.
    Planned(Result<Vec<Result<Plan, TuneError>>, TuneError>),
    /// Results for all targets.
    CarriedOut(Vec<Outcome>),
}

/// Result for one target: nothing was tried, or a plan was carried out.
enum Outcome {
    Told(Told),
    Tried(Made, Result<Carried, TuneError>),
}

impl Tuner {
    /// Takes a request.
    pub(super) fn tune(
        &mut self,
        plane: &Plane,
        request: Tune,
        caller: Caller,
        replies: mpsc::Sender<Reply>,
    ) {
        let job = Job {
            request,
            caller,
            replies,
        };
        if let Some(job) = self.waiting.push(job) {
            let cause = Cause::new("too many other requests wait").hint("ask again");
            let explained = cause.of("tune sessions");
            fail(&job, Failure::new(FailureCode::Busy, explained));
        }
        self.begin_next(plane);
    }

    /// Begins the next request, unless one is carried out.
    fn begin_next(&mut self, plane: &Plane) {
        while !self.busy
            && let Some(job) = self.waiting.take()
        {
            match targets(plane, &job.request) {
                Ok(targets) => {
                    self.busy = true;
                    plan(plane, Batch { job, targets });
                }
                Err(failure) => fail(&job, failure),
            }
        }
    }

    /// Takes the result of a task.
    pub(super) fn take(&mut self, plane: &mut Plane, step: Step) {
        let Step { batch, done } = step;
        match done {
            Done::Planned(_) if batch.job.is_abandoned() => {}
            Done::Planned(Ok(plans)) if batch.job.request.dry_run => {
                let reported = planned(&batch, plans).map(|plan| match plan {
                    Ok(plan) => Told::could(&batch.job.request, &plan),
                    Err(reported) => reported,
                });
                let reported = reported.collect();
                report::send(batch, reported);
            }
            Done::Planned(Ok(plans)) => return carry_out(plane, batch, plans),
            Done::Planned(Err(error)) => fail(&batch.job, failure(&error)),
            Done::CarriedOut(all) => {
                let both = batch.targets.iter().zip(all);
                let reported = both.map(|(target, outcome)| match outcome {
                    Outcome::Told(reported) => reported,
                    Outcome::Tried(made, result) => {
                        settle(plane, &batch.job, target.session, made, result)
                    }
                });
                let reported = reported.collect();
                plane.tunings.flush();
                report::send(batch, reported);
            }
        }
        self.busy = false;
        self.begin_next(plane);
    }
}

/// Begins to read the sockets of a request.
fn plan(plane: &Plane, batch: Batch) {
    let answers = plane.answers.clone();
    // The processes of the host are searched for the sockets.
    spawn_long(move || {
        let wish = |target: &Target| Some((target.key, target.wish.clone().ok()?));
        let wishes: Vec<(FlowKey, Wish)> = batch.targets.iter().filter_map(wish).collect();
        let available = match &batch.job.request.action {
            TuneAction::Set(options) => tuning::check(options),
            TuneAction::Restore => Ok(()),
        };
        let plans = available.and_then(|()| tuning::plan(&wishes, batch.job.caller.user()));
        let done = Done::Planned(plans);
        let _ = answers.send(Answer::Tuned(Box::new(Step { batch, done })));
    });
}

/// Returns the plan for each target, or the refusal.
fn planned(
    batch: &Batch,
    plans: Vec<Result<Plan, TuneError>>,
) -> impl Iterator<Item = Result<Plan, Told>> {
    let mut plans = plans.into_iter();
    batch.targets.iter().map(move |target| match &target.wish {
        Err(cause) => Err(Told::refused(cause.clone())),
        // There is a plan for each wish.
        Ok(_) => match plans.next().unwrap_or(Err(TuneError::NoSocket)) {
            Ok(plan) => Ok(plan),
            Err(error) => Err(Told::refused(error.cause())),
        },
    })
}

/// Writes down what the sockets have, and begins to set options.
fn carry_out(plane: &mut Plane, batch: Batch, plans: Vec<Result<Plan, TuneError>>) {
    let over: Vec<bool> = plans.iter().map(is_over).collect();
    let wishes = batch.targets.iter().filter(|target| target.wish.is_ok());
    for (target, _) in wishes.zip(over).filter(|(_, over)| *over) {
        plane.tunings.forget(plane.names.now(target.session));
    }
    let mut all = Vec::with_capacity(batch.targets.len());
    for (target, plan) in batch.targets.iter().zip(planned(&batch, plans)) {
        all.push(plan.map(|plan| {
            let session = plane.names.now(target.session);
            let before = plane.tunings.get(session).cloned();
            let cookie = plan.socket.cookie;
            // An option stays in the record until it is restored.
            if batch.job.request.action != TuneAction::Restore && !plan.changes.is_empty() {
                let entry = Entry::planned(before.as_ref(), cookie, &plan.changes);
                plane.tunings.put(session, Some(entry));
            }
            Made { plan, before }
        }));
    }
    plane.tunings.flush();
    let answers = plane.answers.clone();
    spawn_long(move || {
        let carry = |one: Result<Made, Told>| match one {
            Ok(made) => {
                let result = tuning::carry_out(&made.plan);
                Outcome::Tried(made, result)
            }
            Err(reported) => Outcome::Told(reported),
        };
        let done = Done::CarriedOut(all.into_iter().map(carry).collect());
        let _ = answers.send(Answer::Tuned(Box::new(Step { batch, done })));
    });
}

/// Returns true if the socket of a session that was tuned is gone.
fn is_over(plan: &Result<Plan, TuneError>) -> bool {
    plan.as_ref().is_err_and(TuneError::is_over)
}

/// Writes down the result for one session, and returns its report.
fn settle(
    plane: &mut Plane,
    job: &Job,
    session: SessionId,
    made: Made,
    result: Result<Carried, TuneError>,
) -> Told {
    let Made { plan, before } = made;
    let session = plane.names.now(session);
    // Nothing would remove the entry of a session that is gone.
    let lives = plane.slot_named(&SessionName::Id(session)).is_some();
    let carried = match result {
        Ok(carried) => carried,
        Err(error) => {
            plane.tunings.put(session, before.filter(|_| lives));
            return Told::refused(error.cause());
        }
    };
    let failed = |option| carried.failed.iter().any(|(other, _)| *other == option);
    let entry = match job.request.action {
        TuneAction::Set(_) => Entry::settled(before.as_ref(), plan.socket.cookie, &carried.changes),
        // Other options have the program's own values.
        TuneAction::Restore => before.and_then(|entry| entry.left(failed)),
    };
    plane.tunings.put(session, entry.filter(|_| lives));
    let reported = Told::done(&job.request, &plan, &carried);
    if let Some(text) = reported.event() {
        let by = Some(job.caller.words());
        plane.report_by(by, reported.kind(), Some(session), text);
    }
    reported
}

fn fail(job: &Job, failure: Failure) {
    // The client's channel is fresh and has room, or the client has left.
    let _ = job.replies.try_send(Reply::Error(failure));
}

fn failure(error: &TuneError) -> Failure {
    let code = match error {
        TuneError::NotAvailable { .. } => FailureCode::Refused,
        _ => FailureCode::Internal,
    };
    Failure::new(code, error.cause().of("tune sessions"))
}
