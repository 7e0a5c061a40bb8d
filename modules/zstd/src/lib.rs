//! Zstandard (RFC 8878): `compress` makes a frame of each input, `decompress` the bytes of all frames of all inputs. Frames that are to
//! be skipped are, and checksums are checked.

use std::io::{BufRead, Read, Seek, SeekFrom, Write};

use forebay_module::{Output, export, inputs};
use ruzstd::decoding::StreamingDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
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
            let mut frame = match StreamingDecoder::new(&mut reader) {
                Ok(frame) => frame,
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let end = reader.seek(SeekFrom::Current(length.into()));
                    if end.map_err(|error| error.to_string())? > input.size() {
                        return Err("a frame to be skipped ends early".to_owned());
                    }
                    continue;
                }
                Err(error) => return Err(error.to_string()),
            };
            loop {
                let len = frame.read(&mut piece).map_err(|error| error.to_string())?;
                if len == 0 {
                    break;
                }
                output
                    .write_all(&piece[..len])
                    .map_err(|error| error.to_string())?;
            }
            let frame = frame.into_frame_decoder();
            if let Some(checksum) = frame.get_checksum_from_data()
                && frame.get_calculated_checksum() != Some(checksum)
            {
                return Err("the checksum of a frame is not that of its content".to_owned());
            }
        }
    }
    Ok(())
}
