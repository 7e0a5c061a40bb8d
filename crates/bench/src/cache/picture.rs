//! Hit ratios by size of the cache, drawn from what was measured, as plain SVG.

use std::fmt::Write as _;

use super::CachePoint;
use crate::Size;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 44.0;

/// A name, a colour, and which ratio.
type Line = (&'static str, &'static str, fn(&CachePoint) -> f64);

const LINES: [Line; 5] = [
    ("optimum", "#9aa4b2", |point| point.optimum),
    ("this cache", "#1f6feb", |point| point.tier),
    ("S3-FIFO", "#2da44e", |point| point.s3_fifo),
    ("W-TinyLFU", "#bf8700", |point| point.w_tinylfu),
    ("LRU", "#cf222e", |point| point.lru),
];

/// A line for each way to choose what leaves.
pub(super) fn draw(points: &[CachePoint]) -> String {
    let most = points
        .iter()
        .map(|point| point.ceiling)
        .fold(0.05, f64::max);
    let x = |at: usize| {
        let steps = points.len().saturating_sub(1).max(1) as f64;
        LEFT + (WIDTH - LEFT - RIGHT) * at as f64 / steps
    };
    let y = |ratio: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ratio / most;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    let mut text = |at: (f64, f64), anchor: &str, colour: &str, words: &str| {
        let (x, y) = at;
        let drawn = format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{words}</text>\n"
        );
        svg.push_str(&drawn);
    };
    if let Some(first) = points.first() {
        let heading = format!(
            "Hits, per cent of {} requests for blocks of {} ({})",
            first.asked,
            Size(first.block),
            first.trace
        );
        text((LEFT, 22.0), "start", "#1f2328", &heading);
    }
    for (at, point) in points.iter().enumerate() {
        let blocks = format!("{}", point.cache / point.block);
        text(
            (x(at), HEIGHT - BOTTOM + 18.0),
            "middle",
            "#57606a",
            &blocks,
        );
    }
    text((LEFT, HEIGHT - 8.0), "start", "#57606a", "blocks that fit");
    let step = if most > 0.4 { 10 } else { 5 };
    for percent in (0..=100)
        .step_by(step)
        .take_while(|p| f64::from(*p) <= most * 100.0)
    {
        let at = (LEFT - 8.0, y(f64::from(percent) / 100.0) + 4.0);
        text(at, "end", "#57606a", &percent.to_string());
    }
    for (at, (name, colour, _)) in LINES.iter().enumerate() {
        let legend = (WIDTH - RIGHT + 30.0, TOP + 18.0 * at as f64);
        text(legend, "start", colour, name);
    }
    for (name, colour, ratio) in LINES {
        let path: Vec<String> = points
            .iter()
            .enumerate()
            .map(|(at, point)| format!("{:.1},{:.1}", x(at), y(ratio(point))))
            .collect();
        let width = if name == "this cache" { 3 } else { 1 };
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
            path.join(" ")
        );
    }
    svg.push_str("</svg>\n");
    svg
}
