//! Images to tensors: JPEG and PNG are decoded, resized, and written as one array of numbers.
//!
//! `tensor WIDTH HEIGHT [OPTION...]`, which is also `run`, writes the images of all inputs as one batch in three channels, red, green
//! and blue:
//!
//! - `form=npy` (unless said otherwise) a NumPy file, which tells its shape and type, or `form=raw` the numbers alone;
//! - `layout=nchw` (unless said otherwise) or `layout=nhwc`;
//! - `type=u8` (unless said otherwise), or `type=f32`: 0 to 1, less `mean=R,G,B`, by `std=R,G,B` where given.
//!
//! Resizing weighs all source pixels under a triangle as wide as the scale (bilinear, antialiased when smaller), first along rows, then
//! along columns, rounding between, as Pillow does. Transparency is dropped, grey becomes three channels.

mod decode;
mod resize;

use std::io::Write;

use forebay_module::{Output, export, inputs, words};

export!(run, tensor);

/// Channels of every tensor.
const CHANNELS: usize = 3;
/// No side of a tensor is longer.
const SIDE_MAX: usize = 16_384;

/// Pixels in rows from the top, three bytes each.
struct Pixels {
    width: usize,
    height: usize,
    bytes: Vec<u8>,
}

/// What the numbers look like.
struct Form {
    width: usize,
    height: usize,
    npy: bool,
    channels_last: bool,
    floats: bool,
    mean: [f32; CHANNELS],
    deviation: [f32; CHANNELS],
}

fn run() -> Result<(), String> {
    tensor()
}

fn tensor() -> Result<(), String> {
    let form = Form::of(&words())?;
    let inputs = inputs();
    let mut output = Output::default();
    let mut put = |bytes: &[u8]| output.write_all(bytes).map_err(|error| error.to_string());
    if form.npy {
        put(&form.header(inputs.len()))?;
    }
    for input in inputs {
        let pixels = decode::decode(&input.bytes())?;
        let pixels = resize::resize(pixels, form.width, form.height);
        put(&form.numbers(&pixels.bytes))?;
    }
    Ok(())
}

impl Form {
    fn of(words: &[String]) -> Result<Form, String> {
        let [width, height, options @ ..] = words else {
            return Err("tensor WIDTH HEIGHT [OPTION...]".to_owned());
        };
        let side = |word: &str| {
            let side = word
                .parse()
                .ok()
                .filter(|side| (1..=SIDE_MAX).contains(side));
            side.ok_or_else(|| format!("{word}: a side has 1 to {SIDE_MAX} pixels"))
        };
        let mut form = Form {
            width: side(width)?,
            height: side(height)?,
            npy: true,
            channels_last: false,
            floats: false,
            mean: [0.0; CHANNELS],
            deviation: [1.0; CHANNELS],
        };
        for option in options {
            match option.split_once('=') {
                Some(("form", "npy")) => form.npy = true,
                Some(("form", "raw")) => form.npy = false,
                Some(("layout", "nchw")) => form.channels_last = false,
                Some(("layout", "nhwc")) => form.channels_last = true,
                Some(("type", "u8")) => form.floats = false,
                Some(("type", "f32")) => form.floats = true,
                Some(("mean", numbers)) => form.mean = triple(numbers)?,
                Some(("std", numbers)) => form.deviation = triple(numbers)?,
                _ => return Err(format!("{option}: no such option")),
            }
        }
        Ok(form)
    }

    /// NumPy's format, version 1.0: the whole header is a multiple of 64 bytes long.
    fn header(&self, images: usize) -> Vec<u8> {
        const BEFORE: &[u8] = b"\x93NUMPY\x01\x00";
        let Form { width, height, .. } = self;
        let shape = match self.channels_last {
            true => format!("({images}, {height}, {width}, {CHANNELS})"),
            false => format!("({images}, {CHANNELS}, {height}, {width})"),
        };
        let kind = if self.floats { "<f4" } else { "|u1" };
        let mut text = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
        while !(BEFORE.len() + 2 + text.len() + 1).is_multiple_of(64) {
            text.push(' ');
        }
        text.push('\n');
        let len = (text.len() as u16).to_le_bytes();
        [BEFORE, &len, text.as_bytes()].concat()
    }

    fn numbers(&self, pixels: &[u8]) -> Vec<u8> {
        let count = pixels.len() / CHANNELS;
        let place = |at: usize, channel: usize| match self.channels_last {
            true => at * CHANNELS + channel,
            false => channel * count + at,
        };
        let width = if self.floats { 4 } else { 1 };
        let mut numbers = vec![0; pixels.len() * width];
        for (at, pixel) in pixels.as_chunks::<CHANNELS>().0.iter().enumerate() {
            for (channel, value) in pixel.iter().enumerate() {
                let place = place(at, channel);
                match self.floats {
                    false => numbers[place] = *value,
                    true => {
                        let number = f32::from(*value) / 255.0;
                        let number = (number - self.mean[channel]) / self.deviation[channel];
                        numbers[place * 4..place * 4 + 4].copy_from_slice(&number.to_le_bytes());
                    }
                }
            }
        }
        numbers
    }
}

fn triple(words: &str) -> Result<[f32; CHANNELS], String> {
    let mut numbers = [0.0; CHANNELS];
    let mut words_left = words.split(',');
    for number in &mut numbers {
        let word = words_left.next().and_then(|word| word.parse().ok());
        *number = word.ok_or_else(|| format!("{words}: three numbers are wanted"))?;
    }
    match words_left.next() {
        None => Ok(numbers),
        Some(_) => Err(format!("{words}: three numbers are wanted")),
    }
}
