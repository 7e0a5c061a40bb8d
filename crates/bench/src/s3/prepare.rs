//! What has to be there before a measurement.

use std::time::Instant;

use crate::payload::Payload;
use crate::s3::Target;
use crate::s3::connection::{Connection, PATIENCE, Progress};
use crate::s3::load::{self, Load, Until, unix_now};
use crate::s3::request::{Ask, Signer};
use crate::{Error, Op};

/// Connections that fill a bucket with small objects, and with large ones.
const FILLERS_SMALL: usize = 64;
const FILLERS_LARGE: usize = 8;
/// From here on an object is large, in bytes.
const LARGE: usize = 1 << 20;

/// Makes the bucket unless it is there.
pub(crate) fn bucket(target: &Target) -> Result<(), Error> {
    let answer = exchange(target, &Payload::new(0), Ask::CreateBucket, &mut |_| ())?;
    match answer {
        (200..300 | 409, _) => Ok(()),
        (status, text) => Err(refused("the bucket's creation", status, text)),
    }
}

/// Stores the objects that a load reads, unless the last one is there, and looks whether one comes back as it was stored.
pub(crate) fn objects(load: &Load<'_>) -> Result<(), Error> {
    let last = load.objects - 1;
    let (status, _) = exchange(load.target, load.payload, Ask::Head(last), &mut |_| ())?;
    if !(200..300).contains(&status) {
        let concurrency = if load.payload.len() < LARGE {
            FILLERS_SMALL
        } else {
            FILLERS_LARGE
        };
        let tally = load::run(&Load {
            op: Op::Put,
            signed_payload: false,
            concurrency,
            until: Until::EachObject,
            ..*load
        })?;
        if let Some(error) = tally.first_error {
            return Err(Error::Protocol {
                what: format!("storing {} objects", load.objects),
                reason: format!("{} failed, the first with {error}", tally.errors),
            });
        }
    }
    let mut seen = 0;
    let mut same = true;
    let beginning = load.payload.beginning();
    let (status, text) = exchange(load.target, load.payload, Ask::Get(last), &mut |bytes| {
        let end = (seen + bytes.len()).min(beginning.len());
        let known = beginning.get(seen..end).unwrap_or_default();
        same &= bytes.starts_with(known);
        seen += bytes.len();
    })?;
    if !(200..300).contains(&status) {
        return Err(refused("a stored object's GET", status, text));
    }
    if !same || seen != load.payload.len() {
        return Err(Error::Protocol {
            what: "a stored object's GET".to_owned(),
            reason: "other bytes came back than were stored".to_owned(),
        });
    }
    Ok(())
}

/// One request on a connection of its own: the answer's status and, of a refusal, its text.
fn exchange(
    target: &Target,
    payload: &Payload,
    ask: Ask,
    see: &mut impl FnMut(&[u8]),
) -> Result<(u16, String), Error> {
    let what = format!("ask {}", target.host);
    let mut connection =
        Connection::open(target.address, true, false).map_err(Error::io(what.as_str()))?;
    let now = unix_now().as_secs() as i64;
    Signer::new(target, now).write_head(&mut connection.head, ask, payload, false, now);
    let start = Instant::now();
    connection.begin(ask, start);
    let mut scratch = vec![0; 64 * 1024];
    while start.elapsed() < 2 * PATIENCE {
        match connection.drive(payload, &mut scratch, see) {
            Ok(Progress::Answered) => {
                let answer = connection.answer();
                return Ok((answer.status(), answer.text()));
            }
            Ok(Progress::Blocked | Progress::Yielded) => {}
            Err(error) => return Err(Error::io(what)(error)),
        }
    }
    Err(Error::Protocol {
        what,
        reason: "no answer".to_owned(),
    })
}

fn refused(what: &str, status: u16, text: String) -> Error {
    Error::Refused {
        what: what.to_owned(),
        status,
        text,
    }
}
