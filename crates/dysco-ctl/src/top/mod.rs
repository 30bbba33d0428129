//! `dyscoctl top`: shows sessions, their goodput and changes as they occur. The state is in
//! `app`, the screen in `view`, and the threads that wait for the daemon and the keys are in
//! `feed`.

mod app;
mod feed;
#[cfg(test)]
mod tests;
mod view;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::time::Duration;

use dysco_api::{Exit, FILTER_HELP, Filter};
use ratatui::DefaultTerminal;

use super::context::Context;
use super::exit::CliError;
use super::output::Format;
use super::time;
use app::{App, Effect, Input};

/// Maximum number of inputs that wait to be shown.
const INPUTS: usize = 1024;

/// Arguments of `top`.
#[derive(Debug, clap::Args)]
#[command(after_help = FILTER_HELP)]
pub(crate) struct Args {
    /// Only sessions that match, such as port=443: see below
    #[arg(long, default_value = "", hide_default_value = true)]
    filter: Filter,

    /// Seconds between listings; more if a listing takes longer
    #[arg(long, value_parser = time::watch, value_name = "SECONDS", default_value = "1")]
    delay: Duration,
}

/// Shows sessions until a key ends the program.
pub(crate) fn run(context: Context, args: Args) -> Result<Exit, CliError> {
    let shown = context.format == Format::Table && io::stdout().is_terminal();
    if !shown || !io::stdin().is_terminal() {
        return Err(CliError::NoTerminal);
    }
    let context = Arc::new(context);
    // The first listing precedes the screen, so that a daemon that does not answer is an ordinary
    // error.
    feed::list(&context, &args.filter)?;
    let (inputs, taken) = mpsc::sync_channel(INPUTS);
    let (filters, wanted) = mpsc::channel();
    let feed = Feed {
        context,
        inputs,
        filters,
    };
    let mut terminal = ratatui::try_init()?;
    feed.start(&args, wanted);
    let shown = show(&mut terminal, App::new(args.filter), &feed, &taken);
    ratatui::try_restore()?;
    shown.map(|()| Exit::Done)
}

/// Resources that effects need.
struct Feed {
    context: Arc<Context>,
    inputs: SyncSender<Input>,
    filters: Sender<Filter>,
}

impl Feed {
    fn start(&self, args: &Args, wanted: Receiver<Filter>) {
        let (context, inputs) = (&self.context, &self.inputs);
        let filter = args.filter.clone();
        feed::listings(context.clone(), filter, args.delay, wanted, inputs.clone());
        feed::events(context.clone(), inputs.clone());
        feed::keys(inputs.clone());
    }

    /// Performs an effect. Returns false if the program should end.
    fn act(&self, effect: Effect) -> bool {
        let (session, filter) = match effect {
            Effect::Quit => return false,
            // The listing thread lives as long as this value.
            Effect::List(filter) => return self.filters.send(filter).is_ok(),
            Effect::Remove(session) => (Some(session), Filter::default()),
            Effect::RemoveAll(filter) => (None, filter),
        };
        feed::remove(self.context.clone(), session, filter, self.inputs.clone());
        true
    }
}

fn show(
    terminal: &mut DefaultTerminal,
    mut app: App,
    feed: &Feed,
    taken: &Receiver<Input>,
) -> Result<(), CliError> {
    loop {
        terminal.draw(|frame| view::draw(&app, frame))?;
        let Ok(first) = taken.recv() else {
            return Ok(());
        };
        // All inputs that have arrived meanwhile are drawn once.
        for input in std::iter::once(first).chain(taken.try_iter()) {
            let effect = app.take(input);
            if effect.is_some_and(|effect| !feed.act(effect)) {
                return Ok(());
            }
        }
    }
}
