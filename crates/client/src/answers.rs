//! What S3's XML answers say.

use bytes::Bytes;
use forebay_proto::s3::xml::MAX_PARTS;
use forebay_proto::s3::{date, percent};
use http::HeaderMap;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::client::header;
use crate::{Error, Refusal, Result, checksum};

/// What is known of an object without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its length in bytes.
    pub size: u64,
    /// Its entity tag, without quotes.
    pub etag: String,
    /// When it was stored, in seconds since 1970.
    pub modified: i64,
    /// Its type.
    pub content_type: String,
    /// How long others may keep copies of it; empty when that was not said.
    pub cache_control: String,
    /// How many tags it has.
    pub tags: usize,
    /// Its version, in a namespace that keeps versions.
    pub version: Option<String>,
    /// CRC-64/NVME of all its bytes, when the server states it.
    pub crc64nvme: Option<u64>,
    /// User metadata, names without `x-amz-meta-`.
    pub metadata: Vec<(String, String)>,
}

impl ObjectInfo {
    pub(crate) fn from_headers(headers: &HeaderMap) -> Result<ObjectInfo> {
        let size = match header(headers, "content-range").rsplit_once('/') {
            Some((_, total)) => total.to_owned(),
            None => header(headers, "content-length"),
        };
        let version = header(headers, "x-amz-version-id");
        let metadata = headers.iter().filter_map(|(name, value)| {
            let name = name.as_str().strip_prefix("x-amz-meta-")?;
            Some((
                name.to_owned(),
                String::from_utf8_lossy(value.as_bytes()).into_owned(),
            ))
        });
        Ok(ObjectInfo {
            size: size
                .parse()
                .map_err(|_| Error::Protocol("no length".to_owned()))?,
            etag: header(headers, "etag").trim_matches('"').to_owned(),
            modified: date::parse_http_date(&header(headers, "last-modified")).unwrap_or(0),
            content_type: header(headers, "content-type"),
            cache_control: header(headers, "cache-control"),
            tags: header(headers, "x-amz-tagging-count").parse().unwrap_or(0),
            version: (!version.is_empty()).then_some(version),
            crc64nvme: checksum::from_header(&header(headers, "x-amz-checksum-crc64nvme")),
            metadata: metadata.collect(),
        })
    }
}

/// One object of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its key: any bytes, for other doors than S3's take keys that are no text.
    pub key: Bytes,
    /// Its length in bytes.
    pub size: u64,
    /// Its entity tag, without quotes.
    pub etag: String,
    /// When it was stored, in seconds since 1970.
    pub modified: i64,
}

/// Part of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListingPage {
    /// Objects, by key.
    pub objects: Vec<Listed>,
    /// Common prefixes, when a delimiter was given.
    pub prefixes: Vec<Bytes>,
    /// Where to go on; `None` at the end.
    pub next: Option<String>,
}

/// A part of an unfinished upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// 1 to 10 000.
    pub number: u32,
    /// Its length in bytes.
    pub size: u64,
    /// Its entity tag, without quotes.
    pub etag: String,
    /// CRC-64/NVME of its bytes, when the server states it.
    pub crc64nvme: Option<u64>,
}

