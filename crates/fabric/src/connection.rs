//! A link of whichever fabric.

use std::sync::Arc;

use crate::iwarp::IwarpLink;
use crate::sessions::{LinkId, Session};
use crate::shm::ShmLink;

/// A link of whichever fabric. Clones are the same link; it ends when the last of them goes.
#[derive(Debug, Clone)]
pub enum Connection {
    /// To a process of this host.
    Shm(Arc<ShmLink>),
    /// To a process anywhere.
    Iwarp(Arc<IwarpLink>),
}

/// A connection that proved which session it belongs to, and is attached to it.
#[derive(Debug)]
pub struct Accepted {
    /// The session.
    pub session: Arc<Session>,
    /// The link. Whoever serves it detaches it from the session in the end.
    pub link: Connection,
    /// Its name in the session.
    pub id: LinkId,
}

/// Makes a link of an enum whose variants each hold one: calls go to the one that is there.
#[macro_export]
macro_rules! any_link {
    ($any:ident { $($variant:ident),+ }) => {
        impl $crate::Link for $any {
            fn fabric(&self) -> $crate::Fabric {
                match self {
                    $($any::$variant(link) => link.fabric(),)+
                }
            }

            async fn expose(
                &self,
                memory: ::forebay_mem::RegionSlice,
                access: $crate::Access,
            ) -> $crate::Result<$crate::Exposure> {
                match self {
                    $($any::$variant(link) => link.expose(memory, access).await,)+
                }
            }

            async fn withdraw(&self, exposure: $crate::Exposure) {
                match self {
                    $($any::$variant(link) => link.withdraw(exposure).await,)+
                }
            }

            async fn write(
                &self,
                to: $crate::RemoteRange,
                from: Vec<::forebay_mem::Buf>,
            ) -> $crate::Result<()> {
                match self {
                    $($any::$variant(link) => link.write(to, from).await,)+
                }
            }

            async fn read(
                &self,
                from: $crate::RemoteRange,
                into: ::forebay_mem::BufMut,
            ) -> $crate::Result<::forebay_mem::BufMut> {
                match self {
                    $($any::$variant(link) => link.read(from, into).await,)+
                }
            }

            async fn fence(&self) -> $crate::Result<$crate::Placed> {
                match self {
                    $($any::$variant(link) => link.fence().await,)+
                }
            }

            async fn send(&self, message: &[u8]) -> $crate::Result<()> {
                match self {
                    $($any::$variant(link) => link.send(message).await,)+
                }
            }

            async fn recv(&self, into: &mut Vec<u8>) -> $crate::Result<Option<()>> {
                match self {
                    $($any::$variant(link) => link.recv(into).await,)+
                }
            }

            fn pauses(&self) {
                match self {
                    $($any::$variant(link) => link.pauses(),)+
                }
            }

            fn mapped(
                &self,
                range: $crate::RemoteRange,
                access: $crate::Access,
            ) -> Option<::forebay_mem::RegionSlice> {
                match self {
                    $($any::$variant(link) => link.mapped(range, access),)+
                }
            }

            fn has_ended(&self) -> bool {
                match self {
                    $($any::$variant(link) => link.has_ended(),)+
                }
            }

            fn close(&self, reason: $crate::CloseReason) {
                match self {
                    $($any::$variant(link) => link.close(reason),)+
                }
            }

            fn is_settled(&self) -> bool {
                match self {
                    $($any::$variant(link) => link.is_settled(),)+
                }
            }

            async fn closed(&self) -> $crate::CloseReason {
                match self {
                    $($any::$variant(link) => link.closed().await,)+
                }
            }
        }
    };
}

any_link!(Connection { Shm, Iwarp });
