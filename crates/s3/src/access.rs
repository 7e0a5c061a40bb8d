//! Who may do what: the owner by right, others by the bucket's policy.
//!
//! A bucket that a caller has no right to looks absent, so that names of other tenants' buckets cannot be found out, unless
//! its policy gives something to everyone: then its existence is no secret and the refusal is `AccessDenied`. Anonymous
//! callers always hear `AccessDenied`.

use std::sync::Arc;

use forebay_proto::s3::error::ErrorCode;
use forebay_proto::s3::policy::{Access, Decision, Policy, Principal};
use forebay_proto::s3::tags::Tags;
use forebay_store::{Address, Meta, NamespaceInfo, Store, StoreError, VersionId};
use http::header::{HeaderName, REFERER, USER_AGENT};

use crate::auth::Caller;
use crate::call::Call;
use crate::router::Operation;
use crate::rules::Rules;
use crate::status::{Outcome, Refusal};
use crate::{headers, kept};

/// What a caller wants of a bucket.
#[derive(Clone, Copy)]
struct Wish<'w> {
    info: &'w NamespaceInfo,
    rules: Option<&'w Rules>,
    action: &'w str,
    /// Empty for the bucket itself.
    key: &'w str,
    version: Option<VersionId>,
    /// The tags that the object is to have by it.
    tags: &'w Tags,
    /// The object, once it was found; before that it is looked up where its tags are asked for.
    found: Option<&'w Meta>,
}

