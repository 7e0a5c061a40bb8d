//! Documents about buckets: the list of them, location, versioning, access control.

use super::{Owner, Scanner, XmlWriter, scan::once};
use crate::s3::{
    error::{ErrorCode, S3Error},
    tags::{self, MAX_BUCKET_TAGS, Tags},
};

/// A bucket in the list of buckets.
#[derive(Clone, Copy, Debug)]
pub struct Bucket<'a> {
    /// Its name.
    pub name: &'a str,
    /// When it was made, Unix milliseconds.
    pub created_ms: u64,
    /// Its region, shown when the caller pages through the list.
    pub region: Option<&'a str>,
}

/// The reply to `ListBuckets`.
#[must_use]
pub fn list_all_my_buckets<'a>(
    owner: &Owner<'_>,
    buckets: impl IntoIterator<Item = Bucket<'a>>,
    prefix: Option<&str>,
    continuation_token: Option<&str>,
) -> String {
    const ROOT: &str = "ListAllMyBucketsResult";
    let mut writer = XmlWriter::with_capacity(ROOT, 1024);
    writer.owner("Owner", owner);
    writer.open("Buckets");
    for bucket in buckets {
        writer.open("Bucket");
        writer.text("Name", bucket.name);
        writer.time("CreationDate", bucket.created_ms);
        writer.optional("BucketRegion", bucket.region);
        writer.close("Bucket");
    }
    writer.close("Buckets");
    writer.optional("ContinuationToken", continuation_token);
    writer.optional("Prefix", prefix);
    writer.finish(ROOT)
}

/// The reply to `GetBucketLocation`; `us-east-1` is written as nothing.
#[must_use]
pub fn bucket_location(region: &str) -> String {
    const ROOT: &str = "LocationConstraint";
    let mut writer = XmlWriter::new(ROOT);
    if region != "us-east-1" {
        let mut text = String::new();
        super::escape_into(&mut text, region);
        writer.raw(&text);
    }
    writer.finish(ROOT)
}

/// Whether a bucket keeps versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VersioningStatus {
    /// Every store makes a version.
    Enabled,
    /// Stores replace the `null` version; older versions stay.
    Suspended,
}

impl VersioningStatus {
    /// `Enabled` or `Suspended`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            VersioningStatus::Enabled => "Enabled",
            VersioningStatus::Suspended => "Suspended",
        }
    }
}

/// The reply to `GetBucketVersioning`; `None`: it was never set.
#[must_use]
pub fn versioning(status: Option<VersioningStatus>) -> String {
    const ROOT: &str = "VersioningConfiguration";
    let mut writer = XmlWriter::new(ROOT);
    writer.optional("Status", status.map(VersioningStatus::as_str));
    writer.finish(ROOT)
}

/// Reads the body of `PutBucketVersioning`.
///
/// # Errors
/// `MalformedXML`, `IllegalVersioningConfigurationException` without a status, `NotImplemented`
/// for MFA delete.
pub fn parse_versioning(body: &[u8]) -> Result<VersioningStatus, S3Error> {
    let mut scanner = Scanner::root(body, "VersioningConfiguration")?;
    let (mut status, mut mfa_delete) = (None, None);
    while let Some(name) = scanner.child()? {
        match name {
            "Status" => once(&mut status, scanner.text()?)?,
            "MfaDelete" => once(&mut mfa_delete, scanner.text()?)?,
            _ => return Err(ErrorCode::MalformedXML.into()),
        }
    }
    scanner.finish()?;
    if mfa_delete.as_deref() == Some("Enabled") {
        return Err(ErrorCode::NotImplemented.into());
    }
    match status.as_deref() {
        Some("Enabled") => Ok(VersioningStatus::Enabled),
        Some("Suspended") => Ok(VersioningStatus::Suspended),
        Some(_) => Err(ErrorCode::MalformedXML.into()),
        None => Err(ErrorCode::IllegalVersioningConfigurationException.into()),
    }
}

/// What a bucket that is to be made is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewBucket {
    /// Where it is to be, when that is said.
    pub location: Option<String>,
    /// The tags that it is to have from the beginning.
    pub tags: Tags,
}

/// Reads the body of `CreateBucket`, which may be empty.
///
/// # Errors
/// `MalformedXML`, or as [`Tags::new`]; `NotImplemented` for what makes a directory bucket, and all else.
pub fn parse_create_bucket(body: &[u8]) -> Result<NewBucket, S3Error> {
    if body.trim_ascii().is_empty() {
        return Ok(NewBucket::default());
    }
    let mut scanner = Scanner::root(body, "CreateBucketConfiguration")?;
    let (mut location, mut set) = (None, None);
    while let Some(name) = scanner.child()? {
        match name {
            "LocationConstraint" => once(&mut location, scanner.text()?)?,
            "Tags" => once(&mut set, tags::read_set(&mut scanner, MAX_BUCKET_TAGS)?)?,
            _ => return Err(ErrorCode::NotImplemented.into()),
        }
    }
    scanner.finish()?;
    Ok(NewBucket {
        location: location.filter(|region| !region.is_empty()),
        tags: Tags::new(set.unwrap_or_default(), MAX_BUCKET_TAGS)?,
    })
}

/// The reply to `GetBucketAcl` and `GetObjectAcl`: the owner may do everything. Access is given
/// by policies alone.
#[must_use]
pub fn access_control_policy(owner: &Owner<'_>) -> String {
    const ROOT: &str = "AccessControlPolicy";
    let mut writer = XmlWriter::with_capacity(ROOT, 640);
    writer.owner("Owner", owner);
    writer.open("AccessControlList");
    writer.open("Grant");
    writer.raw(
        "<Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" \
         xsi:type=\"CanonicalUser\">",
    );
    writer.text("ID", owner.id);
    writer.text("DisplayName", owner.display_name);
    writer.close("Grantee");
    writer.text("Permission", "FULL_CONTROL");
    writer.close("Grant");
    writer.close("AccessControlList");
    writer.finish(ROOT)
}
