//! XML bodies of S3: emitters for responses, bounded readers for requests.
//!
//! What is written is legal XML 1.0 whatever the keys hold: `\t`, `\n` and `\r` become numeric
//! references, and characters that XML cannot carry at all become U+FFFD (a client that must see
//! such keys asks for `encoding-type=url`). What is read is at most [`MAX_BODY`] bytes
//! ([`MAX_COMPLETE_BODY`] where parts are listed) and [`MAX_DEPTH`] deep; document types, processing instructions and entities other than the five
//! predefined ones are refused, so nothing can expand.
//!
//! Bodies whose content has rules of its own are read and written beside those rules:
//! [`super::tags`], [`super::cors`], [`super::lifecycle`].

mod bucket;
mod emit;
mod execute;
mod list;
mod multipart;
mod object;
mod requests;
mod responses;
mod scan;

pub use bucket::{
    Bucket, NewBucket, VersioningStatus, access_control_policy, bucket_location,
    list_all_my_buckets, parse_create_bucket, parse_versioning, versioning,
};
pub use emit::{Owner, XmlWriter, escape_into};
pub use execute::{
    ExecuteInput, ExecuteModule, ExecuteOutput, ExecuteRequest, MAX_EXECUTE_ARGUMENTS,
    MAX_EXECUTE_INPUTS, execute_body, execute_result, parse_execute,
};
pub use list::{
    Listing, ObjectEntry, VersionEntry, VersionListing, list_objects_v1, list_objects_v2,
    list_versions,
};
pub use multipart::{
    CompletedUpload, PartEntry, PartListing, UploadEntry, UploadListing,
    complete_multipart_upload_result, initiate_multipart_upload_result, list_multipart_uploads,
    list_parts,
};
pub use object::{
    AttributeParts, CopyKind, DeleteOutcome, ObjectAttributes, copy_result, delete_result,
    object_attributes,
};
pub use requests::{
    CompletedPart, DeleteObject, DeleteRequest, MAX_DELETE, MAX_PARTS, check_part_order,
    complete_multipart_upload_body, delete_body, parse_complete_multipart_upload, parse_delete,
};
pub use responses::{
    DeleteReply, ListReply, ListedObject, ListedUpload, PartsReply, parse_complete_result,
    parse_copy_result, parse_delete_result, parse_error, parse_initiate_result, parse_list_buckets,
    parse_list_objects, parse_list_parts, parse_list_uploads,
};
pub use scan::{Scanner, XmlError};

/// The longest request body that is read, in bytes.
pub const MAX_BODY: usize = 2 << 20;
/// The longest body of `CompleteMultipartUpload`, in bytes: [`MAX_PARTS`] parts with a SHA-256 each are 1.8 MB in one line
/// and 2.5 MB indented.
pub const MAX_COMPLETE_BODY: usize = 4 << 20;
/// The deepest nesting that is read.
pub const MAX_DEPTH: u32 = 16;
/// The namespace of S3's documents.
pub const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

#[cfg(test)]
mod tests;
