//! The emitter under every document: escapes, never fails, one buffer.

use super::NAMESPACE;
use crate::s3::{
    date,
    error::S3Error,
    percent::{self, Slash},
};

/// Appends `text` as XML character data. Characters outside XML 1.0 become U+FFFD.
pub fn escape_into(out: &mut String, text: &str) {
    let mut plain = 0;
    for (at, character) in text.char_indices() {
        let replacement = match character {
            '&' => "&amp;",
            '<' => "&lt;",
            '>' => "&gt;",
            '"' => "&quot;",
            '\t' => "&#9;",
            '\n' => "&#10;",
            '\r' => "&#13;",
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => "\u{fffd}",
            _ => continue,
        };
        out.push_str(&text[plain..at]);
        out.push_str(replacement);
        plain = at + character.len_utf8();
    }
    out.push_str(&text[plain..]);
}

/// Who owns a bucket or an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner<'a> {
    /// The canonical id.
    pub id: &'a str,
    /// The name shown to people.
    pub display_name: &'a str,
}

/// Writes one document. Names are XML names given by the code, values are escaped.
#[derive(Debug)]
pub struct XmlWriter {
    out: String,
}

impl XmlWriter {
    /// Starts a document with the XML declaration and a root in S3's namespace.
    #[must_use]
    pub fn new(root: &str) -> XmlWriter {
        XmlWriter::with_capacity(root, 256)
    }

    /// As [`XmlWriter::new`], with room for `capacity` bytes.
    #[must_use]
    pub fn with_capacity(root: &str, capacity: usize) -> XmlWriter {
        let mut writer = XmlWriter::bare(capacity);
        writer.out.push('<');
        writer.out.push_str(root);
        writer.out.push_str(" xmlns=\"");
        writer.out.push_str(NAMESPACE);
        writer.out.push_str("\">");
        writer
    }

    /// Starts a document with the declaration alone: error documents have no namespace.
    #[must_use]
    pub fn bare(capacity: usize) -> XmlWriter {
        let mut out = String::with_capacity(capacity);
        out.push_str("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        XmlWriter { out }
    }

    /// Opens an element.
    pub fn open(&mut self, name: &str) {
        self.out.push('<');
        self.out.push_str(name);
        self.out.push('>');
    }

    /// Closes an element.
    pub fn close(&mut self, name: &str) {
        self.out.push_str("</");
        self.out.push_str(name);
        self.out.push('>');
    }

    /// An element with text.
    pub fn text(&mut self, name: &str, value: &str) {
        self.open(name);
        escape_into(&mut self.out, value);
        self.close(name);
    }

    /// An element with text, when there is a value.
    pub fn optional(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    /// An element with bytes that are UTF-8 by rule; what is not becomes U+FFFD. With `url` they
    /// are percent-encoded (`encoding-type=url`).
    pub fn key(&mut self, name: &str, value: &[u8], url: bool) {
        self.open(name);
        if url {
            percent::encode_into(&mut self.out, value, Slash::Keep);
        } else {
            escape_into(&mut self.out, &String::from_utf8_lossy(value));
        }
        self.close(name);
    }

    /// An element with a number.
    pub fn number(&mut self, name: &str, value: u64) {
        self.open(name);
        self.out.push_str(itoa::Buffer::new().format(value));
        self.close(name);
    }

    /// An element with `true` or `false`.
    pub fn boolean(&mut self, name: &str, value: bool) {
        self.text(name, if value { "true" } else { "false" });
    }

    /// An element with an ISO 8601 time, from Unix milliseconds.
    pub fn time(&mut self, name: &str, unix_ms: u64) {
        self.open(name);
        date::push_iso8601(&mut self.out, unix_ms);
        self.close(name);
    }

    /// An element with an entity tag, given without quotes, written with them.
    pub fn etag(&mut self, name: &str, etag: &str) {
        self.open(name);
        self.out.push_str("&quot;");
        escape_into(&mut self.out, etag);
        self.out.push_str("&quot;");
        self.close(name);
    }

    /// An owner or initiator.
    pub fn owner(&mut self, name: &str, owner: &Owner<'_>) {
        self.open(name);
        self.text("ID", owner.id);
        self.text("DisplayName", owner.display_name);
        self.close(name);
    }

    /// Text as it is; must already be legal markup.
    pub(super) fn raw(&mut self, markup: &str) {
        self.out.push_str(markup);
    }

    /// Closes the root and returns the document.
    #[must_use]
    pub fn finish(mut self, root: &str) -> String {
        self.close(root);
        self.out
    }
}

impl S3Error {
    /// The document that S3 answers with. `resource` is the path that was asked for.
    #[must_use]
    pub fn to_xml(&self, resource: &str, request_id: &str) -> String {
        let mut writer = XmlWriter::bare(320);
        writer.open("Error");
        writer.text("Code", self.code.as_str());
        writer.text("Message", self.message());
        for (name, value) in self.fields() {
            writer.text(name, value);
        }
        writer.text("Resource", resource);
        writer.text("RequestId", request_id);
        writer.text("HostId", request_id);
        writer.finish("Error")
    }
}
