//! The reader under every request body: a bounded walk over elements.

use quick_xml::{Reader, events::Event};

use super::{MAX_BODY, MAX_DEPTH};
use crate::s3::error::{ErrorCode, S3Error};

/// Why a body is not the document it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XmlError {
    /// Longer than the limit.
    #[error("document too long")]
    TooLong,
    /// Not well-formed, not UTF-8, or with something that is refused (a DTD, an entity).
    #[error("document not well-formed: {0}")]
    Malformed(&'static str),
    /// Well-formed, but not what the schema allows.
    #[error("document does not follow its schema: {0}")]
    Schema(&'static str),
}

impl From<XmlError> for S3Error {
    fn from(error: XmlError) -> S3Error {
        S3Error::new(match error {
            XmlError::TooLong => ErrorCode::MaxMessageLengthExceeded,
            XmlError::Malformed(_) | XmlError::Schema(_) => ErrorCode::MalformedXML,
        })
    }
}

/// Walks one document from the root down.
///
/// [`Scanner::child`] enters the next child of the element it stands in; the caller then takes
/// that element by [`Scanner::text`] or [`Scanner::skip`], or loops over its children until
/// `None`, which leaves it.
pub struct Scanner<'a> {
    reader: Reader<&'a [u8]>,
    depth: u32,
    name: String,
}

impl std::fmt::Debug for Scanner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scanner")
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}

impl<'a> Scanner<'a> {
    /// Enters the root of a document of at most [`MAX_BODY`] bytes, which must be `root`.
    ///
    /// # Errors
    /// [`XmlError`].
    pub fn root(body: &'a [u8], root: &str) -> Result<Scanner<'a>, XmlError> {
        Scanner::root_within(body, root, MAX_BODY)
    }

    /// As [`Scanner::root`] with another limit, for replies that a client asked for.
    ///
    /// # Errors
    /// [`XmlError`].
    pub fn root_within(
        body: &'a [u8],
        root: &str,
        max_bytes: usize,
    ) -> Result<Scanner<'a>, XmlError> {
        if body.len() > max_bytes {
            return Err(XmlError::TooLong);
        }
        let text = std::str::from_utf8(body).map_err(|_| XmlError::Malformed("not UTF-8"))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut reader = Reader::from_str(text);
        reader.config_mut().expand_empty_elements = true;
        let mut scanner = Scanner {
            reader,
            depth: 0,
            name: String::new(),
        };
        match scanner.child()? {
            Some(name) if name == root => Ok(scanner),
            Some(_) => Err(XmlError::Schema("unexpected root")),
            None => Err(XmlError::Malformed("no root")),
        }
    }

    fn event(&mut self) -> Result<Event<'a>, XmlError> {
        match self.reader.read_event() {
            Ok(Event::DocType(_)) => Err(XmlError::Malformed("document type refused")),
            Ok(Event::PI(_)) => Err(XmlError::Malformed("processing instruction refused")),
            Ok(Event::Eof) if self.depth > 0 => Err(XmlError::Malformed("ends too early")),
            Ok(event) => Ok(event),
            Err(_) => Err(XmlError::Malformed("markup")),
        }
    }

    /// The local name of the next child, entered; or `None` when the element that the scanner
    /// stood in has ended.
    ///
    /// # Errors
    /// [`XmlError`]; text beside elements is an error.
    pub fn child(&mut self) -> Result<Option<&str>, XmlError> {
        loop {
            match self.event()? {
                Event::Start(start) => {
                    if self.depth == MAX_DEPTH {
                        return Err(XmlError::Malformed("too deep"));
                    }
                    self.depth += 1;
                    self.name.clear();
                    self.name.push_str(start.local_name().as_ref());
                    return Ok(Some(&self.name));
                }
                Event::End(_) => {
                    self.depth = self.depth.saturating_sub(1);
                    return Ok(None);
                }
                Event::Eof => return Ok(None),
                Event::Text(text) if text.trim_ascii().is_empty() => {}
                Event::Decl(_) | Event::Comment(_) => {}
                Event::Empty(_)
                | Event::Text(_)
                | Event::CData(_)
                | Event::GeneralRef(_)
                | Event::PI(_)
                | Event::DocType(_) => return Err(XmlError::Schema("text beside elements")),
            }
        }
    }

    /// The text of the element just entered, which is left. Line ends become `\n`, as XML
    /// 1.0 section 2.11 rules.
    ///
    /// # Errors
    /// [`XmlError`]; an element inside is an error.
    pub fn text(&mut self) -> Result<String, XmlError> {
        let mut text = String::new();
        loop {
            match self.event()? {
                Event::Text(part) => text.push_str(&part.xml10_content()),
                Event::CData(part) => text.push_str(&part.xml10_content()),
                Event::GeneralRef(reference) => {
                    let character = if reference.is_char_ref() {
                        reference
                            .resolve_char_ref()
                            .ok()
                            .flatten()
                            .filter(|character| *character != '\0')
                    } else {
                        match &*reference.into_inner() {
                            "amp" => Some('&'),
                            "lt" => Some('<'),
                            "gt" => Some('>'),
                            "quot" => Some('"'),
                            "apos" => Some('\''),
                            _ => None,
                        }
                    };
                    text.push(character.ok_or(XmlError::Malformed("entity refused"))?);
                }
                Event::Comment(_) => {}
                Event::End(_) => {
                    self.depth = self.depth.saturating_sub(1);
                    return Ok(text);
                }
                Event::Start(_)
                | Event::Empty(_)
                | Event::Decl(_)
                | Event::PI(_)
                | Event::DocType(_)
                | Event::Eof => return Err(XmlError::Schema("element inside text")),
            }
        }
    }

    /// The text of the element just entered, as a number.
    ///
    /// # Errors
    /// [`XmlError`].
    pub fn number<N: std::str::FromStr>(&mut self) -> Result<N, XmlError> {
        let text = self.text()?;
        let text = text.trim_ascii();
        if !text.starts_with(|first: char| first.is_ascii_digit()) {
            return Err(XmlError::Schema("not a number"));
        }
        text.parse().map_err(|_| XmlError::Schema("not a number"))
    }

    /// The text of the element just entered, as a truth value.
    ///
    /// # Errors
    /// [`XmlError`].
    pub fn boolean(&mut self) -> Result<bool, XmlError> {
        match self.text()?.trim_ascii() {
            "true" | "True" | "TRUE" | "1" => Ok(true),
            "false" | "False" | "FALSE" | "0" => Ok(false),
            _ => Err(XmlError::Schema("neither true nor false")),
        }
    }

    /// Leaves the element just entered, whatever it holds.
    ///
    /// # Errors
    /// [`XmlError`].
    pub fn skip(&mut self) -> Result<(), XmlError> {
        let outside = self.depth.saturating_sub(1);
        loop {
            match self.event()? {
                Event::Start(_) if self.depth == MAX_DEPTH => {
                    return Err(XmlError::Malformed("too deep"));
                }
                Event::Start(_) => self.depth += 1,
                Event::End(_) => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == outside {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
    }

    /// Checks that nothing follows the root.
    ///
    /// # Errors
    /// [`XmlError::Malformed`].
    pub fn finish(mut self) -> Result<(), XmlError> {
        let nothing = self.child()?.is_none();
        if nothing && self.depth == 0 {
            Ok(())
        } else {
            Err(XmlError::Malformed("something after the root"))
        }
    }
}

/// Fills a slot that the schema allows once.
pub(crate) fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), XmlError> {
    if slot.replace(value).is_some() {
        return Err(XmlError::Schema("an element is given twice"));
    }
    Ok(())
}
