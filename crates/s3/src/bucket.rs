//! Buckets: list, make, remove, look.

use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::uri::check_bucket_name;
use forebay_proto::s3::xml::{Bucket, bucket_location, list_all_my_buckets, parse_create_bucket};
use forebay_store::{
    ErrorKind, Item, ListOptions, NamespaceConfig, Space, Store, StoreError, check_namespaces,
};
use http::StatusCode;
use http::header::LOCATION;

use crate::access::need_key;
use crate::call::Call;
use crate::ingest::Inbound;
use crate::reply::{self, Reply};
use crate::status::{Outcome, Refusal};
use crate::{acl, bucket_config, headers, staging};

/// The most buckets in one answer.
const BUCKETS_MAX: usize = 10_000;

/// `ListBuckets`: those of the caller's tenant.
pub(crate) fn list<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let tenant = need_key(call.caller)?;
    let prefix = call.query.get_nonempty("prefix");
    let after = call.query.get_nonempty("continuation-token");
    let limit = call
        .query
        .number::<usize>("max-buckets")?
        .unwrap_or(BUCKETS_MAX)
        .clamp(1, BUCKETS_MAX);
    let found = call.store().namespaces();
    let own = found.iter().filter(|info| {
        info.config.tenant == tenant
            && prefix.is_none_or(|prefix| info.name.starts_with(prefix))
            && after.is_none_or(|after| info.name.as_str() > after)
    });
    let mut page: Vec<_> = own.take(limit + 1).collect();
    let more = page.len() > limit;
    page.truncate(limit);
    let token = page.last().filter(|_| more).map(|info| info.name.as_str());
    let region = call.door.config.region.as_str();
    let document = list_all_my_buckets(
        &call.owner(),
        page.iter().map(|info| Bucket {
            name: &info.name,
            created_ms: info.created,
            region: Some(region),
        }),
        prefix,
        token,
    );
    Ok(reply::xml(document))
}

/// `CreateBucket`.
pub(crate) async fn create<S: Store>(
    call: &Call<'_, S>,
    inbound: &mut Inbound,
) -> Outcome<Reply<S::Body>> {
    let tenant = need_key(call.caller)?;
    check_bucket_name(call.bucket)?;
    acl::check_canned(call.headers)?;
    if headers::text(call.headers, &headers::OBJECT_LOCK_ENABLED)
        .is_some_and(|value| value.eq_ignore_ascii_case("true"))
    {
        return Err(Refusal::new(
            ErrorCode::NotImplemented,
            "Object Lock is not implemented.",
        ));
    }
    // There is one region, whatever it is called.
    let tags = parse_create_bucket(&call.document(inbound).await?)?.tags;
    if call.store().namespace(call.bucket).is_err() {
        check_namespaces(&call.store().namespaces(), tenant)
            .map_err(|_| ErrorCode::TooManyBuckets)?;
    }
    let namespace = NamespaceConfig {
        tenant: tenant.to_owned(),
        attributes: bucket_config::of_new(call, tenant, &tags)?,
        ..NamespaceConfig::default()
    };
    match call.store().create_namespace(call.bucket, namespace).await {
        Ok(_) => {
            // A tenant that goes loses its keys first: the next one of its name must not inherit what was made since.
            if let Err(gone) = call.still_admitted() {
                call.store().delete_namespace(call.bucket).await?;
                return Err(gone);
            }
            let mut reply = reply::empty(StatusCode::OK);
            let location = format!("/{}", call.bucket);
            reply
                .headers_mut()
                .insert(LOCATION, headers::value(location.as_bytes()));
            Ok(reply)
        }
        Err(error) if error.kind() == ErrorKind::NamespaceExists => {
            let own = call
                .store()
                .namespace(call.bucket)
                .is_ok_and(|info| info.config.tenant == tenant);
            Err(match own {
                true => ErrorCode::BucketAlreadyOwnedByYou,
                false => ErrorCode::BucketAlreadyExists,
            }
            .into())
        }
        Err(error) => Err(error.into()),
    }
}

/// `DeleteBucket`. Unfinished uploads do not keep a bucket; objects, versions and delete markers do.
pub(crate) async fn delete<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let store = call.store();
    let removed = match store.delete_namespace(call.bucket).await {
        Err(error) if error.kind() == ErrorKind::NamespaceNotEmpty => {
            purge_staging(call, error).await?;
            call.still_admitted()?;
            store.delete_namespace(call.bucket).await
        }
        other => other,
    };
    removed?;
    Ok(reply::empty(StatusCode::NO_CONTENT))
}

/// Drops everything that uploads have staged, as long as there is nothing else; else it is `not_empty`.
async fn purge_staging<S: Store>(call: &Call<'_, S>, not_empty: StoreError) -> Outcome<()> {
    loop {
        let versions = ListOptions {
            limit: 1,
            ..ListOptions::of(call.bucket, Space::Objects)
        };
        let there = call.store().list_versions(versions).await?;
        // What cannot be read is there, too.
        if !there.items.is_empty() || !there.passed_over.is_empty() {
            return Err(not_empty.into());
        }
        let page = call
            .store()
            .list(ListOptions::of(call.bucket, Space::Staging))
            .await?;
        // No two buckets have uploads of the same name: what is listed of this one is not found in the next.
        call.still_admitted()?;
        let keys = page.items.into_iter().filter_map(|item| match item {
            Item::Value(key, _) => Some(key),
            Item::Prefix(_) => None,
        });
        let keys: Vec<_> = keys.collect();
        staging::remove(call.store(), call.bucket, &keys).await?;
        if !page.more {
            return Ok(());
        }
    }
}

/// `HeadBucket`.
pub(crate) fn head<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    let mut reply = reply::empty(StatusCode::OK);
    reply.headers_mut().insert(
        headers::BUCKET_REGION,
        headers::value(call.door.config.region.as_bytes()),
    );
    Ok(reply)
}

/// `GetBucketLocation`.
pub(crate) fn location<S: Store>(call: &Call<'_, S>) -> Outcome<Reply<S::Body>> {
    Ok(reply::xml(bucket_location(&call.door.config.region)))
}
