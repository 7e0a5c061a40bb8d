//! Answers that come one after another: made by a task of their own, whoever reads them.

use std::future::{Future, ready};

use forebay_api::v1::Reason;
use futures_util::stream::{self, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::codegen::BoxStream;

use super::status::{Outcome, Refusal};

/// Elements of one call that are on their way at a time.
const AT_ONCE: usize = 16;
/// Answers of one call that nobody has read, with those that are being made.
const UNREAD_MAX: usize = 64;

/// Has a task make answers, for which there are so many places until they are read, and end them as it ends itself.
///
/// HTTP/2 asks for an answer when its client's window has room, and that may be never: how long to wait for a place is up to the task.
/// Whoever lets go of the answers ends it.
pub(crate) fn made_by<T, M>(places: usize, make: impl FnOnce(mpsc::Sender<T>) -> M) -> BoxStream<T>
where
    T: Send + 'static,
    M: Future<Output = Outcome<()>> + Send + 'static,
{
    let (places, arriving) = mpsc::channel(places);
    let making = tokio::spawn(make(places));
    let answers = Answers { arriving, making };
    Box::pin(stream::try_unfold(answers, |mut answers| async move {
        let next = answers.next().await?;
        Ok(next.map(|answer| (answer, answers)))
    }))
}

/// Works on the elements of a call side by side and answers in their order.
///
/// An element at work holds what others wait for: buffers, keys, turns at the store. So it has a place for its answer before it begins,
/// and whatever has begun ends; only what has not begun waits for the reader. Whoever lets go of the answers gives up what is at work.
/// `open` is held until nothing is.
pub(crate) fn in_order<T, W>(
    elements: impl Iterator<Item = W> + Send + 'static,
    open: watch::Receiver<bool>,
) -> BoxStream<T>
where
    T: Send + 'static,
    W: Future<Output = T> + Send + 'static,
{
    made_by(UNREAD_MAX, |places| async move {
        let _open = open;
        let begun = stream::unfold((elements, places), |(mut elements, places)| async move {
            let element = elements.next()?;
            let place = places.clone().reserve_owned().await.ok()?;
            let made = async move { (place, element.await) };
            Some((made, (elements, places)))
        });
        let answered = begun.buffered(AT_ONCE).for_each(|(place, answer)| {
            place.send(answer);
            ready(())
        });
        answered.await;
        Ok(())
    })
}

/// Answers on their way to their reader.
struct Answers<T> {
    arriving: mpsc::Receiver<T>,
    making: JoinHandle<Outcome<()>>,
}

impl<T> Answers<T> {
    /// The next one, or none after the last.
    async fn next(&mut self) -> Result<Option<T>, Status> {
        if let Some(answer) = self.arriving.recv().await {
            return Ok(Some(answer));
        }
        let made = (&mut self.making).await;
        // Without a word, answers that are missing would look like the end.
        let made = made
            .unwrap_or_else(|failed| Err(Refusal::new(Reason::OutcomeUnknown, failed.to_string())));
        made?;
        Ok(None)
    }
}

impl<T> Drop for Answers<T> {
    fn drop(&mut self) {
        self.making.abort();
    }
}
