//! Another size.

use crate::{CHANNELS, Pixels};

/// The source pixels that make one target pixel along a line.
struct Weights {
    first: usize,
    weights: Vec<f32>,
}

/// A triangle over each target pixel's centre, as wide as the scale when the line becomes shorter.
fn weights(from: usize, to: usize) -> Vec<Weights> {
    let scale = from as f32 / to as f32;
    let support = scale.max(1.0);
    let of = |target: usize| {
        let centre = (target as f32 + 0.5) * scale;
        let first = (centre - support + 0.5).max(0.0) as usize;
        let end = ((centre + support + 0.5) as usize).min(from);
        let weight = |source: usize| {
            let away = (source as f32 + 0.5 - centre).abs() / support;
            (1.0 - away).max(0.0)
        };
        let mut weights: Vec<f32> = (first..end).map(weight).collect();
        let all: f32 = weights.iter().sum();
        for weight in &mut weights {
            *weight /= all;
        }
        Weights { first, weights }
    };
    (0..to).map(of).collect()
}

fn rounded(value: f32) -> u8 {
    // Saturating: a sum of weights may be a little more than 1.
    (value + 0.5) as u8
}

/// The same picture in `width` by `height` pixels.
pub fn resize(mut pixels: Pixels, width: usize, height: usize) -> Pixels {
    if pixels.width != width {
        pixels = rows(&pixels, width);
    }
    if pixels.height != height {
        pixels = columns(&pixels, height);
    }
    pixels
}

fn rows(pixels: &Pixels, width: usize) -> Pixels {
    let all = weights(pixels.width, width);
    let mut bytes = Vec::with_capacity(width * pixels.height * CHANNELS);
    for row in pixels.bytes.chunks_exact(pixels.width * CHANNELS) {
        for Weights { first, weights } in &all {
            let mut sums = [0.0; CHANNELS];
            let sources = row[first * CHANNELS..].as_chunks::<CHANNELS>().0;
            for (weight, pixel) in weights.iter().zip(sources) {
                for (sum, value) in sums.iter_mut().zip(pixel) {
                    *sum += weight * f32::from(*value);
                }
            }
            bytes.extend(sums.map(rounded));
        }
    }
    Pixels {
        width,
        height: pixels.height,
        bytes,
    }
}

fn columns(pixels: &Pixels, height: usize) -> Pixels {
    let row_bytes = pixels.width * CHANNELS;
    let mut bytes = Vec::with_capacity(row_bytes * height);
    let mut sums = vec![0.0; row_bytes];
    for Weights { first, weights } in weights(pixels.height, height) {
        sums.fill(0.0);
        let sources = pixels.bytes[first * row_bytes..].chunks_exact(row_bytes);
        for (weight, row) in weights.iter().zip(sources) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += weight * f32::from(*value);
            }
        }
        bytes.extend(sums.iter().map(|sum| rounded(*sum)));
    }
    Pixels {
        width: pixels.width,
        height,
        bytes,
    }
}
