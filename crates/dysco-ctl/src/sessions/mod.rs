//! `dyscoctl sessions`: the listing, and one session.

mod columns;
mod layout;
mod listing;
mod show;

use std::io::{self, BufWriter};
use std::time::Duration;

use clap::Subcommand;
use dysco_api::{Exit, FILTER_HELP, Filter, SessionName};
use ratatui::crossterm::cursor::MoveTo;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{Clear, ClearType};

pub(crate) use columns::{Column, cell};
pub(crate) use layout::cut;

use super::context::Context;
use super::exit::CliError;
use super::namespaces::Origin;
use super::output::Format;
use super::pages::Pages;
use super::time;
use listing::{Shape, screen};

/// Arguments of `sessions`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = FILTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// Only sessions that match, such as port=443,state=tracked: see below
    #[arg(long, default_value = "", hide_default_value = true)]
    filter: Filter,

    /// The columns of the table, in this order, separated by commas. A narrow terminal drops some
    /// default columns. Columns that are named here stay, and their text is cut
    #[arg(long, value_enum, value_delimiter = ',', value_name = "COLUMNS")]
    columns: Vec<Column>,

    /// Sort by a column, in ascending order
    #[arg(long, value_enum, value_name = "COLUMN", hide_possible_values = true)]
    sort: Option<Column>,

    /// Sort in descending order
    #[arg(long, requires = "sort")]
    desc: bool,

    /// List the sessions of all network namespaces that dyscod serves, with a column that names
    /// them
    #[arg(long)]
    all_namespaces: bool,

    /// Repeat the listing until interrupted, every 2 seconds by default
    #[arg(long, value_parser = time::watch, value_name = "SECONDS",
          num_args = 0..=1, default_missing_value = "2")]
    watch: Option<Duration>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show one session with its history
    Show {
        /// Its id as listed, or LOCAL>REMOTE
        #[arg(value_name = "ID")]
        session: SessionName,
    },
}

/// Lists sessions, or shows one.
pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, CliError> {
    if let Some(Command::Show { session }) = args.command {
        return show::run(context, session);
    }
    let named = !args.columns.is_empty();
    let first = (args.all_namespaces && !named).then_some(Column::Namespace);
    let shape = Shape {
        columns: match named {
            true => args.columns,
            false => first.into_iter().chain(columns::USUAL).collect(),
        },
        named,
        sort: args.sort.map(|column| (column, args.desc)),
    };
    let Some(period) = args.watch else {
        list(
            &origins(context, args.all_namespaces)?,
            args.filter,
            &shape,
            false,
        )?;
        return Ok(Exit::Done);
    };
    loop {
        let origins = origins(context, args.all_namespaces)?;
        list(&origins, args.filter.clone(), &shape, true)?;
        std::thread::sleep(period);
    }
}

/// Returns the daemons to ask.
fn origins(context: &Context, all: bool) -> Result<Vec<Origin>, CliError> {
    match all {
        true => context.origins(),
        false => Ok(vec![Origin {
            namespace: None,
            context: context.clone(),
        }]),
    }
}

/// Lists sessions once. On a terminal that is watched, the listing is cut to its height.
fn list(origins: &[Origin], filter: Filter, shape: &Shape, watched: bool) -> Result<(), CliError> {
    let mut out = BufWriter::new(io::stdout().lock());
    let screen = screen();
    let is_json = origins.iter().any(|o| o.context.format == Format::Json);
    if is_json {
        return listing::json(&mut out, Pages::of_all(origins, filter, false), shape);
    }
    let mut lines = None;
    if let Some((_, height)) = screen.filter(|_| watched) {
        execute!(out, MoveTo(0, 0), Clear(ClearType::FromCursorDown))?;
        lines = Some(height);
    }
    let pages = Pages::of_all(origins, filter, true);
    listing::table(
        &mut out,
        pages,
        shape,
        screen.map(|(width, _)| width),
        lines,
    )
}
