//! Goodput and latency over time.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::watch::Sample;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws both as an SVG file.
pub fn draw(file: &Path, samples: &[Sample]) -> Result<()> {
    if let Some(folder) = file.parent() {
        let made = std::fs::create_dir_all(folder);
        made.with_context(|| format!("failed to make {}", folder.display()))?;
    }
    let area = SVGBackend::new(file, (960, 640)).into_drawing_area();
    let drawn = area.fill(&WHITE).map_err(|e| anyhow!("{e}"));
    drawn.and_then(|()| {
        let (upper, lower) = area.split_vertically(340);
        let goodput = |s: &Sample| Some(s.goodput_bps / 1e9);
        panel(&upper, "goodput, Gbit/s", samples, BLUE, goodput)?;
        panel(
            &lower,
            "request, µs (median of 0.1 s)",
            samples,
            RED,
            |s| s.latency_p50_us,
        )?;
        area.present().map_err(|e| anyhow!("{e}"))
    })
}

fn panel(
    area: &Area<'_>,
    title: &str,
    samples: &[Sample],
    colour: RGBColor,
    value: impl Fn(&Sample) -> Option<f64>,
) -> Result<()> {
    let end = samples.last().map_or(1.0, |s| s.at.as_secs_f64());
    let points: Vec<_> = samples
        .iter()
        .filter_map(|s| Some((s.at.as_secs_f64(), value(s)?)))
        .collect();
    // A single stray sample must not flatten all others.
    let mut heights: Vec<_> = points.iter().map(|p| p.1).collect();
    heights.sort_by(f64::total_cmp);
    let top = heights
        .get(heights.len() * 98 / 100)
        .copied()
        .unwrap_or(1.0)
        * 1.15;
    let failed = |e: &dyn std::fmt::Display| anyhow!("{title}: {e}");
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..end, 0.0..top.max(f64::MIN_POSITIVE))
        .map_err(|e| failed(&e))?;
    let mesh = chart
        .configure_mesh()
        .x_desc("seconds")
        .max_light_lines(0)
        .draw();
    mesh.map_err(|e| failed(&e))?;
    let capped = points.iter().map(|(x, y)| (*x, y.min(top)));
    chart
        .draw_series(LineSeries::new(capped, colour.stroke_width(2)))
        .map_err(|e| failed(&e))?;
    for (at, text) in borders(samples) {
        let line = PathElement::new([(at, 0.0), (at, top)], BLACK.mix(0.4));
        chart.draw_series([line]).map_err(|e| failed(&e))?;
        let label = Text::new(text, (at + end * 0.005, top * 0.98), ("sans-serif", 13));
        chart.draw_series([label]).map_err(|e| failed(&e))?;
    }
    Ok(())
}

/// When something changed, and what.
fn borders(samples: &[Sample]) -> Vec<(f64, &'static str)> {
    use super::watch::Phase;
    let at = |s: &Sample| s.at.as_secs_f64();
    let marks = samples.iter().filter_map(|s| Some((at(s), s.mark?)));
    let direct = samples.iter().find(|s| s.phase == Phase::Direct);
    marks
        .chain(direct.map(|s| (at(s), "straight to nginx")))
        .collect()
}
