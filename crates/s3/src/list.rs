//! `ListObjects` (V1), `ListObjectsV2` and `ListObjectVersions`.

use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::xml::{
    Listing, ObjectEntry, Owner, VersionEntry, VersionListing, list_objects_v1, list_objects_v2,
    list_versions,
};
use forebay_store::limits::LIST_ITEMS_MAX;
use forebay_store::{
    After, Item, ListOptions, ListPage, Meta, Space, Store, VersionItem, VersionPage,
};

use crate::call::Call;
use crate::headers;
use crate::kept;
use crate::reply::{self, Reply};
use crate::status::{Outcome, Refusal};

/// What all lists are asked with.
pub(crate) struct Asked<'q> {
    pub(crate) prefix: &'q str,
    pub(crate) delimiter: Option<&'q str>,
    /// At most 1000.
    pub(crate) limit: usize,
    pub(crate) encode_url: bool,
}

impl<'q> Asked<'q> {
    /// Reads the parameters; `limit` is the name of the one that bounds the page.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(crate) fn read<S: Store>(call: &Call<'q, S>, limit: &'static str) -> Outcome<Asked<'q>> {
        let encode_url = match call.query.get_nonempty("encoding-type") {
            None => false,
            Some("url") => true,
            Some(other) => {
                return Err(Refusal::argument(
                    "encoding-type",
                    other,
                    "Invalid Encoding Method specified in Request",
                ));
            }
        };
        let limit = call.query.number::<u32>(limit)?;
        let limit = limit.map_or(LIST_ITEMS_MAX, |limit| limit as usize);
        Ok(Asked {
            prefix: call.query.get("prefix").unwrap_or_default(),
            delimiter: call.query.get_nonempty("delimiter"),
            limit: limit.min(LIST_ITEMS_MAX),
            encode_url,
        })
    }

    /// Where a list goes on after a key that a client names. When that is a common prefix of this very list, everything
    /// under it has been reported.
    pub(crate) fn after<'k>(&self, key: &'k [u8]) -> After<'k> {
        match self.rolled_up(key) == Some(key) {
            true => After::Prefix(key),
            false => After::Key(key),
        }
    }

    /// The common prefix that stands for a key, delimiter included.
    pub(crate) fn rolled_up<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        let delimiter = self.delimiter?.as_bytes();
        let rest = key.strip_prefix(self.prefix.as_bytes())?;
        let at = rest
            .windows(delimiter.len())
            .position(|window| window == delimiter)?;
        key.get(..self.prefix.len() + at + delimiter.len())
    }

    fn options<'o>(&'o self, bucket: &'o str, after: After<'o>) -> ListOptions<'o> {
        ListOptions {
            namespace: bucket,
            space: Space::Objects,
            prefix: self.prefix.as_bytes(),
            delimiter: self.delimiter.map(str::as_bytes),
            after,
            limit: self.limit,
        }
    }
}

fn entry<'m>(key: &'m [u8], meta: &'m Meta, owner: Option<Owner<'m>>) -> ObjectEntry<'m> {
    ObjectEntry {
        key,
        last_modified_ms: meta.modified,
        etag: meta.etag.as_str(),
        size: meta.size,
        checksum: kept::checksum_kind(meta),
        owner,
    }
}

fn fill<'p>(listing: &mut Listing<'p>, page: &'p ListPage, owner: Option<Owner<'p>>) {
    for item in &page.items {
        match item {
            Item::Value(key, meta) => listing.contents.push(entry(key, meta, owner)),
            Item::Prefix(prefix) => listing.common_prefixes.push(prefix),
        }
    }
    listing.is_truncated = page.more;
}

fn last(page: &ListPage) -> Option<&[u8]> {
    page.items.last().map(|item| match item {
        Item::Value(key, _) => &key[..],
        Item::Prefix(prefix) => &prefix[..],
    })
}

