//! Bars, drawn from what was measured, as plain SVG.

use std::fmt::Write as _;

use crate::bench::figures::Figure;
use crate::bench::sample::Sample;

const WIDTH: usize = 760;
const LABEL: usize = 200;
const BAR: usize = 440;
const ROW: usize = 20;
const HEADING: usize = 34;
const OURS: &str = "#1f6feb";
const THEIRS: &str = "#9aa4b2";

/// Operations or bytes a second, each table scaled by its fastest.
pub fn throughput(figures: &[Figure]) -> String {
    draw("Throughput: longer is better", figures, |figure, sample| {
        // Some contenders tell bytes only.
        let by_bytes = figure
            .contenders
            .iter()
            .flat_map(|one| &one.rounds)
            .any(|one| one.ops_per_s == 0.0);
        let rate = if by_bytes {
            sample.mb_per_s
        } else {
            sample.ops_per_s
        };
        let text = if sample.ops_per_s > 0.0 {
            format!("{:.0} /s, {:.0} MB/s", sample.ops_per_s, sample.mb_per_s)
        } else {
            format!("{:.0} MB/s", sample.mb_per_s)
        };
        Some((rate, text))
    })
}

/// Server CPU for 10^9 bytes, each table scaled by its dearest.
pub fn cpu(figures: &[Figure]) -> String {
    draw(
        "Server CPU seconds per GB: shorter is better",
        figures,
        |_, sample| {
            let cost = sample.server_cpu_s_per_gb?;
            Some((cost, format!("{cost:.2}")))
        },
    )
}

struct Bar<'a> {
    name: &'a str,
    value: f64,
    text: String,
}

fn draw(
    title: &str,
    figures: &[Figure],
    value: impl Fn(&Figure, &Sample) -> Option<(f64, String)>,
) -> String {
    let mut body = String::new();
    let mut y = HEADING;
    for figure in figures {
        let value = |sample: &Sample| value(figure, sample);
        let bars: Vec<Bar<'_>> = figure
            .contenders
            .iter()
            .filter_map(|contender| {
                let middle = contender.median(|sample| Some(value(sample)?.0))?;
                let of_middle =
                    |sample: &&Sample| value(sample).is_some_and(|told| told.0 == middle);
                let (value, text) = value(contender.rounds.iter().find(of_middle)?)?;
                Some(Bar {
                    name: contender.name,
                    value,
                    text,
                })
            })
            .collect();
        if bars.len() < 2 {
            continue;
        }
        y += HEADING;
        let _ = writeln!(
            body,
            "<text x=\"8\" y=\"{}\" class=\"h\">{}</text>",
            y - 8,
            escaped(figure.name)
        );
        let longest = bars
            .iter()
            .map(|bar| bar.value)
            .fold(f64::MIN_POSITIVE, f64::max);
        for (index, bar) in bars.iter().enumerate() {
            let width = (bar.value / longest * BAR as f64).max(1.0);
            let colour = if index == 0 { OURS } else { THEIRS };
            let _ = writeln!(
                body,
                "<text x=\"{}\" y=\"{}\" class=\"n\">{}</text>\
                 <rect x=\"{LABEL}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{}\">{}</text>",
                LABEL - 8,
                y + 13,
                escaped(bar.name),
                y + 2,
                ROW - 5,
                LABEL as f64 + width + 6.0,
                y + 13,
                escaped(&bar.text),
            );
            y += ROW;
        }
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <style>.h{{font-weight:bold;font-size:12px}}.n{{text-anchor:end}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"8\" y=\"22\" font-size=\"15\">{}</text>\n{body}</svg>\n",
        escaped(title),
        height = y + 12,
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
