//! Old and new versions of objects, as S3 lists them.

use bytes::Bytes;
use forebay_proto::s3::date;
use http::Method;
use serde::Deserialize;

use crate::answers::{self, PrefixXml};
use crate::client::Call;
use crate::{Client, Result};

/// One version of an object, or a delete marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedVersion {
    /// The object's key: any bytes, as of [`crate::Listed`].
    pub key: Bytes,
    /// Its name; `null` of what was stored while no versions were kept.
    pub id: String,
    /// Its length in bytes; 0 of a marker.
    pub size: u64,
    /// Its entity tag, without quotes; empty of a marker.
    pub etag: String,
    /// When it was stored, in seconds since 1970.
    pub modified: i64,
    /// Whether it is what the key has now.
    pub current: bool,
    /// Whether it says that the object was deleted.
    pub marker: bool,
}

/// Part of a list of versions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VersionsPage {
    /// By key, of each the newest first.
    pub versions: Vec<ListedVersion>,
    /// Common prefixes, when a delimiter was given.
    pub prefixes: Vec<Bytes>,
    /// Where to go on; `None` at the end.
    pub next: Option<VersionsAfter>,
}

/// Where a list of versions goes on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VersionsAfter {
    key: Bytes,
    id: String,
}

/// Versions and markers come in one order, with what else is said of the list.
#[derive(Deserialize)]
struct VersionsXml {
    #[serde(rename = "$value", default)]
    said: Vec<Said>,
}

#[derive(Deserialize)]
enum Said {
    Version(VersionXml),
    DeleteMarker(VersionXml),
    CommonPrefixes(PrefixXml),
    EncodingType(String),
    IsTruncated(bool),
    NextKeyMarker(String),
    NextVersionIdMarker(String),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct VersionXml {
    key: String,
    version_id: String,
    #[serde(default)]
    is_latest: bool,
    #[serde(default)]
    last_modified: String,
    #[serde(rename = "ETag", default)]
    etag: String,
    #[serde(default)]
    size: u64,
}

impl Client {
    /// Part of the list of the versions that a namespace keeps of its objects: those after `next` of the page before.
    ///
    /// # Errors
    /// As every call.
    pub async fn versions(
        &self,
        namespace: &str,
        prefix: &str,
        delimiter: Option<&str>,
        next: Option<&VersionsAfter>,
    ) -> Result<VersionsPage> {
        let mut call = Call::namespace(Method::GET, namespace)
            .query("versions", "")
            .query("encoding-type", "url")
            .query("prefix", prefix);
        if let Some(delimiter) = delimiter {
            call = call.query("delimiter", delimiter);
        }
        if let Some(next) = next {
            call = call.query("key-marker", &next.key);
            // Of a common prefix there is none.
            if !next.id.is_empty() {
                call = call.query("version-id-marker", &next.id);
            }
        }
        let (_, text) = self.call_for_text(call).await?;
        let page = listing(&text)?;
        answers::goes_on(next, page.next.as_ref())?;
        Ok(page)
    }
}

fn listing(text: &str) -> Result<VersionsPage> {
    let list: VersionsXml = answers::parse(text)?;
    let is_url = |said: &Said| matches!(said, Said::EncodingType(how) if how == "url");
    let url = list.said.iter().any(is_url);
    let mut page = VersionsPage::default();
    let (mut more, mut next) = (false, VersionsAfter::default());
    for said in list.said {
        match said {
            Said::Version(version) => page.versions.push(version.read(url, false)?),
            Said::DeleteMarker(version) => page.versions.push(version.read(url, true)?),
            Said::CommonPrefixes(PrefixXml { prefix }) => {
                page.prefixes.push(answers::decoded(prefix, url)?.into());
            }
            Said::IsTruncated(truncated) => more = truncated,
            Said::NextKeyMarker(key) => next.key = answers::decoded(key, url)?.into(),
            Said::NextVersionIdMarker(id) => next.id = id,
            Said::EncodingType(_) | Said::Other => {}
        }
    }
    page.next = more.then_some(next);
    Ok(page)
}

impl VersionXml {
    fn read(self, url: bool, marker: bool) -> Result<ListedVersion> {
        Ok(ListedVersion {
            key: answers::decoded(self.key, url)?.into(),
            id: self.version_id,
            size: self.size,
            etag: self.etag.trim_matches('"').to_owned(),
            modified: date::parse_iso8601(&self.last_modified).unwrap_or(0),
            current: self.is_latest,
            marker,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_markers_are_read_in_their_order() {
        let page = listing(
            "<?xml version=\"1.0\"?><ListVersionsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
             <Name>b</Name><NextKeyMarker>b%2Bc</NextKeyMarker><NextVersionIdMarker>7</NextVersionIdMarker>\
             <EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>\
             <DeleteMarker><Key>a%20b</Key><VersionId>9</VersionId><IsLatest>true</IsLatest>\
             <LastModified>2024-01-02T03:04:05.000Z</LastModified><Owner><ID>x</ID></Owner></DeleteMarker>\
             <Version><Key>a%20b</Key><VersionId>8</VersionId><IsLatest>false</IsLatest><ETag>&quot;e&quot;</ETag>\
             <Size>5</Size></Version>\
             <DeleteMarker><Key>b%2Bc</Key><VersionId>7</VersionId><IsLatest>false</IsLatest></DeleteMarker>\
             <CommonPrefixes><Prefix>d%2F</Prefix></CommonPrefixes></ListVersionsResult>",
        )
        .unwrap();
        let found = page.versions.iter().map(|version| {
            let ListedVersion {
                id, current, size, ..
            } = version;
            (&version.key[..], &id[..], *current, version.marker, *size)
        });
        let expected: [(&[u8], &str, bool, bool, u64); 3] = [
            (b"a b", "9", true, true, 0),
            (b"a b", "8", false, false, 5),
            (b"b+c", "7", false, true, 0),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
        assert_eq!(page.prefixes, ["d/"]);
        let next = page.next.unwrap();
        assert_eq!((&next.key[..], &*next.id), (&b"b+c"[..], "7"));
    }
}
