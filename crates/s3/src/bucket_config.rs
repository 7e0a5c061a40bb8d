//! What a bucket is configured with, kept as attributes of its namespace in the form it came, after being checked.
//!
//! A configuration that was never set is answered as S3 answers it; one that this door cannot honour is refused when it
//! is put.

use forebay_proto::s3::cors;
use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::lifecycle;
use forebay_proto::s3::policy::Policy;
use forebay_proto::s3::tags::{MAX_BUCKET_TAGS, Tags};
use forebay_proto::s3::xml::{VersioningStatus, XmlWriter, parse_versioning, versioning};
use forebay_store::{Attributes, AttributesBuilder, ErrorKind, NamespaceConfig, Store, Versioning};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};

use crate::call::Call;
use crate::ingest::Inbound;
use crate::reply::{self, Reply, ReplyBody};
use crate::status::{Outcome, Refusal};

/// The attribute of the policy: JSON as it was put.
pub(crate) const POLICY: &str = "s3.policy";
/// The attribute of the CORS rules: XML.
pub(crate) const CORS: &str = "s3.cors";
/// The attribute of the lifecycle rules: XML.
pub(crate) const LIFECYCLE: &str = "s3.lifecycle";
/// The attribute of the bucket's tags: XML.
const TAGGING: &str = "s3.tagging";

/// How often a change is tried again when another one came between.
const ATTEMPTS: usize = 16;

/// What the configurations of all buckets of a tenant may have together, in bytes: the store keeps them in memory.
const TENANT_BYTES_MAX: usize = 16 << 20;

/// Changes the bucket's configuration; of two at once one waits for the other.
async fn change<S: Store>(
    call: &Call<'_, S>,
    change: impl Fn(&mut NamespaceConfig) -> Outcome<()>,
) -> Outcome<()> {
    let store = call.store();
    for _ in 0..ATTEMPTS {
        call.still_admitted()?;
        let info = store.namespace(call.bucket)?;
        let mut config = info.config.clone();
        change(&mut config)?;
        match store
            .update_namespace(call.bucket, Some(info.revision), config)
            .await
        {
            Err(error) if error.kind() == ErrorKind::PreconditionFailed => {}
            outcome => return Ok(outcome.map(|_| ())?),
        }
    }
    Err(ErrorCode::SlowDown.into())
}

async fn set<S: Store>(call: &Call<'_, S>, name: &str, value: Option<&[u8]>) -> Outcome<()> {
    change(call, |config| {
        let mut attributes = config.attributes.to_builder();
        match value {
            Some(value) => attributes.insert(name, value),
            None => attributes.remove(name),
        }
        let attributes = built(attributes)?;
        if bytes(&attributes) > bytes(&config.attributes) {
            check_tenant(call, &config.tenant, bytes(&attributes))?;
        }
        config.attributes = attributes;
        Ok(())
    })
    .await
}

/// The configuration that a new bucket of a tenant begins with.
///
/// # Errors
/// `InvalidRequest` when it is too large beside those of the tenant's other buckets.
pub(crate) fn of_new<S: Store>(
    call: &Call<'_, S>,
    tenant: &str,
    tags: &Tags,
) -> Outcome<Attributes> {
    if tags.is_empty() {
        return Ok(Attributes::EMPTY);
    }
    let mut attributes = Attributes::builder();
    attributes.insert(TAGGING, tags.to_xml().as_bytes());
    let attributes = built(attributes)?;
    check_tenant(call, tenant, bytes(&attributes))?;
    Ok(attributes)
}

fn built(attributes: AttributesBuilder) -> Outcome<Attributes> {
    attributes.build().ok_or_else(|| {
        Refusal::new(
            ErrorCode::InvalidRequest,
            "The bucket's configurations are too large together.",
        )
    })
}

fn bytes(attributes: &Attributes) -> usize {
    attributes.encoded().len()
}

/// Refuses a configuration of so many bytes that is too long beside those of the tenant's other buckets.
fn check_tenant<S: Store>(call: &Call<'_, S>, tenant: &str, own: usize) -> Outcome<()> {
    let all = call.store().namespaces();
    let others = all
        .iter()
        .filter(|info| info.config.tenant == tenant && info.name != call.bucket)
        .map(|info| bytes(&info.config.attributes));
    match others.sum::<usize>() + own <= TENANT_BYTES_MAX {
        true => Ok(()),
        false => Err(Refusal::new(
            ErrorCode::InvalidRequest,
            "The configurations of the owner's buckets are too large together.",
        )),
    }
}

/// Refuses a document that would be kept in more bytes than it may have.
fn check_document(text: &str, max: usize) -> Outcome<()> {
    match text.len() <= max {
        true => Ok(()),
        false => Err(ErrorCode::MaxMessageLengthExceeded.into()),
    }
}

fn get<'c, S: Store>(call: &'c Call<'_, S>, name: &str, absent: ErrorCode) -> Outcome<&'c [u8]> {
    call.namespace
        .as_ref()
        .and_then(|info| info.config.attributes.get(name))
        .ok_or_else(|| Refusal::from(absent).field("BucketName", call.bucket))
}

fn document<B>(bytes: &[u8], content_type: &'static str) -> Reply<B> {
    let mut reply = http::Response::new(ReplyBody::whole(bytes.to_vec().into()));
    reply
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

fn done<B>(status: StatusCode) -> Outcome<Reply<B>> {
    Ok(reply::empty(status))
}

/// Removes a configuration; removing what is not there is no error.
async fn remove<S: Store>(call: &Call<'_, S>, name: &str) -> Outcome<Reply<S::Body>> {
    set(call, name, None).await?;
    done(StatusCode::NO_CONTENT)
}

/// `GetBucketVersioning`.
pub(crate) fn get_versioning<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let status = match call.namespace.as_ref().map(|info| info.config.versioning) {
        None | Some(Versioning::Off) => None,
        Some(Versioning::Enabled) => Some(VersioningStatus::Enabled),
        Some(Versioning::Suspended) => Some(VersioningStatus::Suspended),
    };
    Ok(reply::xml(versioning(status)))
}

