//! What lets this server reach memory of its clients: sessions, their regions and grants.
//!
//! They live in the memory of this process. What is shown here names them and proves nothing: whoever wants to use a grant needs its
//! text, and whoever wants to make tokens or links the session's key.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use forebay_fabric::sessions::Lent;
use forebay_fabric::{Access, Link, Session, SessionId};
use forebay_store::Store;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Admin, Error, Kind, Result};

/// The most lines of a page.
const PAGE_MAX: usize = 1000;

/// Names a session, or what has a number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantId {
    session: SessionId,
    /// Nothing has zero: in the order of a list the session itself does.
    number: u64,
}

impl GrantId {
    fn of(session: &Session) -> GrantId {
        GrantId {
            session: session.id(),
            number: 0,
        }
    }
}

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            0 => write!(f, "{}", self.session),
            number => write!(f, "{}-{number}", self.session),
        }
    }
}

impl FromStr for GrantId {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<GrantId, String> {
        let (session, number) = match text.split_once('-') {
            Some((session, number)) => (session, number.parse().ok()),
            None => (text, Some(0)),
        };
        let id = SessionId::from_hex(session).zip(number);
        let id = id.map(|(session, number)| GrantId { session, number });
        // One id has one spelling.
        id.filter(|id| id.to_string() == text)
            .ok_or_else(|| format!("{text:?} is not an id as a list of grants shows it"))
    }
}

impl Serialize for GrantId {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GrantId {
    fn deserialize<D: Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<GrantId, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Asks for a page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantsAsked {
    /// Of which tenant; of all when it is missing.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Where the page begins: from the page before.
    #[serde(default)]
    pub page_token: Option<GrantId>,
    /// The most lines; 0 for the server's choice.
    #[serde(default)]
    pub limit: u32,
}

/// A page of a list: each session before its regions and grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantPage {
    /// The lines.
    pub grants: Vec<Grant>,
    /// Asks for the next page; missing when this was the last.
    pub next_page_token: Option<GrantId>,
}

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GrantKind {
    /// A session: what its client exposes on its links, for the tokens of S3 requests.
    Session,
    /// A region, which its session's calls and messages may name.
    Region,
    /// A grant, which any identity of the tenant may use.
    Grant,
}

/// Something that lets the server reach memory of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Its name; neither a grant's text nor a token.
    pub id: GrantId,
    /// What it is.
    pub kind: GrantKind,
    /// Whose it is.
    pub tenant: String,
    /// The access key that opened the session.
    pub access_key: String,
    /// By what memory is reached: `shm`, `iwarp`; of a session by each of its links once.
    pub fabrics: Vec<String>,
    /// Which memory; `null` of a session.
    pub memory: Option<GrantedMemory>,
    /// When it was made, in milliseconds since 1970.
    pub since: u64,
    /// When it ends unless it is renewed, in milliseconds since 1970; `null` of a region, which lasts as long as its link.
    pub until: Option<u64>,
}

/// Memory that may be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedMemory {
    /// The region's number in its session.
    pub region: u64,
    /// The first byte, from the start of the region.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// What may be done: `read`, `write`, `read-write`.
    pub access: GrantedAccess,
}

/// What the server may do with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GrantedAccess {
    /// Read it: a source of stores.
    Read,
    /// Write it: a target of retrieves.
    Write,
    /// Both.
    ReadWrite,
}

/// How many sessions have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionsEnded {
    /// So many.
    pub sessions: u64,
}

