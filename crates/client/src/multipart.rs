//! Values that arrive in parts.

use bytes::Bytes;
use forebay_proto::s3::xml::MAX_PARTS;
use http::{HeaderMap, Method};

use crate::calls::{conditional, kept};
use crate::client::{Call, header};
use crate::direct::{Condition, Path};
use crate::{Attributes, Client, Crc64, Part, Result, UnfinishedUpload, answers};

impl Client {
    /// Begins an upload of what will be kept with these attributes and verified as a whole by CRC-64/NVME, and returns its id.
    ///
    /// # Errors
    /// As every call.
    pub async fn create_upload(
        &self,
        namespace: &str,
        key: &str,
        attributes: &Attributes,
    ) -> Result<String> {
        self.begin_upload(namespace, key, kept(attributes)?).await
    }

    /// The same; the headers are those of what is kept with the object.
    pub(crate) async fn begin_upload(
        &self,
        namespace: &str,
        key: &str,
        kept: HeaderMap,
    ) -> Result<String> {
        let mut call = Call::object(Method::POST, namespace, key)?;
        call.headers = kept;
        let mut call = call
            .header("x-amz-checksum-algorithm", "CRC64NVME")?
            .header("x-amz-checksum-type", "FULL_OBJECT")?;
        call.query = "uploads=".to_owned();
        // Twice makes two uploads, one of which nobody would finish.
        call.repeatable = false;
        let (_, text) = self.call_for_text(call).await?;
        answers::upload_id(&text)
    }

    /// Sends part `number` (1 to 10 000).
    ///
    /// # Errors
    /// As every call.
    pub async fn upload_part(
        &self,
        namespace: &str,
        key: &str,
        upload: &str,
        number: u32,
        body: Bytes,
    ) -> Result<Part> {
        let crc = Crc64::of(&body);
        self.put_part(namespace, key, upload, number, body, crc)
            .await
    }

    /// The same; `crc` was made where the bytes come from.
    pub(crate) async fn put_part(
        &self,
        namespace: &str,
        key: &str,
        upload: &str,
        number: u32,
        body: Bytes,
        crc: Crc64,
    ) -> Result<Part> {
        let size = body.len() as u64;
        let call = Call::object(Method::PUT, namespace, key)?
            .query("partNumber", &number.to_string())
            .query("uploadId", upload)
            .header("x-amz-checksum-crc64nvme", &crc.to_header())?
            .body(body);
        let sent = self.call_for_text(call).await;
        let (headers, _) = sent.map_err(|error| error.of_upload(namespace, key, Path::Http))?;
        Ok(Part {
            number,
            size,
            etag: header(&headers, "etag").trim_matches('"').to_owned(),
            crc64nvme: Some(crc.value()),
        })
    }

    /// Puts the parts together, in ascending order of number; with `whole`, the server refuses any other bytes.
    ///
    /// # Errors
    /// As every call; [`crate::Error::Refused`] with status 412 when the condition does not hold.
    pub async fn complete_upload(
        &self,
        namespace: &str,
        key: &str,
        upload: &str,
        parts: &[Part],
        whole: Option<Crc64>,
        condition: Condition<'_>,
    ) -> Result<String> {
        let mut body = String::from("<CompleteMultipartUpload>");
        for part in parts {
            body.push_str("<Part><PartNumber>");
            body.push_str(&part.number.to_string());
            body.push_str("</PartNumber><ETag>\"");
            body.push_str(&quick_xml::escape::escape(part.etag.as_str()));
            body.push_str("\"</ETag>");
            if let Some(crc) = part.crc64nvme {
                body.push_str("<ChecksumCRC64NVME>");
                body.push_str(&Crc64::known(crc, part.size).to_header());
                body.push_str("</ChecksumCRC64NVME>");
            }
            body.push_str("</Part>");
        }
        body.push_str("</CompleteMultipartUpload>");
        let call = Call::object(Method::POST, namespace, key)?
            .query("uploadId", upload)
            .body(body.into());
        let mut call = conditional(call, condition)?;
        if let Some(whole) = whole {
            call = call
                .header("x-amz-checksum-crc64nvme", &whole.to_header())?
                .header("x-amz-checksum-type", "FULL_OBJECT")?;
        }
        // When the first answer was lost, a second call finds the upload gone.
        call.repeatable = false;
        let (_, text) = self.call_for_text(call).await?;
        answers::tag(&text)
    }

    /// Gives an upload up; its parts go.
    ///
    /// # Errors
    /// As every call.
    pub async fn abort_upload(&self, namespace: &str, key: &str, upload: &str) -> Result<()> {
        let call = Call::object(Method::DELETE, namespace, key)?.query("uploadId", upload);
        self.call_for_text(call).await?;
        Ok(())
    }

    /// The unfinished uploads of keys that begin with `prefix`.
    ///
    /// # Errors
    /// As every call.
    pub async fn uploads(&self, namespace: &str, prefix: &str) -> Result<Vec<UnfinishedUpload>> {
        self.uploads_while(namespace, prefix, |_| true).await
    }

    /// Those of just this key, which come before those of others that begin so.
    pub(crate) async fn uploads_of(
        &self,
        namespace: &str,
        key: &str,
    ) -> Result<Vec<UnfinishedUpload>> {
        let mut uploads = self
            .uploads_while(namespace, key, |upload| upload.key == key)
            .await?;
        uploads.retain(|upload| upload.key == key);
        Ok(uploads)
    }

    /// The pages of keys that begin with `prefix`, up to the first with one that is not `wanted`.
    async fn uploads_while(
        &self,
        namespace: &str,
        prefix: &str,
        wanted: impl Fn(&UnfinishedUpload) -> bool,
    ) -> Result<Vec<UnfinishedUpload>> {
        let mut uploads = Vec::new();
        let mut markers = None::<answers::Markers>;
        loop {
            let mut call = Call::namespace(Method::GET, namespace);
            call.query = "uploads=".to_owned();
            call = call.query("encoding-type", "url").query("prefix", prefix);
            if let Some((key, upload)) = &markers {
                call = call
                    .query("key-marker", key)
                    .query("upload-id-marker", upload);
            }
            let (_, text) = self.call_for_text(call).await?;
            let (page, next) = answers::uploads(&text)?;
            answers::ascends(markers.as_ref(), next.as_ref())?;
            let goes_on = page.iter().all(&wanted);
            uploads.extend(page);
            match next {
                Some(next) if goes_on => markers = Some(next),
                _ => return Ok(uploads),
            }
        }
    }

    /// The parts that an unfinished upload has.
    ///
    /// # Errors
    /// As every call.
    pub async fn parts(&self, namespace: &str, key: &str, upload: &str) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        let mut marker = None::<u32>;
        loop {
            let mut call = Call::object(Method::GET, namespace, key)?.query("uploadId", upload);
            if let Some(marker) = marker {
                call = call.query("part-number-marker", &marker.to_string());
            }
            let (_, text) = self.call_for_text(call).await?;
            let (page, next) = answers::parts(&text)?;
            answers::ascends(marker.as_ref(), next.as_ref())?;
            parts.extend(page);
            if parts.len() > MAX_PARTS as usize {
                return Err(answers::endless());
            }
            match next {
                Some(next) => marker = Some(next),
                None => return Ok(parts),
            }
        }
    }
}