/// `PutBucketVersioning`.
pub(crate) async fn put_versioning<S: Store>(
    call: &Call<'_, S>,
    inbound: &mut Inbound,
) -> Outcome<Reply<S::Body>> {
    let status = parse_versioning(&call.document(inbound).await?)?;
    if !call.store().caps().versions {
        return Err(Refusal::new(
            ErrorCode::NotImplemented,
            "This store keeps no versions.",
        ));
    }
    change(call, |config| {
        config.versioning = match status {
            VersioningStatus::Enabled => Versioning::Enabled,
            VersioningStatus::Suspended => Versioning::Suspended,
        };
        Ok(())
    })
    .await?;
    done(StatusCode::OK)
}

/// `GetBucketPolicy`.
pub(crate) fn get_policy<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let text = get(call, POLICY, ErrorCode::NoSuchBucketPolicy)?;
    Ok(document(text, "application/json"))
}

/// `GetBucketPolicyStatus`.
pub(crate) fn get_policy_status<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let text = get(call, POLICY, ErrorCode::NoSuchBucketPolicy)?;
    let public = Policy::parse(text, call.bucket).is_ok_and(|policy| policy.is_public());
    let mut writer = XmlWriter::new("PolicyStatus");
    writer.boolean("IsPublic", public);
    Ok(reply::xml(writer.finish("PolicyStatus")))
}

/// `PutBucketPolicy`.
pub(crate) async fn put_policy<S: Store>(
    call: &Call<'_, S>,
    inbound: &mut Inbound,
) -> Outcome<Reply<S::Body>> {
    let text = call.document(inbound).await?;
    Policy::parse(&text, call.bucket)?;
    set(call, POLICY, Some(&text)).await?;
    done(StatusCode::NO_CONTENT)
}

/// `DeleteBucketPolicy`.
pub(crate) async fn delete_policy<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    remove(call, POLICY).await
}

/// `GetBucketCors`.
pub(crate) fn get_cors<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let text = get(call, CORS, ErrorCode::NoSuchCORSConfiguration)?;
    Ok(document(text, "application/xml"))
}

/// `PutBucketCors`.
pub(crate) async fn put_cors<S: Store>(
    call: &Call<'_, S>,
    inbound: &mut Inbound,
) -> Outcome<Reply<S::Body>> {
    let rules = cors::Configuration::from_xml(&call.document(inbound).await?)?;
    let text = rules.to_xml();
    check_document(&text, cors::MAX_DOCUMENT)?;
    set(call, CORS, Some(text.as_bytes())).await?;
    done(StatusCode::OK)
}

/// `DeleteBucketCors`.
pub(crate) async fn delete_cors<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    remove(call, CORS).await
}

/// `GetBucketLifecycleConfiguration`.
pub(crate) fn get_lifecycle<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let text = get(call, LIFECYCLE, ErrorCode::NoSuchLifecycleConfiguration)?;
    Ok(document(text, "application/xml"))
}

/// `PutBucketLifecycleConfiguration`.
pub(crate) async fn put_lifecycle<S: Store>(
    call: &Call<'_, S>,
    inbound: &mut Inbound,
) -> Outcome<Reply<S::Body>> {
    let rules = lifecycle::Configuration::from_xml(&call.document(inbound).await?)?;
    let text = rules.to_xml();
    check_document(&text, lifecycle::MAX_DOCUMENT)?;
    set(call, LIFECYCLE, Some(text.as_bytes())).await?;
    done(StatusCode::OK)
}

/// `DeleteBucketLifecycle`.
pub(crate) async fn delete_lifecycle<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    remove(call, LIFECYCLE).await
}

/// `GetBucketTagging`.
pub(crate) fn get_tagging<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let text = get(call, TAGGING, ErrorCode::NoSuchTagSet)?;
    Ok(document(text, "application/xml"))
}

/// `PutBucketTagging`.
pub(crate) async fn put_tagging<S: Store>(
    call: &Call<'_, S>,
    inbound: &mut Inbound,
) -> Outcome<Reply<S::Body>> {
    let tags = Tags::from_xml(&call.document(inbound).await?, MAX_BUCKET_TAGS)?;
    set(call, TAGGING, Some(tags.to_xml().as_bytes())).await?;
    done(StatusCode::NO_CONTENT)
}

/// `DeleteBucketTagging`.
pub(crate) async fn delete_tagging<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    remove(call, TAGGING).await
}

/// An answer that is the same for every bucket: nothing is configured.
pub(crate) fn unset<B>(root: &str) -> Outcome<Reply<B>> {
    Ok(reply::xml(XmlWriter::new(root).finish(root)))
}

/// `GetBucketRequestPayment`: the owner pays.
pub(crate) fn get_request_payment<B>() -> Outcome<Reply<B>> {
    const ROOT: &str = "RequestPaymentConfiguration";
    let mut writer = XmlWriter::new(ROOT);
    writer.text("Payer", "BucketOwner");
    Ok(reply::xml(writer.finish(ROOT)))
}

/// `DeleteBucketEncryption`: there is none, so none is left.
pub(crate) fn delete_encryption<B>() -> Outcome<Reply<B>> {
    done(StatusCode::NO_CONTENT)
}