impl<S: Store> Admin<S> {
    /// What lets this server reach memory of its clients, a page at a time.
    ///
    /// # Errors
    /// [`Kind::NotFound`] for the tenant.
    pub fn grants(&self, asked: &GrantsAsked) -> Result<GrantPage> {
        let tenant = asked.tenant.as_deref();
        if let Some(name) = tenant {
            self.must_be_tenant(name)?;
        }
        let limit = match asked.limit as usize {
            0 => PAGE_MAX,
            limit => limit.min(PAGE_MAX),
        };
        // One line more than the page has tells where the next one begins. Each session is a line at least, unless it ends meanwhile.
        let from = asked.page_token;
        let mut first = Some(from.map_or(SessionId([0; 16]), |from| from.session));
        let mut lines = Vec::new();
        while let Some(id) = first {
            let listed = self.sessions().listed(tenant, id, limit + 1);
            let last = listed.last().filter(|_| listed.len() > limit);
            first = last.and_then(|last| last.id().next());
            for session in &listed {
                let from = from.filter(|from| from.session == session.id());
                let from = from.map_or(0, |from| from.number);
                let Some(until) = session.until() else {
                    continue;
                };
                if from == 0 {
                    lines.push(line_of(session, until));
                }
                let room = (limit + 1).saturating_sub(lines.len());
                let lent = session.lent(from.saturating_sub(1), room);
                lines.extend(lent.iter().map(|lent| line(session, lent)));
                if lines.len() > limit {
                    first = None;
                    break;
                }
            }
        }
        let next_page_token = lines.get(limit).map(|line| line.id);
        lines.truncate(limit);
        Ok(GrantPage {
            grants: lines,
            next_page_token,
        })
    }

    /// Takes back what has this id: a grant, a region with its grants, or a session with all that it lends. When this returns, nothing
    /// begins by it any more, and all that was asked over the links of a session has happened or never will, whoever ended it. With a
    /// `tenant` what belongs to another one is not there.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub async fn remove_grant(&self, id: &str, tenant: Option<&str>) -> Result<()> {
        let known = || {
            let id: GrantId = id.parse().ok()?;
            let sessions = self.sessions();
            let seen = |session: &Arc<Session>| tenant.is_none_or(|own| session.tenant() == own);
            let session = sessions.find(id.session).filter(seen);
            let session = match id.number {
                0 => session
                    .inspect(|session| {
                        sessions.close(session.id());
                    })
                    .or_else(|| sessions.ending(id.session).filter(seen)),
                number => session.filter(|session| session.take_back(number)),
            };
            session.zip(Some(id.number))
        };
        let (session, number) = known().ok_or_else(|| {
            let text = "there is no such session, region or grant on this server";
            Error::new(Kind::NotFound, text)
        })?;
        if number == 0 {
            session.quiet().await;
        }
        tracing::info!(id, tenant = session.tenant(), "grant removed");
        Ok(())
    }

    /// Ends all sessions of a tenant. When this returns, all that was asked over their links, and over those of sessions that had ended
    /// before, has happened or never will.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub async fn remove_grants(&self, tenant: &str) -> Result<SessionsEnded> {
        self.must_be_tenant(tenant)?;
        let sessions = self.sessions().close_all(tenant) as u64;
        for session in self.sessions().all_ending(tenant) {
            session.quiet().await;
        }
        tracing::info!(tenant, sessions, "all grants of a tenant removed");
        Ok(SessionsEnded { sessions })
    }
}

/// A session itself.
fn line_of(session: &Session, until: u64) -> Grant {
    let links = session.links();
    let fabrics = links.iter().map(|(_, link)| link.fabric().name());
    let mut fabrics: Vec<String> = fabrics.map(str::to_owned).collect();
    fabrics.sort_unstable();
    fabrics.dedup();
    Grant {
        id: GrantId::of(session),
        kind: GrantKind::Session,
        tenant: session.tenant().to_owned(),
        access_key: session.principal().to_owned(),
        fabrics,
        memory: None,
        since: session.since(),
        until: Some(until),
    }
}

fn line(session: &Session, lent: &Lent) -> Grant {
    Grant {
        id: GrantId {
            number: lent.name,
            ..GrantId::of(session)
        },
        kind: match lent.name == lent.region.0 {
            true => GrantKind::Region,
            false => GrantKind::Grant,
        },
        tenant: session.tenant().to_owned(),
        access_key: session.principal().to_owned(),
        fabrics: vec![lent.fabric.name().to_owned()],
        memory: Some(GrantedMemory {
            region: lent.region.0,
            offset: lent.offset,
            length: lent.len,
            access: match lent.access {
                Access::Read => GrantedAccess::Read,
                Access::Write => GrantedAccess::Write,
                Access::ReadWrite => GrantedAccess::ReadWrite,
            },
        }),
        since: lent.since,
        until: lent.until,
    }
}