/// Where a list goes on: after this key.
pub(crate) fn marker<'a, S: Store>(call: &Call<'a, S>, name: &str) -> Option<&'a [u8]> {
    call.query.bytes(name).filter(|key| !key.is_empty())
}

/// `ListObjects`.
pub(crate) async fn v1<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let asked = Asked::read(call, "max-keys")?;
    let marker = marker(call, "marker");
    let after = marker.map_or(After::Start, |marker| asked.after(marker));
    let page = call.store().list(asked.options(call.bucket, after)).await?;
    let mut listing = Listing {
        bucket: call.bucket,
        prefix: asked.prefix.as_bytes(),
        delimiter: asked.delimiter.map(str::as_bytes),
        max_keys: asked.limit as u32,
        encode_url: asked.encode_url,
        start_after: marker,
        ..Listing::default()
    };
    fill(&mut listing, &page, Some(call.owner()));
    // Without a delimiter clients go on after the last key; S3 then says no marker.
    listing.next = last(&page).filter(|_| page.more && asked.delimiter.is_some());
    Ok(reply::xml(list_objects_v1(&listing)))
}

/// `ListObjectsV2`.
pub(crate) async fn v2<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let asked = Asked::read(call, "max-keys")?;
    let start_after = marker(call, "start-after");
    let token = call.query.get("continuation-token");
    let resumed = token.map(Token::parse).transpose()?;
    let after = match (&resumed, start_after) {
        (Some(token), _) => token.after(),
        (None, Some(key)) => asked.after(key),
        (None, None) => After::Start,
    };
    let page = call.store().list(asked.options(call.bucket, after)).await?;
    let next = page.next().map(Token::text);
    let fetch_owner = call.query.get("fetch-owner") == Some("true");
    let mut listing = Listing {
        bucket: call.bucket,
        prefix: asked.prefix.as_bytes(),
        delimiter: asked.delimiter.map(str::as_bytes),
        max_keys: asked.limit as u32,
        encode_url: asked.encode_url,
        start_after,
        next: next.as_deref().map(str::as_bytes),
        continuation_token: token,
        ..Listing::default()
    };
    fill(&mut listing, &page, fetch_owner.then(|| call.owner()));
    Ok(reply::xml(list_objects_v2(&listing)))
}

/// A continuation token: where a list goes on, in a form that clients hand back untouched. Hexadecimal, so that it needs
/// no encoding anywhere.
struct Token {
    prefix: bool,
    key: Vec<u8>,
}

impl Token {
    fn text(after: After<'_>) -> String {
        let (kind, key) = match after {
            After::Prefix(prefix) => ('p', prefix),
            After::Key(key) | After::Version(key, _) => ('k', key),
            After::Start => ('k', &b""[..]),
        };
        let mut text = String::with_capacity(1 + key.len() * 2);
        text.push(kind);
        text.push_str(&forebay_proto::hex::encode(key));
        text
    }

    fn parse(text: &str) -> Outcome<Token> {
        let invalid = || {
            Refusal::argument(
                "continuation-token",
                text,
                "The continuation token provided is incorrect",
            )
        };
        let (kind, digits) = text.split_at_checked(1).ok_or_else(invalid)?;
        let prefix = match kind {
            "p" => true,
            "k" => false,
            _ => return Err(invalid()),
        };
        let pairs = digits.as_bytes().chunks_exact(2);
        if !pairs.remainder().is_empty() {
            return Err(invalid());
        }
        let key: Vec<u8> = pairs
            .map(|pair| {
                let high = forebay_proto::hex::digit(pair[0])?;
                Some(high << 4 | forebay_proto::hex::digit(pair[1])?)
            })
            .collect::<Option<_>>()
            .ok_or_else(invalid)?;
        if key.is_empty() || key.len() > forebay_store::KEY_BYTES_MAX {
            return Err(invalid());
        }
        Ok(Token { prefix, key })
    }

    fn after(&self) -> After<'_> {
        match self.prefix {
            true => After::Prefix(&self.key),
            false => After::Key(&self.key),
        }
    }
}

