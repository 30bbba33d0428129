//! The files of a run: its results, the summary, and the documents.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::record::Record;
use crate::{readme, report};

/// Writes the run as JSON, as a table and as plots. A whole run is stored with the others, any
/// other run elsewhere. Returns the path of the JSON file.
pub(crate) fn save(record: &Record, whole: bool) -> Result<PathBuf> {
    let folder = match whole {
        true => results(),
        false => std::env::temp_dir().join("dysco-bench"),
    };
    fs::create_dir_all(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let name = readme::file_name(&record.date);
    let json = folder.join(format!("{name}.json"));
    let run = record.run()?;
    // The file has thousands of samples: it is for programs to read, in one line.
    write(&json, serde_json::to_string(record)? + "\n")?;
    write(&json.with_extension("md"), report::markdown(record, &run))?;
    for plot in &record.plots {
        plot.draw(&folder.join(format!("{name}-{}.svg", plot.name)))?;
    }
    Ok(json)
}

/// Publishes the figures of a whole run in the summary and the documents.
///
/// # Errors
/// If the run is not complete: the existing files stay.
pub(crate) fn publish(record: &Record) -> Result<()> {
    let stays = "the run is incomplete: summary.json and the documents are unchanged";
    let summary = summary(record).context(stays)?;
    write(&results().join("summary.json"), summary)?;
    readme::write(&record.run()?)
}

/// Returns the summary if nothing is missing.
fn summary(record: &Record) -> Result<String> {
    record.complete()?;
    let summary = report::summary(record)?;
    Ok(serde_json::to_string_pretty(&summary)? + "\n")
}

/// Folder of whole runs.
fn results() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("results")
}

fn write(path: &Path, text: String) -> Result<()> {
    fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::figure::Figure;

    /// The summary is made before anything is overwritten.
    #[test]
    fn a_run_of_which_a_part_failed_has_no_summary() -> Result<()> {
        let mut record = Record::begin(true)?;
        for name in report::ALWAYS {
            record.figures.push(Figure::new(name, "", 1.0));
        }
        let summarised: Value = serde_json::from_str(&summary(&record)?)?;
        assert_eq!(summarised["translate_ns"]["value"], 1.0);
        record.failed.insert("xdp".into(), "no device".into());
        let error = summary(&record).map_err(|e| e.to_string());
        assert_eq!(error, Err("not measured: xdp".into()));
        Ok(())
    }
}
