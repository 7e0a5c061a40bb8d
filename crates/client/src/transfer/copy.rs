//! From one place in the server to another.

use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::{Moved, Moving, Options};
use crate::direct::Condition;
use crate::{Client, Crc64, ObjectInfo, Part, Result};

/// The largest object that is copied by one call. S3 takes 5 GiB, but says nothing before it is done, and begins anew when it was cut off.
const COPY_BYTES_MAX: u64 = 256 << 20;
/// The size of a part beyond that.
const COPY_PART_BYTES: u64 = 64 << 20;

/// Copies an object inside the server, with what is kept with it; in parts when it is too large for one call. A copy is of one value.
///
/// # Errors
/// As every call; [`crate::Error::Refused`] with status 412 when the object is replaced while it is copied in parts.
pub async fn copy_object(
    client: &Client,
    from: (&str, &str),
    to: (&str, &str),
    options: &Options,
) -> Result<Moved> {
    let headers = client.head_headers(from.0, from.1).await?;
    let info = ObjectInfo::from_headers(&headers)?;
    let verified = if info.size <= COPY_BYTES_MAX {
        client.copy(from, to, info.size).await?;
        false
    } else {
        let value = Moving {
            client,
            namespace: to.0,
            key: to.1,
            options,
        };
        let kept = client.kept_with(from, &headers).await?;
        let upload = &options.unfinished.begin(value, kept).await?;
        if let Err(error) = value.copy_parts(from, &info, upload).await {
            value.abort(upload).await;
            return Err(error);
        }
        info.crc64nvme.is_some()
    };
    (options.progress)(info.size);
    Ok(Moved {
        bytes: info.size,
        resumed: 0,
        verified,
        path: None,
    })
}

impl Moving<'_> {
    async fn copy_parts(self, from: (&str, &str), info: &ObjectInfo, upload: &str) -> Result<()> {
        let (client, to) = (self.client, (self.namespace, self.key));
        let part_bytes = COPY_PART_BYTES.max(self.options.part_bytes(info.size));
        let parts: Vec<Part> = stream::iter(0..info.size.div_ceil(part_bytes))
            .map(|index| async move {
                let first = index * part_bytes;
                let range = (first, (first + part_bytes).min(info.size) - 1);
                let number = index as u32 + 1;
                let copied = client.copy_part(from, &info.etag, range, to, upload, number);
                copied.await
            })
            .buffered(self.options.parallel.max(1))
            .try_collect()
            .await?;
        let whole = info.crc64nvme.map(|crc| Crc64::known(crc, info.size));
        self.complete(upload, &parts, whole, Condition::None).await
    }
}