/// A multipart upload that was neither completed nor aborted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfinishedUpload {
    /// The key it is for.
    pub key: String,
    /// Its name.
    pub id: String,
    /// When it was begun, in seconds since 1970.
    pub initiated: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ErrorXml {
    code: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    resource: String,
    #[serde(default)]
    request_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListXml {
    #[serde(default)]
    contents: Vec<ContentsXml>,
    #[serde(default)]
    common_prefixes: Vec<PrefixXml>,
    next_continuation_token: Option<String>,
    encoding_type: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContentsXml {
    key: String,
    #[serde(default)]
    last_modified: String,
    #[serde(rename = "ETag", default)]
    etag: String,
    size: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct PrefixXml {
    pub(crate) prefix: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BucketsXml {
    #[serde(default)]
    buckets: BucketListXml,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct BucketListXml {
    #[serde(default)]
    bucket: Vec<BucketXml>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BucketXml {
    name: String,
    #[serde(default)]
    creation_date: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InitiatedXml {
    upload_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct UploadsXml {
    #[serde(default)]
    upload: Vec<UploadXml>,
    #[serde(default)]
    is_truncated: bool,
    #[serde(default)]
    next_key_marker: String,
    #[serde(default)]
    next_upload_id_marker: String,
    encoding_type: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct UploadXml {
    key: String,
    upload_id: String,
    #[serde(default)]
    initiated: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PartsXml {
    #[serde(default)]
    part: Vec<PartXml>,
    #[serde(default)]
    is_truncated: bool,
    #[serde(default)]
    next_part_number_marker: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PartXml {
    part_number: u32,
    size: u64,
    #[serde(rename = "ETag")]
    etag: String,
    #[serde(rename = "ChecksumCRC64NVME")]
    crc64nvme: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeleteXml {
    #[serde(default)]
    error: Vec<DeleteErrorXml>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeleteErrorXml {
    #[serde(default)]
    key: String,
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TaggedXml {
    #[serde(rename = "ETag", default)]
    etag: String,
}

/// An error document; also one that came with status 200 (S3 answers long calls so).
pub(crate) fn refusal(text: &str) -> Option<Refusal> {
    let start = text.find("<Error>")?;
    let error: ErrorXml = quick_xml::de::from_str(text.get(start..)?).ok()?;
    Some(Refusal {
        status: 500,
        code: error.code,
        message: error.message,
        resource: error.resource,
        request_id: error.request_id,
    })
}

impl Refusal {
    /// What an endpoint answered to somebody else's request: its status, and the body where that is S3's error document.
    pub fn of(status: u16, body: &str) -> Refusal {
        let told = refusal(body).unwrap_or_else(|| Refusal {
            status,
            code: String::new(),
            message: body.to_owned(),
            resource: String::new(),
            request_id: String::new(),
        });
        told.with_status(status)
    }

    pub(crate) fn with_status(mut self, status: u16) -> Refusal {
        self.status = status;
        self
    }
}

pub(crate) fn listing(text: &str) -> Result<ListingPage> {
    let list: ListXml = parse(text)?;
    let url = list.encoding_type.as_deref() == Some("url");
    let objects = list.contents.into_iter().map(|object| {
        Ok(Listed {
            key: decoded(object.key, url)?.into(),
            size: object.size,
            etag: object.etag.trim_matches('"').to_owned(),
            modified: date::parse_iso8601(&object.last_modified).unwrap_or(0),
        })
    });
    let prefixes = list
        .common_prefixes
        .into_iter()
        .map(|prefix| decoded(prefix.prefix, url).map(Bytes::from));
    Ok(ListingPage {
        objects: objects.collect::<Result<_>>()?,
        prefixes: prefixes.collect::<Result<_>>()?,
        next: list.next_continuation_token.filter(|next| !next.is_empty()),
    })
}

/// Names with creation times in seconds since 1970.
pub(crate) fn namespaces(text: &str) -> Result<Vec<(String, i64)>> {
    let list: BucketsXml = parse(text)?;
    let named = list.buckets.bucket.into_iter().map(|bucket| {
        let created = date::parse_iso8601(&bucket.creation_date).unwrap_or(0);
        (bucket.name, created)
    });
    Ok(named.collect())
}

pub(crate) fn upload_id(text: &str) -> Result<String> {
    Ok(parse::<InitiatedXml>(text)?.upload_id)
}

/// Where a list of uploads goes on: key marker and upload id marker.
pub(crate) type Markers = (String, String);

/// Uploads, and the two markers to go on from.
pub(crate) fn uploads(text: &str) -> Result<(Vec<UnfinishedUpload>, Option<Markers>)> {
    let list: UploadsXml = parse(text)?;
    let url = list.encoding_type.as_deref() == Some("url");
    let uploads = list.upload.into_iter().map(|upload| {
        Ok(UnfinishedUpload {
            key: as_text(upload.key, url)?,
            id: upload.upload_id,
            initiated: date::parse_iso8601(&upload.initiated).unwrap_or(0),
        })
    });
    let next = match list.is_truncated {
        true => Some((
            as_text(list.next_key_marker, url)?,
            list.next_upload_id_marker,
        )),
        false => None,
    };
    Ok((uploads.collect::<Result<_>>()?, next))
}

/// Parts, and the marker to go on from.
pub(crate) fn parts(text: &str) -> Result<(Vec<Part>, Option<u32>)> {
    let list: PartsXml = parse(text)?;
    let parts = list.part.into_iter().map(|part| Part {
        number: part.part_number,
        size: part.size,
        etag: part.etag.trim_matches('"').to_owned(),
        crc64nvme: part.crc64nvme.as_deref().and_then(checksum::from_header),
    });
    let marker = || {
        let number = list.next_part_number_marker.parse().ok();
        number.filter(|number| *number <= MAX_PARTS)
    };
    let next = match list.is_truncated {
        true => Some(marker().ok_or_else(endless)?),
        false => None,
    };
    Ok((parts.collect(), next))
}

/// Refuses a page that is to be followed by itself: nobody would come to the end of such a list.
pub(crate) fn goes_on<T: PartialEq>(from: Option<T>, next: Option<T>) -> Result<()> {
    match next.is_some() && from == next {
        true => Err(endless()),
        false => Ok(()),
    }
}

/// The same of lists whose markers are in their order: then no pages follow each other in a circle.
pub(crate) fn ascends<T: PartialOrd>(from: Option<&T>, next: Option<&T>) -> Result<()> {
    match next.is_some() && next <= from {
        true => Err(endless()),
        false => Ok(()),
    }
}

pub(crate) fn endless() -> Error {
    Error::Protocol("a list without an end".to_owned())
}

/// The entity tag of a copy or a completed upload, unless the answer is an error after all.
pub(crate) fn tag(text: &str) -> Result<String> {
    if let Some(refusal) = refusal(text) {
        return Err(refusal.into());
    }
    Ok(parse::<TaggedXml>(text)?.etag.trim_matches('"').to_owned())
}

/// The keys that could not be deleted, with the reason.
pub(crate) fn delete_errors(text: &str) -> Result<Vec<(String, String)>> {
    let result: DeleteXml = parse(text)?;
    let errors = result
        .error
        .into_iter()
        .map(|error| (error.key, format!("{}: {}", error.code, error.message)));
    Ok(errors.collect())
}

pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T> {
    quick_xml::de::from_str(text).map_err(|error| Error::Protocol(error.to_string()))
}

pub(crate) fn decoded(text: String, url: bool) -> Result<Vec<u8>> {
    if !url {
        return Ok(text.into_bytes());
    }
    let bytes = percent::decode(&text, true)
        .ok_or_else(|| Error::Protocol(format!("{text:?} is not URL-encoded")))?;
    Ok(bytes.into_owned())
}

/// The same of an upload, which S3 alone begins: its key is text.
fn as_text(text: String, url: bool) -> Result<String> {
    String::from_utf8(decoded(text, url)?).map_err(|error| {
        let key = error.as_bytes().escape_ascii();
        Error::Protocol(format!("key {key} is not UTF-8"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read() {
        let page = listing(
            "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
             <Name>b</Name><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>\
             <Contents><Key>a%20b%2Bc</Key><LastModified>2024-01-02T03:04:05.000Z</LastModified>\
             <ETag>&quot;x&quot;</ETag><Size>5</Size></Contents>\
             <Contents><Key>e</Key><Size>0</Size></Contents><Contents><Key>%FF%00</Key><Size>0</Size></Contents>\
             <CommonPrefixes><Prefix>d%2F</Prefix></CommonPrefixes>\
             <NextContinuationToken>t</NextContinuationToken></ListBucketResult>",
        )
        .unwrap();
        assert_eq!(page.objects[0].key, "a b+c");
        assert_eq!(
            (page.objects[0].size, page.objects[0].etag.as_str()),
            (5, "x")
        );
        assert_eq!(page.objects[1].key, "e");
        assert_eq!(page.objects[2].key, b"\xff\0"[..]);
        assert_eq!(page.prefixes, ["d/"]);
        assert_eq!(page.next.as_deref(), Some("t"));
    }

    #[test]
    fn an_error_with_status_200_is_an_error() {
        let text = "<?xml version=\"1.0\"?>\n<Error><Code>InternalError</Code><Message>m</Message></Error>";
        assert!(
            matches!(tag(text), Err(Error::Refused(refusal)) if refusal.code == "InternalError")
        );
        assert_eq!(
            tag("<CopyObjectResult><ETag>\"e\"</ETag></CopyObjectResult>").unwrap(),
            "e"
        );
    }
}
