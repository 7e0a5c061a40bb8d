//! Files to pixels.

use std::io::Cursor;

use png::{ColorType, Transformations};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use crate::{CHANNELS, Pixels};

/// Images of more pixels are refused before memory is taken for them.
const PIXELS_MAX: usize = 100_000_000;

/// The pixels of a JPEG or PNG file.
pub fn decode(file: &[u8]) -> Result<Pixels, String> {
    match file {
        [0x89, b'P', b'N', b'G', ..] => png(file),
        [0xff, 0xd8, ..] => jpeg(file),
        _ => Err("neither a JPEG nor a PNG".to_owned()),
    }
}

fn check(width: usize, height: usize) -> Result<(), String> {
    let pixels = width.checked_mul(height);
    match pixels.is_some_and(|pixels| (1..=PIXELS_MAX).contains(&pixels)) {
        true => Ok(()),
        false => Err(format!("an image of {width} by {height} pixels")),
    }
}

fn jpeg(file: &[u8]) -> Result<Pixels, String> {
    // The decoder would take zeroes for what is cut off the end.
    if !has_end(file) {
        return Err("a JPEG that ends early".to_owned());
    }
    // What a file that ends early lacks would be grey.
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder
        .decode_headers()
        .map_err(|error| format!("{error:?}"))?;
    let (width, height) = decoder.dimensions().ok_or("a JPEG without dimensions")?;
    check(width, height)?;
    let bytes = decoder.decode().map_err(|error| format!("{error:?}"))?;
    Ok(Pixels {
        width,
        height,
        bytes,
    })
}

/// Whether the end of a JPEG's image (EOI) follows its segments. That of a thumbnail lies within one of them.
fn has_end(file: &[u8]) -> bool {
    let mut at = 0;
    while let Some((marker, behind)) = next_marker(file, at) {
        at = behind;
        match marker {
            0xd9 => return true,
            // SOI has no length.
            0xd8 => {}
            // A segment; behind its header, of a scan the data.
            _ => match file.get(at..).and_then(<[u8]>::first_chunk) {
                Some(length) => at += usize::from(u16::from_be_bytes(*length)),
                None => return false,
            },
        }
    }
    false
}

/// The next marker from there on, but those within the data of a scan, and what is behind it.
fn next_marker(file: &[u8], mut at: usize) -> Option<(u8, usize)> {
    loop {
        at += file.get(at..)?.iter().position(|byte| *byte == 0xff)? + 1;
        match file.get(at)? {
            // A byte of data, TEM, and RST0 to RST7; or a byte that fills.
            0x00 | 0x01 | 0xd0..=0xd7 | 0xff => {}
            marker => return Some((*marker, at + 1)),
        }
    }
}

fn png(file: &[u8]) -> Result<Pixels, String> {
    let mut decoder = png::Decoder::new(Cursor::new(file));
    decoder.set_transformations(Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(|error| error.to_string())?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    check(width, height)?;
    let room = reader.output_buffer_size().ok_or("an image too large")?;
    let mut bytes = vec![0; room];
    let frame = reader
        .next_frame(&mut bytes)
        .map_err(|error| error.to_string())?;
    bytes.truncate(frame.buffer_size());
    let bytes = match frame.color_type {
        ColorType::Rgb => bytes,
        ColorType::Rgba => bytes
            .chunks_exact(4)
            .flat_map(|pixel| [pixel[0], pixel[1], pixel[2]])
            .collect(),
        ColorType::Grayscale => bytes.iter().flat_map(|grey| [*grey; CHANNELS]).collect(),
        ColorType::GrayscaleAlpha => bytes
            .chunks_exact(2)
            .flat_map(|pixel| [pixel[0]; CHANNELS])
            .collect(),
        // Expanded by the transformation asked for.
        ColorType::Indexed => return Err("a palette that was not expanded".to_owned()),
    };
    Ok(Pixels {
        width,
        height,
        bytes,
    })
}
