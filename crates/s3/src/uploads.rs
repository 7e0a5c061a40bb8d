//! `ListMultipartUploads`.

use std::collections::BTreeSet;

use forebay_proto::s3::xml::{UploadEntry, UploadListing, list_multipart_uploads};
use forebay_store::{After, Item, ListOptions, Meta, Space, Store};

use crate::call::Call;
use crate::list::{Asked, marker};
use crate::reply::{self, Reply};
use crate::staging::{self, UploadId};
use crate::status::Outcome;

/// An upload that is listed.
struct Found {
    key: Vec<u8>,
    id: UploadId,
    meta: Meta,
}

/// A page being filled.
#[derive(Default)]
struct Page {
    uploads: Vec<Found>,
    prefixes: BTreeSet<Vec<u8>>,
    /// Where the next page begins, when there is one: after this key, and this upload of it.
    next: Option<(Vec<u8>, String)>,
}

impl Page {
    fn len(&self) -> usize {
        self.uploads.len() + self.prefixes.len()
    }
}

/// `ListMultipartUploads`.
pub(crate) async fn list<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let asked = Asked::read(call, "max-uploads")?;
    let key_marker = marker(call, "key-marker");
    // Without a key marker S3 ignores the other one.
    let id_marker = call
        .query
        .get_nonempty("upload-id-marker")
        .filter(|_| key_marker.is_some());
    let page = collect(call, &asked, key_marker, id_marker).await?;
    let listing = UploadListing {
        bucket: call.bucket,
        prefix: asked.prefix.as_bytes(),
        delimiter: asked.delimiter.map(str::as_bytes),
        key_marker: key_marker.unwrap_or_default(),
        upload_id_marker: id_marker.unwrap_or_default(),
        next: page
            .next
            .as_ref()
            .map(|(key, id)| (key.as_slice(), id.as_str())),
        max_uploads: asked.limit as u32,
        encode_url: asked.encode_url,
        uploads: page
            .uploads
            .iter()
            .map(|found| UploadEntry {
                key: &found.key,
                upload_id: found.id.as_str(),
                owner: call.owner(),
                initiated_ms: found.meta.modified,
                checksum: staging::chosen(&found.meta.attributes),
            })
            .collect(),
        common_prefixes: page.prefixes.iter().map(Vec::as_slice).collect(),
    };
    Ok(reply::xml(list_multipart_uploads(&listing)))
}

/// Walks the staged uploads. The delimiter is applied here and not by the store, to which a staged key is more than the
/// object's key.
async fn collect<S: Store>(
    call: &Call<'_, S>,
    asked: &Asked<'_>,
    key_marker: Option<&[u8]>,
    id_marker: Option<&str>,
) -> Outcome<Page> {
    let prefix = staging::uploads_under(asked.prefix.as_bytes());
    let mut cursor = match (key_marker, id_marker) {
        (None, _) => Cursor::Start,
        (Some(key), Some(id)) => Cursor::After(UploadId::parse(id)?.manifest(key)),
        (Some(key), None) => match asked.after(key) {
            After::Prefix(prefix) => Cursor::Past([b"u\0", prefix].concat()),
            _ => Cursor::Past(staging::uploads_of(key)),
        },
    };
    let mut page = Page::default();
    if asked.limit == 0 {
        return Ok(page);
    }
    loop {
        let found = call
            .store()
            .list(ListOptions {
                namespace: call.bucket,
                space: Space::Staging,
                prefix: &prefix,
                delimiter: None,
                after: cursor.after(),
                // One more than the page takes tells that there is more. Common prefixes follow each other, and of each only the
                // first upload is looked at.
                limit: match cursor {
                    Cursor::Past(_) => 1,
                    Cursor::Start | Cursor::After(_) => asked.limit - page.len() + 1,
                },
            })
            .await?;
        let mut skip = None;
        for item in found.items {
            let Item::Value(staged, meta) = item else {
                continue;
            };
            let Some((key, id)) = staging::parse_manifest(&staged) else {
                continue;
            };
            cursor = Cursor::After(staged.to_vec());
            let rolled = asked.rolled_up(key);
            if page.len() == asked.limit {
                page.next = page.next.take().or_else(|| last_of(&page));
                return Ok(page);
            }
            match rolled {
                None => page.uploads.push(Found {
                    key: key.to_vec(),
                    id,
                    meta,
                }),
                Some(prefix) => {
                    skip = Some(Cursor::Past([b"u\0", prefix].concat()));
                    page.prefixes.insert(prefix.to_vec());
                    break;
                }
            }
        }
        match (skip, found.more) {
            (Some(past), _) => cursor = past,
            (None, true) => {}
            (None, false) => return Ok(page),
        }
    }
}

/// The last thing on a page, as markers.
fn last_of(page: &Page) -> Option<(Vec<u8>, String)> {
    let upload = page.uploads.last();
    let prefix = page.prefixes.last();
    match (upload, prefix) {
        (Some(upload), Some(prefix)) if *prefix > upload.key => {
            Some((prefix.clone(), String::new()))
        }
        (Some(upload), _) => Some((upload.key.clone(), upload.id.as_str().to_owned())),
        (None, prefix) => prefix.map(|prefix| (prefix.clone(), String::new())),
    }
}

enum Cursor {
    Start,
    After(Vec<u8>),
    /// After everything that begins so.
    Past(Vec<u8>),
}

impl Cursor {
    fn after(&self) -> After<'_> {
        match self {
            Cursor::Start => After::Start,
            Cursor::After(key) => After::Key(key),
            Cursor::Past(prefix) => After::Prefix(prefix),
        }
    }
}