/// `ListObjectVersions`.
pub(crate) async fn versions<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let asked = Asked::read(call, "max-keys")?;
    let key_marker = marker(call, "key-marker");
    let version_marker = call.query.get_nonempty("version-id-marker");
    let after = match (key_marker, version_marker) {
        (None, None) => After::Start,
        (None, Some(_)) => {
            return Err(Refusal::new(
                ErrorCode::InvalidArgument,
                "A version-id marker cannot be specified without a key marker.",
            ));
        }
        (Some(key), None) => asked.after(key),
        (Some(key), Some(version)) => After::Version(key, headers::parse_version(version)?),
    };
    let page = call
        .store()
        .list_versions(asked.options(call.bucket, after))
        .await?;
    Ok(reply::xml(render(call, &asked, &page)))
}

fn render<S: Store>(call: &Call<'_, S>, asked: &Asked<'_>, page: &VersionPage) -> String {
    let ids: Vec<String> = page
        .items
        .iter()
        .map(|item| match item {
            VersionItem::Value { meta, .. } => headers::version_text(meta.version),
            VersionItem::Marker { version, .. } => headers::version_text(*version),
            VersionItem::Prefix(_) => String::new(),
        })
        .collect();
    let owner = Some(call.owner());
    let mut listing = VersionListing {
        bucket: call.bucket,
        prefix: asked.prefix.as_bytes(),
        delimiter: asked.delimiter.map(str::as_bytes),
        key_marker: call.query.bytes("key-marker").unwrap_or_default(),
        version_id_marker: call.query.get("version-id-marker").unwrap_or_default(),
        max_keys: asked.limit as u32,
        encode_url: asked.encode_url,
        ..VersionListing::default()
    };
    for (item, id) in page.items.iter().zip(&ids) {
        match item {
            VersionItem::Value { key, meta, latest } => listing.versions.push(VersionEntry {
                object: entry(key, meta, owner),
                version_id: id,
                is_latest: *latest,
                is_delete_marker: false,
            }),
            VersionItem::Marker {
                key,
                modified,
                latest,
                ..
            } => listing.versions.push(VersionEntry {
                object: ObjectEntry {
                    key,
                    last_modified_ms: *modified,
                    etag: "",
                    size: 0,
                    checksum: None,
                    owner,
                },
                version_id: id,
                is_latest: *latest,
                is_delete_marker: true,
            }),
            VersionItem::Prefix(prefix) => listing.common_prefixes.push(prefix),
        }
    }
    if page.more {
        listing.next = page.items.last().zip(ids.last()).map(|(item, id)| {
            let key = match item {
                VersionItem::Value { key, .. } | VersionItem::Marker { key, .. } => &key[..],
                VersionItem::Prefix(prefix) => &prefix[..],
            };
            (key, id.as_str())
        });
    }
    list_versions(&listing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip_and_forgeries_are_refused() {
        for after in [After::Key(b"a/\xff"), After::Prefix(b"b/")] {
            let text = Token::text(after);
            let token = Token::parse(&text).unwrap_or_else(|_| panic!("own token {text}"));
            assert_eq!(token.after(), after);
        }
        for wrong in ["", "k", "x61", "k6", "kzz", "\u{e9}61", &"k61".repeat(2000)] {
            assert!(Token::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_marker_that_is_a_common_prefix_skips_all_of_it() {
        let asked = Asked {
            prefix: "a/",
            delimiter: Some("/"),
            limit: 10,
            encode_url: false,
        };
        assert_eq!(asked.after(b"a/b/"), After::Prefix(b"a/b/"));
        assert_eq!(asked.after(b"a/b/c/"), After::Key(b"a/b/c/"));
        assert_eq!(asked.after(b"a/b"), After::Key(b"a/b"));
        assert_eq!(asked.after(b"z/"), After::Key(b"z/"));
    }
}
