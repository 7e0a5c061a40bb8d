//! What comes of a measurement, and how it is handed out.

use std::fmt;

use serde::Serialize;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{CachePoint, ExecPoint, Point};

/// A result.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Measured {
    /// Of a load.
    Load(Box<Point>),
    /// Of functions.
    Exec(Box<ExecPoint>),
    /// Of a cache.
    Cache(CachePoint),
}

impl Measured {
    /// Why nothing was measured, if no operation ended well.
    #[must_use]
    pub fn failure(&self) -> Option<&'static str> {
        let point = match self {
            Measured::Load(point) => point,
            Measured::Exec(exec) => &exec.point,
            // There is no ratio of a trace that could not be replayed.
            Measured::Cache(_) => return None,
        };
        match point.errors {
            _ if point.ops_per_s > 0.0 => None,
            0 => Some("no operation ended in time: give more --seconds"),
            _ => Some("every operation failed"),
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Measured::Load(point) => point.fmt(f),
            Measured::Exec(point) => point.fmt(f),
            Measured::Cache(point) => point.fmt(f),
        }
    }
}

impl From<Point> for Measured {
    fn from(point: Point) -> Measured {
        Measured::Load(Box::new(point))
    }
}

impl From<ExecPoint> for Measured {
    fn from(point: ExecPoint) -> Measured {
        Measured::Exec(Box::new(point))
    }
}

impl From<CachePoint> for Measured {
    fn from(point: CachePoint) -> Measured {
        Measured::Cache(point)
    }
}

/// Takes results as they are made: what was measured is told, whatever becomes of the rest.
#[derive(Clone, Debug)]
pub struct Results(UnboundedSender<Measured>);

impl Results {
    /// Takes results, which come out of the other end.
    #[must_use]
    pub fn channel() -> (Results, UnboundedReceiver<Measured>) {
        let (sender, receiver) = unbounded_channel();
        (Results(sender), receiver)
    }

    /// Hands out a result.
    pub(crate) fn add(&self, result: impl Into<Measured>) {
        // Whoever listens no more needs no more.
        let _ = self.0.send(result.into());
    }
}
