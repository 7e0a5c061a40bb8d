//! What is kept with an object beside its bytes, and given back with it.

use std::collections::BTreeMap;

use forebay_api::v1;
use forebay_proto::direct;
use forebay_proto::s3::kept::{TAGGING, USER};
use forebay_proto::s3::percent::{Slash, encode_into};

/// What is kept with an object beside its bytes; what is empty is not said. The server knows what is legal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Its type; the server's default when empty.
    pub content_type: String,
    /// How long others may keep copies of it.
    pub cache_control: String,
    /// As what a browser takes it.
    pub content_disposition: String,
    /// How its bytes are coded.
    pub content_encoding: String,
    /// For readers of which languages.
    pub content_language: String,
    /// User metadata, at most 2048 bytes in all; names without `x-amz-meta-`. A name given twice has its last value.
    pub metadata: Vec<(String, String)>,
    /// At most ten.
    pub tags: Vec<(String, String)>,
}

impl Attributes {
    /// As headers, names in ascending order.
    pub(crate) fn headers(&self) -> BTreeMap<String, String> {
        let plain = [
            ("content-type", &self.content_type),
            ("cache-control", &self.cache_control),
            ("content-disposition", &self.content_disposition),
            ("content-encoding", &self.content_encoding),
            ("content-language", &self.content_language),
        ];
        let plain = plain.into_iter().filter(|(_, value)| !value.is_empty());
        let mut headers: BTreeMap<String, String> = plain
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect();
        for (name, value) in &self.metadata {
            let name = format!("{USER}{}", name.to_ascii_lowercase());
            headers.insert(name, value.clone());
        }
        let mut tags = String::new();
        for (name, value) in &self.tags {
            if !tags.is_empty() {
                tags.push('&');
            }
            encode_into(&mut tags, name.as_bytes(), Slash::Encode);
            tags.push('=');
            encode_into(&mut tags, value.as_bytes(), Slash::Encode);
        }
        if !tags.is_empty() {
            headers.insert(TAGGING.to_owned(), tags);
        }
        headers
    }

    /// As a message of the gRPC interface carries them.
    pub(crate) fn message(&self) -> v1::Attributes {
        let metadata = self.metadata.iter();
        let metadata = metadata.map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
        v1::Attributes {
            content_type: self.content_type.clone(),
            cache_control: self.cache_control.clone(),
            content_disposition: self.content_disposition.clone(),
            content_encoding: self.content_encoding.clone(),
            content_language: self.content_language.clone(),
            expires: String::new(),
            metadata: metadata.collect(),
            tags: self.tags.iter().cloned().collect(),
        }
    }

    /// As a message of the direct path carries them.
    pub(crate) fn encode<'e>(
        &self,
        encoded: &'e mut Vec<u8>,
    ) -> Result<direct::Attributes<'e>, direct::Full> {
        let headers = self.headers();
        let pairs = headers.iter();
        direct::Attributes::encode(
            encoded,
            pairs.map(|(name, value)| (&name[..], value.as_bytes())),
        )
    }
}

impl From<v1::Attributes> for Attributes {
    fn from(told: v1::Attributes) -> Attributes {
        Attributes {
            content_type: told.content_type,
            cache_control: told.cache_control,
            content_disposition: told.content_disposition,
            content_encoding: told.content_encoding,
            content_language: told.content_language,
            metadata: told.metadata.into_iter().collect(),
            tags: told.tags.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_in_order_and_tags_are_coded() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let attributes = Attributes {
            content_type: "text/plain".to_owned(),
            metadata: vec![pair("B", "1"), pair("a", "2"), pair("b", "3")],
            tags: vec![pair("k y", "v&"), pair("z", "")],
            ..Attributes::default()
        };
        let headers: Vec<_> = attributes.headers().into_iter().collect();
        assert_eq!(
            headers,
            [
                pair("content-type", "text/plain"),
                pair("x-amz-meta-a", "2"),
                pair("x-amz-meta-b", "3"),
                pair("x-amz-tagging", "k%20y=v%26&z="),
            ]
        );
        let mut encoded = Vec::new();
        assert_eq!(
            attributes
                .encode(&mut encoded)
                .map(|all| all.iter().count()),
            Ok(4)
        );
        assert!(Attributes::default().headers().is_empty());
    }
}
