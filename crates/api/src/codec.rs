//! How messages are read.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::{Buf, Bytes};
use tonic::Status;
use tonic::codec::{DecodeBuf, Decoder};
use tonic_prost::ProstCodec;

/// The most steps in which a message is read: two for each field, wherever it stands, and one more for each text.
const STEPS_MAX: usize = 256 << 10;

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
    type Decoder = Counting<U>;

    fn encoder(&mut self) -> Self::Encoder {
        self.0.encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        Counting(PhantomData)
    }
}

/// Gives up a message that takes too many steps.
#[derive(Debug)]
pub struct Counting<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for Counting<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let mut steps = Steps {
            message,
            left: STEPS_MAX,
        };
        let decoded = U::decode(&mut steps);
        if steps.left == 0 {
            let words = format!("a message is read in at most {STEPS_MAX} steps");
            return Err(Status::invalid_argument(words));
        }
        decoded
            .map(Some)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

/// A message that ends, for whoever reads it, when it has been read in so many steps. Bytes that are taken as they lie are none.
struct Steps<'a, 'b> {
    message: &'a mut DecodeBuf<'b>,
    left: usize,
}

impl Buf for Steps<'_, '_> {
    fn remaining(&self) -> usize {
        match self.left {
            0 => 0,
            _ => self.message.remaining(),
        }
    }

    fn chunk(&self) -> &[u8] {
        match self.left {
            0 => &[],
            _ => self.message.chunk(),
        }
    }

    fn advance(&mut self, count: usize) {
        self.message.advance(count);
        self.left = self.left.saturating_sub(usize::from(count > 0));
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        self.message.copy_to_bytes(len)
    }
}
