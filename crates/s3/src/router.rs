//! Which operation a request is: method, whether it names a bucket and a key, and its sub-resource.

use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::uri::Query;
use http::Method;

use crate::status::{Outcome, Refusal};

/// Declares the operations once: name, and the policy action that allows it (empty: none can).
macro_rules! operations {
    ($($name:ident = $action:literal;)*) => {
        /// An operation of S3, named as S3 names it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Operation {
            $($name,)*
        }

        impl Operation {
            /// Its name; the `op` label of the metrics.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Operation::$name => stringify!($name),)* }
            }

            /// The action that a bucket policy names.
            pub(crate) const fn action(self) -> &'static str {
                match self { $(Operation::$name => $action,)* }
            }
        }
    };
}

operations! {
    Unknown = "";
    Preflight = "";
    RdmaControl = "";
    ListBuckets = "";
    CreateBucket = "";
    DeleteBucket = "s3:DeleteBucket";
    HeadBucket = "s3:ListBucket";
    GetBucketLocation = "s3:GetBucketLocation";
    GetBucketVersioning = "s3:GetBucketVersioning";
    PutBucketVersioning = "s3:PutBucketVersioning";
    GetBucketAcl = "s3:GetBucketAcl";
    PutBucketAcl = "s3:PutBucketAcl";
    GetBucketPolicy = "s3:GetBucketPolicy";
    GetBucketPolicyStatus = "s3:GetBucketPolicyStatus";
    PutBucketPolicy = "s3:PutBucketPolicy";
    DeleteBucketPolicy = "s3:DeleteBucketPolicy";
    GetBucketCors = "s3:GetBucketCORS";
    PutBucketCors = "s3:PutBucketCORS";
    DeleteBucketCors = "s3:PutBucketCORS";
    GetBucketLifecycle = "s3:GetLifecycleConfiguration";
    PutBucketLifecycle = "s3:PutLifecycleConfiguration";
    DeleteBucketLifecycle = "s3:PutLifecycleConfiguration";
    GetBucketTagging = "s3:GetBucketTagging";
    PutBucketTagging = "s3:PutBucketTagging";
    DeleteBucketTagging = "s3:PutBucketTagging";
    GetBucketEncryption = "s3:GetEncryptionConfiguration";
    PutBucketEncryption = "s3:PutEncryptionConfiguration";
    DeleteBucketEncryption = "s3:PutEncryptionConfiguration";
    GetObjectLockConfiguration = "s3:GetBucketObjectLockConfiguration";
    PutObjectLockConfiguration = "s3:PutBucketObjectLockConfiguration";
    GetPublicAccessBlock = "s3:GetBucketPublicAccessBlock";
    GetBucketOwnershipControls = "s3:GetBucketOwnershipControls";
    GetBucketRequestPayment = "s3:GetBucketRequestPayment";
    GetBucketAccelerate = "s3:GetAccelerateConfiguration";
    GetBucketLogging = "s3:GetBucketLogging";
    GetBucketNotification = "s3:GetBucketNotification";
    GetBucketReplication = "s3:GetReplicationConfiguration";
    GetBucketWebsite = "s3:GetBucketWebsite";
    ListObjects = "s3:ListBucket";
    ListObjectsV2 = "s3:ListBucket";
    ListObjectVersions = "s3:ListBucketVersions";
    ListMultipartUploads = "s3:ListBucketMultipartUploads";
    DeleteObjects = "s3:DeleteObject";
    GetObject = "s3:GetObject";
    HeadObject = "s3:GetObject";
    PutObject = "s3:PutObject";
    CopyObject = "s3:PutObject";
    DeleteObject = "s3:DeleteObject";
    GetObjectAttributes = "s3:GetObjectAttributes";
    GetObjectTagging = "s3:GetObjectTagging";
    PutObjectTagging = "s3:PutObjectTagging";
    DeleteObjectTagging = "s3:DeleteObjectTagging";
    GetObjectAcl = "s3:GetObjectAcl";
    PutObjectAcl = "s3:PutObjectAcl";
    GetObjectLegalHold = "s3:GetObjectLegalHold";
    GetObjectRetention = "s3:GetObjectRetention";
    CreateMultipartUpload = "s3:PutObject";
    UploadPart = "s3:PutObject";
    UploadPartCopy = "s3:PutObject";
    CompleteMultipartUpload = "s3:PutObject";
    AbortMultipartUpload = "s3:AbortMultipartUpload";
    ListParts = "s3:ListMultipartUploadParts";
    ExecuteObject = "s3:GetObject";
}

