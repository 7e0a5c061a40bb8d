//! S3's error codes with their HTTP status and text, and the XML document that carries them.

/// Declares the codes once: Rust name, spelling on the wire, HTTP status, default message.
macro_rules! error_codes {
    ($($name:ident $(= $wire:literal)?, $status:literal, $message:literal;)*) => {
        /// An S3 error code.
        ///
        /// The HTTP status and message are those that S3 documents for the code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $(
                #[doc = $message]
                $name,
            )*
        }

        impl ErrorCode {
            /// Every code, in the order of declaration.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name),*];

            /// The code as written in the `Code` element.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(ErrorCode::$name => error_codes!(@wire $name $($wire)?),)*
                }
            }

            /// HTTP status of the response.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(ErrorCode::$name => $status,)* }
            }

            /// The message when the place that fails has nothing better to say.
            #[must_use]
            pub const fn message(self) -> &'static str {
                match self { $(ErrorCode::$name => $message,)* }
            }

            /// Finds a code by its spelling on the wire (for clients).
            #[must_use]
            pub fn from_wire(code: &str) -> Option<ErrorCode> {
                ErrorCode::ALL.iter().copied().find(|known| known.as_str() == code)
            }
        }
    };
    (@wire $name:ident) => { stringify!($name) };
    (@wire $name:ident $wire:literal) => { $wire };
}