impl<S: Store> Call<'_, S> {
    /// Finds the bucket and decides whether the caller may do this with it.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchBucket`.
    pub(crate) async fn admit(&mut self, op: Operation) -> Outcome<()> {
        match op {
            Operation::ListBuckets | Operation::CreateBucket => {
                return match self.caller {
                    Caller::Anonymous => Err(ErrorCode::AccessDenied.into()),
                    Caller::Key(_) => Ok(()),
                };
            }
            _ => {}
        }
        // Before the bucket is looked for: who may not know of it would learn by the refusal whether it is there.
        let version = self.version()?.filter(|_| names_version(op));
        let (info, rules) = self.find(self.bucket)?;
        let wish = Wish {
            info: &info,
            rules: rules.as_deref(),
            action: action(op, version.is_some()),
            key: self.key,
            version,
            tags: &self.brought_tags(op),
            found: None,
        };
        if !self.stands_in_body(op, &wish) {
            self.permit_operation(op, &wish).await?;
            self.expect_owner(&headers::EXPECTED_BUCKET_OWNER, &info)?;
        }
        self.namespace = Some(info);
        self.rules = rules;
        Ok(())
    }

    async fn permit_operation(&self, op: Operation, wish: &Wish<'_>) -> Outcome<()> {
        let on_policy = matches!(
            op,
            Operation::GetBucketPolicy | Operation::PutBucketPolicy | Operation::DeleteBucketPolicy
        );
        match (on_policy, self.caller.owns(&wish.info.config.tenant)) {
            // An owner cannot lock itself out of its own policy.
            (true, true) => Ok(()),
            // And can give it to nobody, whatever the policy says (PutBucketPolicy in the API reference).
            (true, false) => {
                self.permit(wish).await?;
                Err(Refusal::not_allowed(""))
            }
            (false, _) => {
                self.permit(wish).await?;
                match read_besides(op, wish.version.is_some()) {
                    Some(action) => self.permit(&Wish { action, ..*wish }).await,
                    None => Ok(()),
                }
            }
        }
    }

    /// The tags that the headers of a request give to its object: a copy that takes the source's ignores them.
    fn brought_tags(&self, op: Operation) -> Tags {
        let applied = match op {
            Operation::PutObject | Operation::CreateMultipartUpload => true,
            Operation::CopyObject => {
                headers::text(self.headers, &headers::TAGGING_DIRECTIVE) == Some("REPLACE")
            }
            _ => false,
        };
        headers::text(self.headers, &headers::TAGGING)
            .filter(|_| applied)
            .and_then(|text| Tags::parse_header(text).ok())
            .unwrap_or_default()
    }

    /// Compares a bucket's owner with the one that a header of the request expects.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(crate) fn expect_owner(&self, name: &HeaderName, info: &NamespaceInfo) -> Outcome<()> {
        match headers::legible(self.headers, name)? {
            Some(expected) if expected != info.config.tenant => Err(ErrorCode::AccessDenied.into()),
            _ => Ok(()),
        }
    }

    /// What is left of [`Call::admit`] once the body told what is wanted, and that may be done.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(crate) fn expect_bucket_owner(&self) -> Outcome<()> {
        match &self.namespace {
            Some(info) => self.expect_owner(&headers::EXPECTED_BUCKET_OWNER, info),
            None => Ok(()),
        }
    }

    /// Whether the caller's tenant has the bucket.
    pub(crate) fn owns_bucket(&self) -> bool {
        self.namespace
            .as_ref()
            .is_some_and(|info| self.caller.owns(&info.config.tenant))
    }

    /// Decides about another key of the same bucket.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchBucket`.
    pub(crate) async fn permit_key(
        &self,
        action: &str,
        key: &str,
        version: Option<VersionId>,
    ) -> Outcome<()> {
        self.permit_within(action, key, version, &Tags::default())
            .await
    }

    /// Decides whether the request's object may have these tags, once they are known.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchBucket`.
    pub(crate) async fn permit_tags(&self, tags: &Tags, version: Option<VersionId>) -> Outcome<()> {
        let action = action(Operation::PutObjectTagging, version.is_some());
        self.permit_within(action, self.key, version, tags).await
    }

    /// The same of an object that is written with its tags; to write one without takes no permission to tag.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchBucket`.
    pub(crate) async fn permit_new_tags(&self, tags: &Tags) -> Outcome<()> {
        match tags.is_empty() {
            true => Ok(()),
            false => self.permit_tags(tags, None).await,
        }
    }

    async fn permit_within(
        &self,
        action: &str,
        key: &str,
        version: Option<VersionId>,
        tags: &Tags,
    ) -> Outcome<()> {
        let Some(info) = &self.namespace else {
            return Err(ErrorCode::NoSuchBucket.into());
        };
        let wish = Wish {
            info,
            rules: self.rules.as_deref(),
            action,
            key,
            version,
            tags,
            found: None,
        };
        self.permit(&wish).await
    }

    /// Whether the bucket's policy may look at the tags of objects that exist.
    pub(crate) fn asks_tags(&self) -> bool {
        self.rules.as_ref().is_some_and(|rules| rules.asks_tags)
    }

    /// Decides about the object that was found, where its tags matter: it need not be the one that [`Call::admit`] saw.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchBucket`.
    pub(crate) async fn permit_found(&self, op: Operation, meta: &Meta) -> Outcome<()> {
        self.permit_retag(op, meta, &Tags::default()).await
    }

    /// The same of one that is to have these tags.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchBucket`.
    pub(crate) async fn permit_retag(
        &self,
        op: Operation,
        meta: &Meta,
        tags: &Tags,
    ) -> Outcome<()> {
        let Some(info) = self.namespace.as_ref().filter(|_| self.asks_tags()) else {
            return Ok(());
        };
        let version = self.version()?;
        let wish = Wish {
            info,
            rules: self.rules.as_deref(),
            action: action(op, version.is_some()),
            key: self.key,
            version,
            tags,
            found: Some(meta),
        };
        self.permit_operation(op, &wish).await
    }

    /// Decides whether an object of any bucket may be read. Returns the bucket.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchBucket`.
    pub(crate) async fn permit_source(
        &self,
        bucket: &str,
        key: &str,
        version: Option<VersionId>,
    ) -> Outcome<Arc<NamespaceInfo>> {
        let action = action(Operation::GetObject, version.is_some());
        self.permit_object(action, bucket, key, version, None).await
    }

    /// Decides about the object of any bucket that was found to be read: it need not be the one that [`Call::permit_source`] saw.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchBucket`.
    pub(crate) async fn permit_found_source(
        &self,
        bucket: &str,
        key: &str,
        version: Option<VersionId>,
        meta: &Meta,
    ) -> Outcome<()> {
        let action = action(Operation::GetObject, version.is_some());
        self.permit_object(action, bucket, key, version, Some(meta))
            .await?;
        Ok(())
    }

    /// Decides whether an object of any bucket may be an input, and returns which version of it: where tags decide, the one that was
    /// judged, which by then need not be the one that is there.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchBucket`, and what the object cannot be looked at for.
    pub(crate) async fn permit_input(
        &self,
        bucket: &str,
        key: &str,
        version: Option<VersionId>,
    ) -> Outcome<Option<VersionId>> {
        let action = action(Operation::GetObject, version.is_some());
        match self.judge(action, bucket, key, version).await? {
            Some(found) => Ok(Some(found?.version)),
            None => Ok(version),
        }
    }

    /// Decides, by the rules that the bucket has now, whether an object of it may be deleted; `by_tag`: where it has a certain entity
    /// tag, which tells what it holds, so that it must be allowed to be read, too. Returns what was judged, where tags decide.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchBucket`.
    pub(crate) async fn permit_delete(
        &self,
        key: &str,
        version: Option<VersionId>,
        by_tag: bool,
    ) -> Outcome<Option<Result<Meta, StoreError>>> {
        let judged = self
            .judge(
                action(Operation::DeleteObject, version.is_some()),
                self.bucket,
                key,
                version,
            )
            .await?;
        if by_tag {
            let action = action(Operation::GetObject, version.is_some());
            let found = judged.as_ref().and_then(|found| found.as_ref().ok());
            self.permit_object(action, self.bucket, key, version, found)
                .await?;
        }
        Ok(judged)
    }

    /// Decides about an object; where tags decide, as it is found now, which is returned.
    async fn judge(
        &self,
        action: &str,
        bucket: &str,
        key: &str,
        version: Option<VersionId>,
    ) -> Outcome<Option<Result<Meta, StoreError>>> {
        let (_, rules) = self.find(bucket)?;
        let address = Address::object(bucket, key.as_bytes());
        let judged = match rules.is_some_and(|rules| rules.asks_tags) {
            true => Some(self.door.store.stat(address, version).await),
            false => None,
        };
        let found = judged.as_ref().and_then(|found| found.as_ref().ok());
        self.permit_object(action, bucket, key, version, found)
            .await?;
        Ok(judged)
    }

    /// Decides whether the tags of an object of any bucket may be read that was found.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchBucket`.
    pub(crate) async fn permit_source_tags(
        &self,
        bucket: &str,
        key: &str,
        version: Option<VersionId>,
        meta: &Meta,
    ) -> Outcome<()> {
        let action = action(Operation::GetObjectTagging, version.is_some());
        self.permit_object(action, bucket, key, version, Some(meta))
            .await?;
        Ok(())
    }

    /// Decides whether an object of any bucket may be written.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchBucket`.
    pub(crate) async fn permit_target(&self, bucket: &str, key: &str) -> Outcome<()> {
        let action = action(Operation::PutObject, false);
        self.permit_object(action, bucket, key, None, None).await?;
        Ok(())
    }

    async fn permit_object(
        &self,
        action: &str,
        bucket: &str,
        key: &str,
        version: Option<VersionId>,
        found: Option<&Meta>,
    ) -> Outcome<Arc<NamespaceInfo>> {
        let (info, rules) = self.find(bucket)?;
        let wish = Wish {
            info: &info,
            rules: rules.as_deref(),
            action,
            key,
            version,
            tags: &Tags::default(),
            found,
        };
        self.permit(&wish).await?;
        Ok(info)
    }

    fn find(&self, bucket: &str) -> Outcome<(Arc<NamespaceInfo>, Option<Arc<Rules>>)> {
        match self.door.store.namespace(bucket) {
            Ok(info) => {
                let rules = self.door.rules.of(&info);
                Ok((info, rules))
            }
            Err(error) => match self.caller {
                Caller::Anonymous => Err(ErrorCode::AccessDenied.into()),
                Caller::Key(_) => Err(error.into()),
            },
        }
    }

    async fn permit(&self, wish: &Wish<'_>) -> Outcome<()> {
        let owns = self.caller.owns(&wish.info.config.tenant);
        let policy = wish.rules.and_then(|rules| rules.policy.as_ref());
        let decision = match (policy, wish.rules) {
            (Some(policy), Some(rules)) => self.ask(policy, rules, wish).await,
            (None, Some(rules)) if rules.unreadable && !owns => Decision::Deny,
            _ => Decision::Neutral,
        };
        match (decision, owns, self.caller) {
            (Decision::Allow, ..) | (Decision::Neutral, true, _) => Ok(()),
            (Decision::Deny, true, _) | (_, _, Caller::Anonymous) => {
                Err(ErrorCode::AccessDenied.into())
            }
            _ if policy.is_some_and(Policy::is_public) => Err(ErrorCode::AccessDenied.into()),
            _ => Err(ErrorCode::NoSuchBucket.into()),
        }
    }

    async fn ask(&self, policy: &Policy, rules: &Rules, wish: &Wish<'_>) -> Decision {
        let resource = match wish.key {
            "" => wish.info.name.clone(),
            key => format!("{}/{key}", wish.info.name),
        };
        let arn = self.caller.arn();
        let principal = principal(self.caller, &arn);
        let owned = self.context(rules, wish).await;
        let mut context: Vec<(&str, &str)> = owned
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        if let Caller::Key(key) = self.caller {
            context.extend([
                ("aws:principalaccount", key.tenant.as_str()),
                ("aws:principalarn", arn.as_str()),
                ("aws:userid", key.id.as_str()),
                ("aws:username", key.id.as_str()),
            ]);
        }
        policy.evaluate(&Access {
            principal,
            action: wish.action,
            resource: &resource,
            context: &context,
        })
    }

    /// Whether what is wanted stands in the body, so that its handler decides: which keys are to be deleted, which tags set. Where all
    /// of it would be refused whatever it is, it is not read.
    fn stands_in_body(&self, op: Operation, wish: &Wish<'_>) -> bool {
        let Some((rules, policy)) = wish
            .rules
            .and_then(|rules| Some((rules, rules.policy.as_ref()?)))
        else {
            return false;
        };
        let actions = match op {
            Operation::DeleteObjects => [wish.action, "s3:DeleteObjectVersion"],
            Operation::PutObjectTagging if rules.asks_new_tags => [wish.action; 2],
            _ => return false,
        };
        let arn = self.caller.arn();
        let principal = principal(self.caller, &arn);
        let allowed = |action: &str| policy.may_allow(principal, action);
        self.caller.owns(&wish.info.config.tenant) || actions.into_iter().any(allowed)
    }

    /// What conditions may ask about, as far as it is there.
    async fn context(&self, rules: &Rules, wish: &Wish<'_>) -> Vec<(String, String)> {
        let mut context = Vec::with_capacity(16);
        let mut put = |name: &str, value: &str| context.push((name.to_owned(), value.to_owned()));
        let now_s = i64::try_from(self.now_ms / 1000).unwrap_or(i64::MAX);
        put(
            "aws:currenttime",
            &forebay_proto::s3::date::iso8601(self.now_ms),
        );
        put("aws:epochtime", &now_s.to_string());
        put(
            "aws:securetransport",
            if self.secure { "true" } else { "false" },
        );
        if let Some(peer) = self.peer {
            put("aws:sourceip", &peer.ip().to_canonical().to_string());
        }
        for (name, header) in [
            ("aws:referer", &REFERER),
            ("aws:useragent", &USER_AGENT),
            ("s3:x-amz-acl", &headers::ACL),
            ("s3:x-amz-content-sha256", &headers::CONTENT_SHA256),
            ("s3:x-amz-copy-source", &headers::COPY_SOURCE),
            ("s3:x-amz-metadata-directive", &headers::METADATA_DIRECTIVE),
        ] {
            if let Some(value) = headers::text(self.headers, header) {
                put(name, value);
            }
        }
        for (name, parameter) in [
            ("s3:delimiter", "delimiter"),
            ("s3:max-keys", "max-keys"),
            ("s3:prefix", "prefix"),
        ] {
            if let Some(value) = self.query.get(parameter) {
                put(name, value);
            }
        }
        // Of what is judged, which need not be what the query names: the source of a copy, an entry of a list.
        if let Some(version) = wish.version {
            put("s3:versionid", &headers::version_text(version));
        }
        if matches!(self.caller, Caller::Key(_)) {
            let presigned = self.query.has("X-Amz-Signature");
            put("s3:signatureversion", "AWS4-HMAC-SHA256");
            put(
                "s3:authtype",
                if presigned {
                    "REST-QUERY-STRING"
                } else {
                    "REST-HEADER"
                },
            );
        }
        for (key, value) in wish.tags.iter() {
            put(&format!("s3:requestobjecttag/{key}"), value);
        }
        if rules.asks_tags && !wish.key.is_empty() {
            let existing = match wish.found {
                Some(meta) => kept::tags(&meta.attributes),
                None => self.tags_there(wish).await,
            };
            for (key, value) in existing.iter() {
                put(&format!("s3:existingobjecttag/{key}"), value);
            }
        }
        context
    }

    /// The tags of the object as it is now; none when there is none.
    async fn tags_there(&self, wish: &Wish<'_>) -> Tags {
        let address = Address::object(&wish.info.name, wish.key.as_bytes());
        let looked = self.door.store.stat(address, wish.version).await;
        looked
            .map(|meta| kept::tags(&meta.attributes))
            .unwrap_or_default()
    }
}

