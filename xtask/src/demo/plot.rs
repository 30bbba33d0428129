//! Curves over time.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One curve.
pub(super) struct Curve {
    /// Name of the curve; empty if the panel's title names it.
    pub name: &'static str,
    pub colour: RGBColor,
    /// Points: seconds, and the measured value.
    pub points: Vec<(f64, f64)>,
}

/// Curves with a common unit.
pub(super) struct Panel {
    pub title: &'static str,
    /// Height in pixels.
    pub height: u32,
    pub curves: Vec<Curve>,
}

/// Time of a change, and its name.
pub(super) type Mark = (f64, &'static str);

/// Draws panels, from top to bottom, as an SVG file.
pub(super) fn draw(file: &Path, panels: &[Panel], marks: &[Mark]) -> Result<()> {
    if let Some(folder) = file.parent() {
        let made = std::fs::create_dir_all(folder);
        made.with_context(|| format!("failed to make {}", folder.display()))?;
    }
    let height = panels.iter().map(|panel| panel.height).sum();
    let area = SVGBackend::new(file, (960, height)).into_drawing_area();
    area.fill(&WHITE).map_err(|e| anyhow!("{e}"))?;
    let mut rest = area.clone();
    for panel in panels {
        let (upper, lower) = rest.split_vertically(panel.height);
        panel.draw(&upper, marks)?;
        rest = lower;
    }
    area.present().map_err(|e| anyhow!("{e}"))
}

impl Panel {
    fn draw(&self, area: &Area<'_>, marks: &[Mark]) -> Result<()> {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let end = points().map(|p| p.0).fold(0.0, f64::max).max(f64::EPSILON);
        // A single outlier must not flatten everything else.
        let mut heights: Vec<_> = points().map(|p| p.1).collect();
        heights.sort_by(f64::total_cmp);
        let highest = heights.get(heights.len() * 98 / 100);
        let top = (highest.copied().unwrap_or(1.0) * 1.15).max(f64::MIN_POSITIVE);
        let failed = |e: &dyn std::fmt::Display| anyhow!("{}: {e}", self.title);
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(28)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..end, 0.0..top)
            .map_err(|e| failed(&e))?;
        let mesh = chart
            .configure_mesh()
            .x_desc("seconds")
            .max_light_lines(0)
            .draw();
        mesh.map_err(|e| failed(&e))?;
        for curve in &self.curves {
            let capped = curve.points.iter().map(|(x, y)| (*x, y.min(top)));
            let colour = curve.colour;
            let drawn = chart
                .draw_series(LineSeries::new(capped, colour.stroke_width(2)))
                .map_err(|e| failed(&e))?;
            if !curve.name.is_empty() {
                drawn.label(curve.name).legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
                });
            }
        }
        for (at, text) in marks {
            let line = PathElement::new([(*at, 0.0), (*at, top)], BLACK.mix(0.4));
            chart.draw_series([line]).map_err(|e| failed(&e))?;
            let label = Text::new(*text, (at + end * 0.005, top * 0.98), ("sans-serif", 13));
            chart.draw_series([label]).map_err(|e| failed(&e))?;
        }
        if self.curves.iter().any(|curve| !curve.name.is_empty()) {
            let labels = chart
                .configure_series_labels()
                .position(SeriesLabelPosition::MiddleLeft)
                .background_style(WHITE.mix(0.8))
                .border_style(BLACK.mix(0.2))
                .label_font(("sans-serif", 13))
                .draw();
            labels.map_err(|e| failed(&e))?;
        }
        Ok(())
    }
}