error_codes! {
    AccessControlListNotSupported, 400, "The bucket does not allow ACLs";
    AccessDenied, 403, "Access Denied";
    AccessForbidden, 403, "CORSResponse: This CORS request is not allowed. This is usually because the evaluation of Origin, request method / Access-Control-Request-Method or Access-Control-Request-Headers are not whitelisted by the resource's CORS spec.";
    AuthorizationHeaderMalformed, 400, "The authorization header that you provided is not valid.";
    AuthorizationQueryParametersError, 400, "Error parsing the X-Amz-Credential parameter.";
    BadDigest, 400, "The Content-MD5 or checksum value that you specified did not match what the server received.";
    BadRequest, 400, "An error occurred when parsing the HTTP request.";
    BucketAlreadyExists, 409, "The requested bucket name is not available. The bucket namespace is shared by all users of the system. Please select a different name and try again.";
    BucketAlreadyOwnedByYou, 409, "Your previous request to create the named bucket succeeded and you already own it.";
    BucketNotEmpty, 409, "The bucket you tried to delete is not empty";
    ConditionalRequestConflict, 409, "The conditional request cannot succeed due to a conflicting operation against this resource.";
    EntityTooLarge, 400, "Your proposed upload exceeds the maximum allowed size";
    EntityTooSmall, 400, "Your proposed upload is smaller than the minimum allowed size";
    ExpiredToken, 400, "The provided token has expired.";
    HeadersNotSigned = "AccessDenied", 403, "There were headers present in the request which were not signed";
    IllegalLocationConstraintException, 400, "The specified location constraint is not valid for this endpoint.";
    IllegalVersioningConfigurationException, 400, "The versioning configuration specified in the request is invalid.";
    IncompleteBody, 400, "You did not provide the number of bytes specified by the Content-Length HTTP header";
    InsufficientStorage, 507, "There is not enough free space to store the object.";
    InternalError, 500, "We encountered an internal error. Please try again.";
    InvalidAccessKeyId, 403, "The AWS Access Key Id you provided does not exist in our records.";
    InvalidArgument, 400, "Invalid Argument";
    InvalidBucketName, 400, "The specified bucket is not valid.";
    InvalidBucketState, 409, "The request is not valid with the current state of the bucket.";
    InvalidChunkSizeError, 403, "Only the last chunk is allowed to have a size less than 8192 bytes";
    InvalidDigest, 400, "The Content-MD5 or checksum value that you specified is not valid.";
    InvalidEncryptionAlgorithmError, 400, "The encryption request that you specified is not valid.";
    InvalidHTTPHost = "InvalidArgument", 400, "The Host header is missing or not valid.";
    InvalidObjectState, 403, "The operation is not valid for the current state of the object";
    InvalidPart, 400, "One or more of the specified parts could not be found. The part might not have been uploaded, or the specified entity tag might not match the part's entity tag.";
    InvalidPartNumber, 416, "The requested partnumber is not satisfiable";
    InvalidPartOrder, 400, "The list of parts was not in ascending order. Parts must be ordered by part number.";
    InvalidRDMAToken, 400, "The RDMA token of the request is not valid.";
    InvalidRange, 416, "The requested range is not satisfiable";
    InvalidRequest, 400, "The request is not valid.";
    InvalidSecurity, 403, "The provided security credentials are not valid.";
    InvalidStorageClass, 400, "The storage class you specified is not valid";
    InvalidTag, 400, "The tag provided was not a valid tag.";
    InvalidToken, 400, "The provided token is malformed or otherwise invalid.";
    InvalidURI, 400, "Couldn't parse the specified URI.";
    KeyTooLongError, 400, "Your key is too long";
    MalformedACLError, 400, "The XML you provided was not well-formed or did not validate against our published schema";
    MalformedPolicy, 400, "Policies must be valid JSON and the first byte must be '{'";
    MalformedTrailerError, 400, "The request contained trailing data that was not well-formed or did not conform to our published schema.";
    MalformedXML, 400, "The XML you provided was not well-formed or did not validate against our published schema";
    MaxMessageLengthExceeded, 400, "Your request was too big.";
    MetadataTooLarge, 400, "Your metadata headers exceed the maximum allowed metadata size";
    MethodNotAllowed, 405, "The specified method is not allowed against this resource.";
    MissingContentLength, 411, "You must provide the Content-Length HTTP header.";
    MissingRequestBodyError, 400, "Request body is empty.";
    MissingSecurityHeader, 400, "Your request was missing a required header";
    NoSuchBucket, 404, "The specified bucket does not exist";
    NoSuchBucketPolicy, 404, "The bucket policy does not exist";
    NoSuchCORSConfiguration, 404, "The CORS configuration does not exist";
    NoSuchConfiguration, 404, "The specified configuration does not exist.";
    NoSuchKey, 404, "The specified key does not exist.";
    NoSuchLifecycleConfiguration, 404, "The lifecycle configuration does not exist";
    NoSuchObjectLockConfiguration, 404, "The specified object does not have a ObjectLock configuration";
    NoSuchPublicAccessBlockConfiguration, 404, "The public access block configuration was not found";
    NoSuchTagSet, 404, "The TagSet does not exist";
    NoSuchUpload, 404, "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed.";
    NoSuchVersion, 404, "The specified version does not exist.";
    NoSuchWebsiteConfiguration, 404, "The specified bucket does not have a website configuration";
    NotImplemented, 501, "A header or query you provided implies functionality that is not implemented.";
    NotModified, 304, "Not Modified";
    ObjectLockConfigurationNotFoundError, 404, "Object Lock configuration does not exist for this bucket";
    OwnershipControlsNotFoundError, 404, "The bucket ownership controls were not found";
    PreconditionFailed, 412, "At least one of the pre-conditions you specified did not hold";
    QuotaExceeded, 403, "The quota of the bucket or of its owner does not allow this request.";
    RDMANotSupported, 501, "The payload of this request cannot be moved by remote memory access here; send it again with a body.";
    RDMATokenExpired, 403, "The RDMA token of the request has expired.";
    RDMATokenReplayed, 409, "The RDMA token of the request was used before.";
    RDMATransferFailed, 500, "The payload could not be moved by remote memory access.";
    ReplicationConfigurationNotFoundError, 404, "The replication configuration was not found";
    RequestHeaderSectionTooLarge, 400, "Your request header and query parameters exceed the maximum allowed size.";
    RequestTimeTooSkewed, 403, "The difference between the request time and the current time is too large.";
    RequestTimeout, 400, "Your socket connection to the server was not read from or written to within the timeout period.";
    ServerSideEncryptionConfigurationNotFoundError, 404, "The server side encryption configuration was not found";
    ServiceUnavailable, 503, "Service is unable to handle request.";
    SignatureDoesNotMatch, 403, "The request signature we calculated does not match the signature you provided. Check your key and signing method.";
    SlowDown, 503, "Please reduce your request rate.";
    TooManyBuckets, 400, "You have attempted to create more buckets than allowed";
    UnexpectedContent, 400, "This request does not support content";
    UnsupportedAlgorithm = "InvalidRequest", 400, "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.";
    XAmzContentChecksumMismatch, 400, "The provided checksum header does not match what was computed.";
    XAmzContentSHA256Mismatch, 400, "The provided 'x-amz-content-sha256' header does not match what was computed.";
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An S3 error ready to be rendered: a code, a message when the default does not do, and the
/// extra elements that some codes carry (`ArgumentName`, `Condition`, `Region`, ...).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {}", self.message())]
pub struct S3Error {
    /// What went wrong, as S3 names it.
    pub code: ErrorCode,
    message: Option<String>,
    extra: Vec<(&'static str, String)>,
}

impl S3Error {
    /// An error with the default message of its code.
    #[must_use]
    pub const fn new(code: ErrorCode) -> S3Error {
        S3Error {
            code,
            message: None,
            extra: Vec::new(),
        }
    }

    /// An error with a message of its own.
    #[must_use]
    pub fn with_message(code: ErrorCode, message: impl Into<String>) -> S3Error {
        S3Error {
            code,
            message: Some(message.into()),
            extra: Vec::new(),
        }
    }

    /// Adds an element to the document; `name` must be an XML name.
    #[must_use]
    pub fn field(mut self, name: &'static str, value: impl Into<String>) -> S3Error {
        self.extra.push((name, value.into()));
        self
    }

    /// The message that the document will carry.
    #[must_use]
    pub fn message(&self) -> &str {
        self.message.as_deref().unwrap_or(self.code.message())
    }

    /// HTTP status of the response.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.code.status()
    }

    /// The elements added by [`S3Error::field`].
    #[must_use]
    pub fn fields(&self) -> &[(&'static str, String)] {
        &self.extra
    }
}

impl From<ErrorCode> for S3Error {
    fn from(code: ErrorCode) -> S3Error {
        S3Error::new(code)
    }
}
