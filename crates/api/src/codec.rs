//! How messages are read.

use prost::Message;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder};
use tonic_prost::ProstCodec;

/// The most fields of a message, each element of a list being one.
const FIELDS_MAX: usize = 128 << 10;

/// Protocol Buffers, but for messages of very many fields. An element without content is two bytes of a message, and some hundred in
/// memory: a bound on bytes alone would be none on what a message takes before anybody sees how many elements it has.
#[derive(Debug)]
pub struct Codec<T, U>(ProstCodec<T, U>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Codec<T, U> {
        Codec(ProstCodec::default())
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as tonic::codec::Codec>::Encoder;
    type Decoder = Counting<<ProstCodec<T, U> as tonic::codec::Codec>::Decoder>;

    fn encoder(&mut self) -> Self::Encoder {
        self.0.encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        Counting(self.0.decoder())
    }
}

/// Counts the fields of a message before it is decoded.
#[derive(Debug)]
pub struct Counting<D>(D);

impl<D: Decoder<Error = Status>> Decoder for Counting<D> {
    type Item = D::Item;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<D::Item>, Status> {
        // All of it lies in one piece.
        if has_more_fields(message.chunk(), FIELDS_MAX) {
            let words = format!("a message has at most {FIELDS_MAX} fields and elements");
            return Err(Status::invalid_argument(words));
        }
        self.0.decode(message)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

/// Whether there are more than `max`. What is no message is left to whoever decodes it.
fn has_more_fields(mut message: &[u8], max: usize) -> bool {
    let mut count = 0;
    while !message.is_empty() {
        let skipped = decode_key(&mut message).and_then(|(tag, wire_type)| {
            skip_field(wire_type, tag, &mut message, DecodeContext::default())
        });
        if skipped.is_err() {
            return false;
        }
        count += 1;
        if count > max {
            return true;
        }
    }
    false
}
