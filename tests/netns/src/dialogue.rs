//! A client program that answers line by line, over one long session.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::{Host, Program};

const PATIENCE: Duration = Duration::from_secs(60);

/// A client program with a dialogue. Dropping it kills the program.
pub struct Dialogue {
    child: Child,
    name: String,
    /// Input of the program; none after it has ended.
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Dialogue {
    /// Starts the program on a host.
    pub fn start(host: &Host, program: Program) -> Result<Dialogue> {
        let name = program.name().to_owned();
        let mut command = program.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = host.run(move || command.spawn());
        let mut child = child.with_context(|| format!("failed to start {name}"))?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("no pipe from the child")?;
        let (tell, lines) = channel();
        // A session that hangs must not block the asking thread.
        thread::spawn(move || {
            let said = BufReader::new(output).lines().map_while(Result::ok);
            said.take_while(|line| tell.send(line.clone()).is_ok())
                .for_each(drop);
        });
        Ok(Dialogue {
            child,
            name,
            input,
            lines,
        })
    }

    /// Sends a line, and returns the line of the answer.
    pub fn ask(&mut self, line: &str) -> Result<String> {
        let input = self.input.as_mut().context("its input has ended")?;
        let said = writeln!(input, "{line}").and_then(|()| input.flush());
        let answer = said
            .ok()
            .and_then(|()| self.lines.recv_timeout(PATIENCE).ok());
        match (answer, self.child.try_wait()) {
            (Some(answer), _) => Ok(answer),
            (None, Ok(Some(status))) => bail!("{} ended: {status}", self.name),
            (None, _) => bail!("{} does not answer", self.name),
        }
    }

    /// Sends a line, and checks the answer.
    pub fn expect(&mut self, line: &str, want: &str) -> Result<()> {
        let got = self.ask(line)?;
        ensure!(got == want, "{} answered {got:?} to {line:?}", self.name);
        Ok(())
    }

    /// Ends the program's input. Returns an error unless the program then ends successfully.
    pub fn finish(mut self) -> Result<()> {
        drop(self.input.take());
        let ended = crate::wait::until("its end", PATIENCE, || self.child.try_wait().ok()?);
        let status = ended.with_context(|| format!("{} does not end", self.name))?;
        ensure!(status.success(), "{} ended: {status}", self.name);
        Ok(())
    }
}

impl Drop for Dialogue {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
