//! Copies inside the server.

use forebay_proto::s3::kept;
use forebay_proto::s3::percent::{self, Slash};
use forebay_proto::s3::tags::{MAX_OBJECT_TAGS, Tags};
use http::{HeaderMap, HeaderValue, Method};

use crate::client::Call;
use crate::{Client, Error, ObjectInfo, Part, Result, answers};

impl Client {
    /// Copies an object inside the server, with what is kept with it. Of the `size` that it has, or a little more or less, depends only how
    /// long the server may take.
    ///
    /// # Errors
    /// As every call.
    pub async fn copy(&self, from: (&str, &str), to: (&str, &str), size: u64) -> Result<String> {
        let mut call = Call::object(Method::PUT, to.0, to.1)?
            .header("x-amz-copy-source", &self.copy_source(from))?;
        call.moves = size;
        let (_, text) = self.call_for_text(call).await?;
        answers::tag(&text)
    }

    /// Makes part `number` of bytes `first..=last` of another object, inside the server, while `etag` is that one's tag.
    ///
    /// # Errors
    /// As every call; [`Error::Refused`] with status 412 when the object has been replaced.
    pub async fn copy_part(
        &self,
        from: (&str, &str),
        etag: &str,
        (first, last): (u64, u64),
        to: (&str, &str),
        upload: &str,
        number: u32,
    ) -> Result<Part> {
        let size = last.saturating_sub(first).saturating_add(1);
        let mut call = Call::object(Method::PUT, to.0, to.1)?
            .query("partNumber", &number.to_string())
            .query("uploadId", upload)
            .header("x-amz-copy-source", &self.copy_source(from))?
            .header("x-amz-copy-source-if-match", &format!("\"{etag}\""))?
            .header("x-amz-copy-source-range", &format!("bytes={first}-{last}"))?;
        call.moves = size;
        let (_, text) = self.call_for_text(call).await?;
        Ok(Part {
            number,
            size,
            etag: answers::tag(&text)?,
            crc64nvme: None,
        })
    }

    /// What a call that makes an object says, where all is to be kept with it that is kept with another one, whose headers these are.
    pub(crate) async fn kept_with(
        &self,
        (namespace, key): (&str, &str),
        headers: &HeaderMap,
    ) -> Result<HeaderMap> {
        let mut kept = HeaderMap::new();
        for (name, value) in headers {
            let text = name.as_str();
            if kept::HEADERS.contains(&text) || text.starts_with(kept::USER) {
                kept.append(name, value.clone());
            }
        }
        // Whoever may not read tags may copy what has none.
        if ObjectInfo::from_headers(headers)?.tags > 0 {
            let tags = self.tags(namespace, key).await?.to_header();
            let tags = HeaderValue::try_from(tags).map_err(|_| odd_tags())?;
            kept.insert(kept::TAGGING, tags);
        }
        Ok(kept)
    }

    /// The tags of an object.
    ///
    /// # Errors
    /// As every call.
    pub async fn tags(&self, namespace: &str, key: &str) -> Result<Tags> {
        let mut call = Call::object(Method::GET, namespace, key)?;
        call.query = "tagging=".to_owned();
        let (_, text) = self.call_for_text(self.versioned(call)).await?;
        Tags::from_xml(text.as_bytes(), MAX_OBJECT_TAGS).map_err(|_| odd_tags())
    }

    fn copy_source(&self, from: (&str, &str)) -> String {
        let (namespace, key) = (from.0, percent::encode(from.1, Slash::Keep));
        match self.version() {
            Some(id) => format!("/{namespace}/{key}?versionId={id}"),
            None => format!("/{namespace}/{key}"),
        }
    }
}

fn odd_tags() -> Error {
    Error::Protocol("tags that are none".to_owned())
}
