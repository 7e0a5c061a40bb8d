//! The single calls: objects, lists, namespaces.

use bytes::Bytes;
use http::{HeaderMap, Method};

use crate::client::{Call, header, legal};
use crate::direct::{Condition, Path};
use crate::{Attributes, Client, Crc64, ListingPage, ObjectInfo, Result, answers};

/// The most keys that one delete call takes.
const DELETE_MANY_MAX: usize = 1000;

/// How to put an object.
#[derive(Debug, Clone, Default)]
pub struct PutOptions {
    /// What is kept with it.
    pub attributes: Attributes,
    /// Only when no object has this key.
    pub if_absent: bool,
}

impl PutOptions {
    /// What must hold of the present value.
    pub(crate) fn condition(&self) -> Condition<'static> {
        match self.if_absent {
            true => Condition::IfAbsent,
            false => Condition::None,
        }
    }
}

impl Client {
    /// Stores `body` and returns the entity tag.
    ///
    /// # Errors
    /// As every call: see [`crate::Error`].
    pub async fn put(
        &self,
        namespace: &str,
        key: &str,
        body: Bytes,
        options: &PutOptions,
    ) -> Result<String> {
        let crc = Crc64::of(&body);
        let (condition, attributes) = (options.condition(), &options.attributes);
        self.put_if(namespace, key, body, crc, condition, attributes)
            .await
    }

    /// The same under any condition; `crc` was made where the bytes come from.
    pub(crate) async fn put_if(
        &self,
        namespace: &str,
        key: &str,
        body: Bytes,
        crc: Crc64,
        condition: Condition<'_>,
        attributes: &Attributes,
    ) -> Result<String> {
        let mut call = Call::object(Method::PUT, namespace, key)?;
        call.headers = kept(attributes)?;
        let call = call
            .header("x-amz-checksum-crc64nvme", &crc.to_header())?
            .body(body);
        // A conditional put that was done but not answered would be refused when made again.
        let call = Call {
            repeatable: condition == Condition::None,
            ..conditional(call, condition)?
        };
        let put = self.call_for_text(call).await;
        let (headers, _) = put.map_err(|error| error.of_upload(namespace, key, Path::Http))?;
        Ok(header(&headers, "etag").trim_matches('"').to_owned())
    }

    /// What is known of an object.
    ///
    /// # Errors
    /// As every call.
    pub async fn head(&self, namespace: &str, key: &str) -> Result<ObjectInfo> {
        ObjectInfo::from_headers(&self.head_headers(namespace, key).await?)
    }

    /// The same with all that the server says.
    pub(crate) async fn head_headers(&self, namespace: &str, key: &str) -> Result<HeaderMap> {
        let call =
            Call::object(Method::HEAD, namespace, key)?.header("x-amz-checksum-mode", "ENABLED")?;
        let answer = self.call(self.versioned(call)).await?;
        answer.lease.done();
        Ok(answer.headers)
    }

    /// Deletes an object; one that is not there is no error.
    ///
    /// # Errors
    /// As every call.
    pub async fn delete(&self, namespace: &str, key: &str) -> Result<()> {
        let call = Call::object(Method::DELETE, namespace, key)?;
        self.call_for_text(self.versioned(call)).await?;
        Ok(())
    }

    /// Deletes many objects, a thousand a call, and returns the keys that stayed, each with the reason.
    ///
    /// # Errors
    /// As every call.
    pub async fn delete_many(
        &self,
        namespace: &str,
        keys: &[String],
    ) -> Result<Vec<(String, String)>> {
        let mut failed = Vec::new();
        // XML 1.0 cannot carry control characters: such keys are deleted by themselves.
        let (odd, plain): (Vec<_>, Vec<_>) = keys.iter().partition(|key| {
            key.chars()
                .any(|c| c.is_control() || c == '\u{fffe}' || c == '\u{ffff}')
        });
        for batch in plain.chunks(DELETE_MANY_MAX) {
            let mut body = String::from("<Delete><Quiet>true</Quiet>");
            for key in batch {
                body.push_str("<Object><Key>");
                body.push_str(&quick_xml::escape::escape(key.as_str()));
                body.push_str("</Key></Object>");
            }
            body.push_str("</Delete>");
            let crc = Crc64::of(body.as_bytes()).to_header();
            let mut call = Call::namespace(Method::POST, namespace)
                .header("x-amz-checksum-crc64nvme", &crc)?
                .body(body.into());
            call.query = "delete=".to_owned();
            let (_, text) = self.call_for_text(call).await?;
            failed.extend(answers::delete_errors(&text)?);
        }
        for key in odd {
            if let Err(error) = self.delete(namespace, key).await {
                failed.push((key.clone(), error.to_string()));
            }
        }
        Ok(failed)
    }

    /// Part of the list of a namespace's objects: those after `next` of the page before.
    ///
    /// # Errors
    /// As every call.
    pub async fn list(
        &self,
        namespace: &str,
        prefix: &str,
        delimiter: Option<&str>,
        next: Option<&str>,
    ) -> Result<ListingPage> {
        let mut call = Call::namespace(Method::GET, namespace)
            .query("list-type", "2")
            .query("encoding-type", "url")
            .query("prefix", prefix);
        if let Some(delimiter) = delimiter {
            call = call.query("delimiter", delimiter);
        }
        if let Some(next) = next {
            call = call.query("continuation-token", next);
        }
        let (_, text) = self.call_for_text(call).await?;
        let page = answers::listing(&text)?;
        answers::goes_on(next, page.next.as_deref())?;
        Ok(page)
    }

    /// Makes a namespace.
    ///
    /// # Errors
    /// As every call.
    pub async fn create_namespace(&self, namespace: &str) -> Result<()> {
        self.call_for_text(Call::namespace(Method::PUT, namespace))
            .await?;
        Ok(())
    }

    /// Removes an empty namespace.
    ///
    /// # Errors
    /// As every call.
    pub async fn delete_namespace(&self, namespace: &str) -> Result<()> {
        self.call_for_text(Call::namespace(Method::DELETE, namespace))
            .await?;
        Ok(())
    }

    /// The namespaces of the identity's tenant, with creation times in seconds since 1970.
    ///
    /// # Errors
    /// As every call.
    pub async fn namespaces(&self) -> Result<Vec<(String, i64)>> {
        let (_, text) = self.call_for_text(Call::namespace(Method::GET, "")).await?;
        answers::namespaces(&text)
    }
}

/// What a call that makes an object says of what is kept with it.
pub(crate) fn kept(attributes: &Attributes) -> Result<HeaderMap> {
    let headers = attributes.headers();
    headers
        .iter()
        .map(|(name, value)| legal(name, value))
        .collect()
}

/// A call that makes an object only where the condition holds of what is there.
pub(crate) fn conditional<'a>(call: Call<'a>, condition: Condition<'_>) -> Result<Call<'a>> {
    match condition {
        Condition::None => Ok(call),
        Condition::IfAbsent => call.header("if-none-match", "*"),
        Condition::IfPresent => call.header("if-match", "*"),
        Condition::IfMatch(etag) => call.header("if-match", &format!("\"{etag}\"")),
    }
}
