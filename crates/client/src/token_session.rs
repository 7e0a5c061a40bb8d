//! The S3 requests that open and end a session for tokens (docs/token.md section 7.3).

use forebay_fabric::SessionId;
use forebay_proto::s3::sigv4::AmzDate;
use forebay_proto::token::ort1::session_key;
use forebay_proto::token::{hex16, names, parse_hex16};
use http::Method;

use crate::client::{Call, header, unix_s};
use crate::{Client, Error, Result};

/// What the server told.
pub(crate) struct OpenedByS3 {
    pub(crate) session: [u8; 16],
    pub(crate) key: [u8; 32],
    pub(crate) transport: String,
    /// Where the link is made: the path of a Unix socket, or HOST:PORT.
    pub(crate) address: String,
    /// Whether a link to there is made over TLS.
    pub(crate) tls: bool,
}

impl Client {
    pub(crate) async fn open_token_session(&self, transports: &str) -> Result<OpenedByS3> {
        let random = SessionId::random().map_err(Error::local("random numbers"))?;
        let nonce = random.0;
        let mut call = control(names::CONNECT_PATH)?
            .header(names::TRANSPORT, transports)?
            .header(names::NONCE, &hex16(&nonce))?;
        // Twice makes two sessions.
        call.repeatable = false;
        let date = AmzDate::from_unix_s(unix_s());
        let (headers, _) = self.call_for_text(call).await?;
        let bytes = |name: &str| {
            parse_hex16(&header(&headers, name))
                .ok_or_else(|| Error::Protocol(format!("no {name}")))
        };
        let session = bytes(names::SESSION)?;
        // Both sides derive it from the key that signed this request; around midnight that may be yesterday's, and no proof will do.
        let signing = self.signing_key(&date);
        let key = session_key(&signing, &session, &nonce, &bytes(names::NONCE)?);
        let transport = header(&headers, names::TRANSPORT);
        let place = match transport.as_str() {
            "shm" => names::UDS,
            _ => names::CM,
        };
        Ok(OpenedByS3 {
            session,
            key,
            address: header(&headers, place),
            tls: header(&headers, names::CM_SECURITY) == names::TLS,
            transport,
        })
    }

    /// Ends a session. Where this fails the server ends it, when it has been idle for long.
    pub(crate) async fn close_token_session(&self, session: SessionId) -> Result<()> {
        let call = control(names::DISCONNECT_PATH)?.header(names::SESSION, &hex16(&session.0))?;
        self.call_for_text(call).await.map(drop)
    }
}

/// A control request.
fn control(path: &'static str) -> Result<Call<'static>> {
    let path = path.trim_start_matches('/');
    let (folder, name) = path.split_once('/').unwrap_or_default();
    Call::object(Method::POST, folder, name)?.header(names::PROTOCOL, names::ORT1)
}
