//! Zstandard (RFC 8878): `compress` makes a frame of each input, `decompress` the bytes of all frames of all inputs.

use std::io::{BufRead, Read, Write};

use forebay_module::{Output, export, inputs};
use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, FrameCompressor};

export!(compress, decompress);

fn compress() -> Result<(), String> {
    for input in inputs() {
        let mut frame = FrameCompressor::new(CompressionLevel::Fastest);
        frame.set_source(input.reader());
        frame.set_drain(Output::default());
        frame.compress();
    }
    Ok(())
}

fn decompress() -> Result<(), String> {
    let mut output = Output::default();
    let mut piece = vec![0; 128 << 10];
    for input in inputs() {
        let mut reader = input.reader();
        while !reader
            .fill_buf()
            .map_err(|error| error.to_string())?
            .is_empty()
        {
            let mut frame =
                StreamingDecoder::new(&mut reader).map_err(|error| error.to_string())?;
            loop {
                let len = frame.read(&mut piece).map_err(|error| error.to_string())?;
                if len == 0 {
                    break;
                }
                output
                    .write_all(&piece[..len])
                    .map_err(|error| error.to_string())?;
            }
        }
    }
    Ok(())
}
