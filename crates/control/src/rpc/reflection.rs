//! What lets clients that know nothing of `forebay.v1` call it. The interface is no secret: anybody may ask.

use forebay_api::DESCRIPTORS;
use tonic_reflection::server::{Builder, Error, v1, v1alpha};

/// The longest question.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

fn builder() -> Builder<'static> {
    Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS)
}

/// As it is today.
pub(crate) fn v1() -> Result<v1::ServerReflectionServer<impl v1::ServerReflection>, Error> {
    Ok(builder()
        .build_v1()?
        .max_decoding_message_size(MESSAGE_BYTES_MAX))
}

/// As older clients ask.
pub(crate) fn v1alpha()
-> Result<v1alpha::ServerReflectionServer<impl v1alpha::ServerReflection>, Error> {
    Ok(builder()
        .build_v1alpha()?
        .max_decoding_message_size(MESSAGE_BYTES_MAX))
}