/// Sub-resources that S3 has for buckets and that no operation here serves.
const BUCKET_UNSERVED: [&str; 11] = [
    "abac",
    "analytics",
    "inventory",
    "intelligent-tiering",
    "metrics",
    "metadataAnnotationTable",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "metadataTable",
    "session",
];

/// Sub-resources that S3 has for objects, and Ceph's `append`, that no operation here serves. What is not named here falls through to
/// the object itself, which a PUT replaces and a DELETE removes.
const OBJECT_UNSERVED: [&str; 7] = [
    "annotation",
    "append",
    "encryption",
    "renameObject",
    "restore",
    "select",
    "torrent",
];

/// What buckets and objects have, one sub-resource or another.
const METHODS: &str = "DELETE, GET, HEAD, OPTIONS, POST, PUT";

/// What routing looks at.
pub(crate) struct Route<'a> {
    pub(crate) method: &'a Method,
    pub(crate) bucket: bool,
    pub(crate) key: bool,
    pub(crate) query: &'a Query<'a>,
    /// Whether the request has an `x-amz-copy-source` header.
    pub(crate) copies: bool,
}

impl Route<'_> {
    /// The operation.
    ///
    /// # Errors
    /// `MethodNotAllowed`, or `NotImplemented` for what S3 knows and this door does not.
    pub(crate) fn operation(&self) -> Outcome<Operation> {
        if self.method == Method::OPTIONS {
            return Ok(Operation::Preflight);
        }
        match (self.bucket, self.key) {
            (false, _) => self.service(),
            (true, false) => self.bucket(),
            (true, true) => self.object(),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.query.has(name)
    }

    fn service(&self) -> Outcome<Operation> {
        match *self.method {
            Method::GET => Ok(Operation::ListBuckets),
            _ => Err(Refusal::not_allowed("GET, OPTIONS")),
        }
    }

    fn bucket(&self) -> Outcome<Operation> {
        use Operation as O;
        if let Some(name) = BUCKET_UNSERVED.into_iter().find(|name| self.has(name)) {
            return Err(unserved(name));
        }
        let table: [(&str, [Option<O>; 3]); 16] = [
            ("location", [Some(O::GetBucketLocation), None, None]),
            (
                "versioning",
                [
                    Some(O::GetBucketVersioning),
                    Some(O::PutBucketVersioning),
                    None,
                ],
            ),
            ("acl", [Some(O::GetBucketAcl), Some(O::PutBucketAcl), None]),
            (
                "policy",
                [
                    Some(O::GetBucketPolicy),
                    Some(O::PutBucketPolicy),
                    Some(O::DeleteBucketPolicy),
                ],
            ),
            ("policyStatus", [Some(O::GetBucketPolicyStatus), None, None]),
            (
                "cors",
                [
                    Some(O::GetBucketCors),
                    Some(O::PutBucketCors),
                    Some(O::DeleteBucketCors),
                ],
            ),
            (
                "lifecycle",
                [
                    Some(O::GetBucketLifecycle),
                    Some(O::PutBucketLifecycle),
                    Some(O::DeleteBucketLifecycle),
                ],
            ),
            (
                "tagging",
                [
                    Some(O::GetBucketTagging),
                    Some(O::PutBucketTagging),
                    Some(O::DeleteBucketTagging),
                ],
            ),
            (
                "encryption",
                [
                    Some(O::GetBucketEncryption),
                    Some(O::PutBucketEncryption),
                    Some(O::DeleteBucketEncryption),
                ],
            ),
            (
                "object-lock",
                [
                    Some(O::GetObjectLockConfiguration),
                    Some(O::PutObjectLockConfiguration),
                    None,
                ],
            ),
            (
                "publicAccessBlock",
                [Some(O::GetPublicAccessBlock), None, None],
            ),
            (
                "ownershipControls",
                [Some(O::GetBucketOwnershipControls), None, None],
            ),
            (
                "requestPayment",
                [Some(O::GetBucketRequestPayment), None, None],
            ),
            ("accelerate", [Some(O::GetBucketAccelerate), None, None]),
            ("logging", [Some(O::GetBucketLogging), None, None]),
            ("notification", [Some(O::GetBucketNotification), None, None]),
        ];
        for (name, [get, put, delete]) in table {
            if self.has(name) {
                let found = match *self.method {
                    Method::GET => get,
                    Method::PUT => put,
                    Method::DELETE => delete,
                    _ => None,
                };
                return found.ok_or_else(|| unserved(name));
            }
        }
        for (name, get) in [
            ("replication", O::GetBucketReplication),
            ("website", O::GetBucketWebsite),
        ] {
            if self.has(name) {
                return match *self.method {
                    Method::GET => Ok(get),
                    _ => Err(unserved(name)),
                };
            }
        }
        match *self.method {
            Method::GET if self.has("uploads") => Ok(O::ListMultipartUploads),
            Method::GET if self.has("versions") => Ok(O::ListObjectVersions),
            Method::GET if self.query.get("list-type") == Some("2") => Ok(O::ListObjectsV2),
            Method::GET => Ok(O::ListObjects),
            Method::HEAD => Ok(O::HeadBucket),
            Method::PUT => Ok(O::CreateBucket),
            Method::DELETE => Ok(O::DeleteBucket),
            Method::POST if self.has("delete") => Ok(O::DeleteObjects),
            Method::POST => Err(Refusal::new(
                ErrorCode::NotImplemented,
                "Browser uploads with a POST policy are not implemented.",
            )),
            _ => Err(Refusal::not_allowed(METHODS)),
        }
    }

    fn object(&self) -> Outcome<Operation> {
        use Operation as O;
        if let Some(name) = OBJECT_UNSERVED.into_iter().find(|name| self.has(name)) {
            return Err(unserved(name));
        }
        let get = |found: O| match *self.method {
            Method::GET => Some(found),
            _ => None,
        };
        let tagging = match *self.method {
            Method::GET => Some(O::GetObjectTagging),
            Method::PUT => Some(O::PutObjectTagging),
            Method::DELETE => Some(O::DeleteObjectTagging),
            _ => None,
        };
        let acl = match *self.method {
            Method::GET => Some(O::GetObjectAcl),
            Method::PUT => Some(O::PutObjectAcl),
            _ => None,
        };
        for (name, found) in [
            ("tagging", tagging),
            ("acl", acl),
            ("attributes", get(O::GetObjectAttributes)),
            ("legal-hold", get(O::GetObjectLegalHold)),
            ("retention", get(O::GetObjectRetention)),
        ] {
            if self.has(name) {
                return found.ok_or_else(|| unserved(name));
            }
        }
        let upload = self.has("uploadId");
        match *self.method {
            Method::GET if upload => Ok(O::ListParts),
            Method::GET => Ok(O::GetObject),
            Method::HEAD => Ok(O::HeadObject),
            Method::PUT if upload || self.has("partNumber") => Ok(if self.copies {
                O::UploadPartCopy
            } else {
                O::UploadPart
            }),
            Method::PUT if self.copies => Ok(O::CopyObject),
            Method::PUT => Ok(O::PutObject),
            Method::DELETE if upload => Ok(O::AbortMultipartUpload),
            Method::DELETE => Ok(O::DeleteObject),
            Method::POST if self.has("uploads") => Ok(O::CreateMultipartUpload),
            Method::POST if upload => Ok(O::CompleteMultipartUpload),
            Method::POST if self.has("execute") => Ok(O::ExecuteObject),
            _ => Err(Refusal::not_allowed(METHODS)),
        }
    }
}

fn unserved(name: &str) -> Refusal {
    Refusal::new(
        ErrorCode::NotImplemented,
        format!("The sub-resource ?{name} is not implemented for this method."),
    )
}
