//! One operation, one handler.

use forebay_proto::s3::error::ErrorCode;
use forebay_store::Store;

use crate::call::Call;
use crate::ingest::Inbound;
use crate::reply::Reply;
use crate::router::Operation;
use crate::status::{Outcome, Refusal};
use crate::{
    acl, attributes, bucket, bucket_config, complete, copy, delete, execute, list, multipart,
    object_get, object_put, tagging, uploads,
};

/// Runs the handler of an operation. The long ones are boxed, so that a small request does not carry their state.
pub(crate) async fn dispatch<S: Store>(
    op: Operation,
    call: &Call<'_, S>,
    inbound: &mut Inbound,
) -> Outcome<Reply<S::Body>> {
    use Operation as O;
    match op {
        O::GetObject => object_get::get(call, inbound).await,
        O::HeadObject => object_get::head(call).await,
        O::PutObject => object_put::put(call, inbound).await,
        O::DeleteObject => delete::one(call).await,
        O::UploadPart => Box::pin(multipart::upload_part(call, inbound)).await,
        O::ListObjects => Box::pin(list::v1(call)).await,
        O::ListObjectsV2 => Box::pin(list::v2(call)).await,
        O::ListObjectVersions => Box::pin(list::versions(call)).await,
        O::DeleteObjects => Box::pin(delete::many(call, inbound)).await,
        O::CopyObject => Box::pin(copy::object(call)).await,
        O::CreateMultipartUpload => Box::pin(multipart::create(call)).await,
        O::UploadPartCopy => Box::pin(copy::part(call)).await,
        O::CompleteMultipartUpload => Box::pin(complete::complete(call, inbound)).await,
        O::AbortMultipartUpload => Box::pin(multipart::abort(call)).await,
        O::ListParts => Box::pin(multipart::list(call)).await,
        O::ListMultipartUploads => Box::pin(uploads::list(call)).await,
        O::ExecuteObject => Box::pin(execute::object(call, inbound)).await,
        O::GetObjectAttributes => Box::pin(attributes::get(call)).await,
        O::GetObjectTagging => Box::pin(tagging::get(call)).await,
        O::PutObjectTagging => Box::pin(tagging::put(call, inbound)).await,
        O::DeleteObjectTagging => Box::pin(tagging::delete(call)).await,
        O::GetObjectAcl => Box::pin(acl::get_object(call)).await,
        O::PutObjectAcl => Box::pin(acl::put_object(call, inbound)).await,
        O::ListBuckets => bucket::list(call),
        O::CreateBucket => Box::pin(bucket::create(call, inbound)).await,
        O::DeleteBucket => Box::pin(bucket::delete(call)).await,
        O::HeadBucket => bucket::head(call),
        O::GetBucketLocation => bucket::location(call),
        O::GetBucketVersioning => bucket_config::get_versioning(call),
        O::PutBucketVersioning => Box::pin(bucket_config::put_versioning(call, inbound)).await,
        O::GetBucketAcl => acl::get(call),
        O::PutBucketAcl => Box::pin(acl::put(call, inbound)).await,
        O::GetBucketPolicy => bucket_config::get_policy(call),
        O::GetBucketPolicyStatus => bucket_config::get_policy_status(call),
        O::PutBucketPolicy => Box::pin(bucket_config::put_policy(call, inbound)).await,
        O::DeleteBucketPolicy => Box::pin(bucket_config::delete_policy(call)).await,
        O::GetBucketCors => bucket_config::get_cors(call),
        O::PutBucketCors => Box::pin(bucket_config::put_cors(call, inbound)).await,
        O::DeleteBucketCors => Box::pin(bucket_config::delete_cors(call)).await,
        O::GetBucketLifecycle => bucket_config::get_lifecycle(call),
        O::PutBucketLifecycle => Box::pin(bucket_config::put_lifecycle(call, inbound)).await,
        O::DeleteBucketLifecycle => Box::pin(bucket_config::delete_lifecycle(call)).await,
        O::GetBucketTagging => bucket_config::get_tagging(call),
        O::PutBucketTagging => Box::pin(bucket_config::put_tagging(call, inbound)).await,
        O::DeleteBucketTagging => Box::pin(bucket_config::delete_tagging(call)).await,
        O::DeleteBucketEncryption => bucket_config::delete_encryption(),
        O::GetBucketRequestPayment => bucket_config::get_request_payment(),
        O::GetBucketAccelerate => bucket_config::unset("AccelerateConfiguration"),
        O::GetBucketLogging => bucket_config::unset("BucketLoggingStatus"),
        O::GetBucketNotification => bucket_config::unset("NotificationConfiguration"),
        O::GetBucketEncryption => {
            Err(ErrorCode::ServerSideEncryptionConfigurationNotFoundError.into())
        }
        O::GetObjectLockConfiguration => {
            Err(ErrorCode::ObjectLockConfigurationNotFoundError.into())
        }
        O::GetPublicAccessBlock => Err(ErrorCode::NoSuchPublicAccessBlockConfiguration.into()),
        O::GetBucketOwnershipControls => Err(ErrorCode::OwnershipControlsNotFoundError.into()),
        O::GetBucketReplication => Err(ErrorCode::ReplicationConfigurationNotFoundError.into()),
        O::GetBucketWebsite => Err(ErrorCode::NoSuchWebsiteConfiguration.into()),
        O::GetObjectLegalHold | O::GetObjectRetention => {
            call.store().stat(call.object(), call.version()?).await?;
            Err(ErrorCode::NoSuchObjectLockConfiguration.into())
        }
        O::PutBucketEncryption => Err(Refusal::new(
            ErrorCode::NotImplemented,
            "Server-side encryption is not available here.",
        )),
        O::PutObjectLockConfiguration => Err(Refusal::new(
            ErrorCode::NotImplemented,
            "Object Lock is not implemented.",
        )),
        // Answered before a caller is known.
        O::Preflight | O::RdmaControl | O::Unknown => Err(ErrorCode::MethodNotAllowed.into()),
    }
}