/// The caller as a policy names it.
fn principal<'p>(caller: &'p Caller, arn: &'p str) -> Option<Principal<'p>> {
    let account = caller.tenant()?;
    Some(Principal { account, arn })
}

/// Whether `versionId` in the query says which version an operation is about; others ignore it.
fn names_version(op: Operation) -> bool {
    matches!(
        op,
        Operation::GetObject
            | Operation::HeadObject
            | Operation::ExecuteObject
            | Operation::DeleteObject
            | Operation::GetObjectAcl
            | Operation::PutObjectAcl
            | Operation::GetObjectAttributes
            | Operation::GetObjectTagging
            | Operation::PutObjectTagging
            | Operation::DeleteObjectTagging
            | Operation::GetObjectLegalHold
            | Operation::GetObjectRetention
    )
}

/// The action that a policy names, which for some operations differs when a version is named.
fn action(op: Operation, versioned: bool) -> &'static str {
    match op {
        Operation::GetObject | Operation::HeadObject | Operation::ExecuteObject if versioned => {
            "s3:GetObjectVersion"
        }
        Operation::DeleteObject if versioned => "s3:DeleteObjectVersion",
        Operation::GetObjectAcl if versioned => "s3:GetObjectVersionAcl",
        Operation::PutObjectAcl if versioned => "s3:PutObjectVersionAcl",
        Operation::GetObjectAttributes if versioned => "s3:GetObjectVersionAttributes",
        Operation::GetObjectTagging if versioned => "s3:GetObjectVersionTagging",
        Operation::PutObjectTagging if versioned => "s3:PutObjectVersionTagging",
        Operation::DeleteObjectTagging if versioned => "s3:DeleteObjectVersionTagging",
        other => other.action(),
    }
}

/// What else an operation takes: attributes tell as much as reading does.
fn read_besides(op: Operation, versioned: bool) -> Option<&'static str> {
    (op == Operation::GetObjectAttributes).then(|| action(Operation::GetObject, versioned))
}

/// A refusal that names no bucket policy: for what no policy can allow.
pub(crate) fn need_key(caller: &Caller) -> Outcome<&str> {
    caller
        .tenant()
        .ok_or_else(|| Refusal::from(ErrorCode::AccessDenied))
}
