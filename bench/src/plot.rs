//! Plots. Their data is stored with the other raw results.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use serde::{Deserialize, Serialize};

use crate::figure::{self, Word, sorted};

/// A drawing of panels, from top to bottom.
#[derive(Serialize, Deserialize)]
pub(crate) struct Plot {
    /// Suffix of the file's name.
    pub name: String,
    /// Panels from top to bottom.
    pub panels: Vec<Panel>,
}

/// Lines over a common axis.
#[derive(Serialize, Deserialize)]
pub(crate) struct Panel {
    /// Description of the values, with their unit.
    pub title: String,
    /// Description of the horizontal axis, with its unit.
    #[serde(deserialize_with = "figure::word")]
    pub across: Word,
    /// Lines of the panel.
    pub lines: Vec<Line>,
    /// Events: position on the axis, and label.
    pub marks: Vec<(f64, String)>,
}

/// One line.
#[derive(Serialize, Deserialize)]
pub(crate) struct Line {
    /// Label of the line.
    pub label: String,
    /// Points from left to right.
    pub points: Vec<(f64, f64)>,
}

/// Number of points of a distribution's line. More cannot be distinguished.
const STEPS: usize = 200;
const COLOURS: [RGBColor; 6] = [
    BLUE,
    RED,
    RGBColor(0, 140, 60),
    RGBColor(230, 140, 0),
    RGBColor(130, 60, 170),
    RGBColor(100, 100, 100),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Number of samples without the last hundredth.
fn kept(samples: usize) -> usize {
    (samples * 99).div_ceil(100)
}

impl Line {
    /// Returns the cumulative distribution of the samples. The line omits the last hundredth, which
    /// would compress the rest. The title of [`Panel::distributions`] says so.
    fn distribution(label: impl Into<String>, samples: &[f64]) -> Line {
        let all = sorted(samples);
        let kept = kept(all.len());
        let point = |at: usize| (all[at], (at + 1) as f64 / all.len() as f64);
        let step = (kept / STEPS).max(1);
        Line {
            label: label.into(),
            points: (0..kept).step_by(step).map(point).collect(),
        }
    }
}

impl Panel {
    /// Creates a panel of lines without marks.
    pub(crate) fn new(title: impl Into<String>, across: &'static str, lines: Vec<Line>) -> Panel {
        Panel {
            title: title.into(),
            across,
            lines,
            marks: Vec::new(),
        }
    }

    /// Creates a panel with the distribution of the samples for each name.
    pub(crate) fn distributions<S: AsRef<[f64]>>(
        title: &str,
        across: &'static str,
        samples: &[(&str, S)],
    ) -> Panel {
        let line = |(name, all): &(&str, S)| Line::distribution(*name, all.as_ref());
        let lines = samples.iter().map(line).collect();
        let mut counts = samples.iter().map(|(_, all)| all.as_ref().len());
        let less = match counts.any(|count| kept(count) < count) {
            true => "; slowest 1 % not drawn",
            false => "",
        };
        Panel::new(format!("{title}{less}"), across, lines)
    }

    fn range(&self, of: impl Fn(&(f64, f64)) -> f64) -> (f64, f64) {
        let all = self.lines.iter().flat_map(|line| &line.points).map(of);
        let widest = all.fold((f64::MAX, f64::MIN), |(low, high), v| {
            (low.min(v), high.max(v))
        });
        if widest.0 < widest.1 {
            widest
        } else {
            (0.0, widest.1.max(1.0))
        }
    }

    fn draw(&self, area: &Area<'_>) -> Result<()> {
        let failed = |e: &dyn std::fmt::Display| anyhow!("{}: {e}", self.title);
        let ((left, right), (_, top)) = (self.range(|p| p.0), self.range(|p| p.1));
        let top = top * 1.08;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(32)
            .y_label_area_size(60)
            .build_cartesian_2d(left..right, 0.0..top)
            .map_err(|e| failed(&e))?;
        let mut mesh = chart.configure_mesh();
        let mesh = mesh.x_desc(self.across).max_light_lines(0);
        mesh.draw().map_err(|e| failed(&e))?;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let series = LineSeries::new(line.points.iter().copied(), colour.stroke_width(2));
            let drawn = chart.draw_series(series).map_err(|e| failed(&e))?;
            let sample = |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2));
            drawn.label(&line.label).legend(sample);
        }
        for (at, text) in &self.marks {
            let line = PathElement::new([(*at, 0.0), (*at, top)], BLACK.mix(0.4));
            chart.draw_series([line]).map_err(|e| failed(&e))?;
            let place = (*at + (right - left) * 0.005, top * 0.97);
            let label = Text::new(text.clone(), place, ("sans-serif", 13));
            chart.draw_series([label]).map_err(|e| failed(&e))?;
        }
        if self.lines.len() > 1 {
            let mut labels = chart.configure_series_labels();
            let labels = labels.position(SeriesLabelPosition::LowerRight);
            let labels = labels.background_style(WHITE.mix(0.8)).border_style(BLACK);
            labels.draw().map_err(|e| failed(&e))?;
        }
        Ok(())
    }
}

impl Plot {
    /// Creates a plot of one panel.
    pub(crate) fn single(name: &str, panel: Panel) -> Plot {
        Plot {
            name: name.into(),
            panels: vec![panel],
        }
    }

    /// Draws the plot as an SVG file.
    pub(crate) fn draw(&self, file: &Path) -> Result<()> {
        let height = 320 * self.panels.len() as u32;
        let area = SVGBackend::new(file, (960, height)).into_drawing_area();
        area.fill(&WHITE).map_err(|e| anyhow!("{e}"))?;
        let parts = area.split_evenly((self.panels.len(), 1));
        for (panel, part) in self.panels.iter().zip(&parts) {
            panel.draw(part)?;
        }
        area.present().map_err(|e| anyhow!("{e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_rises_to_all_but_a_hundredth() {
        let samples: Vec<_> = (1..=1000).rev().map(f64::from).collect();
        let line = Line::distribution("x", &samples);
        assert_eq!(line.points[0], (1.0, 0.001));
        assert!(line.points.windows(2).all(|p| p[0] < p[1]));
        assert!(line.points.iter().all(|p| p.0 <= 990.0));
        assert!(Line::distribution("none", &[]).points.is_empty());
    }

    #[test]
    fn a_panel_says_what_it_does_not_draw() {
        let title = |count| {
            let samples = [("few", vec![1.0]), ("more", vec![1.0; count])];
            Panel::distributions("share", "ms", &samples).title
        };
        assert_eq!(title(100), "share; slowest 1 % not drawn");
        assert_eq!(title(99), "share");
    }
}
