//! Answers to a call that asks for many things: made by a task of their own, whoever reads them.

use std::future::{Future, ready};

use forebay_api::v1::Reason;
use futures_util::stream::{self, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::codegen::BoxStream;

use super::status::Refusal;

/// Elements of one call that are on their way at a time.
const AT_ONCE: usize = 16;
/// Answers of one call that nobody has read, with those that are being made.
const UNREAD_MAX: usize = 64;

/// Works on the elements of a call side by side and answers in their order.
///
/// HTTP/2 asks for an answer when its client's window has room, and that may be never. An element at work holds what others wait for:
/// buffers, keys, turns at the store. So it has a place for its answer before it begins, and whatever has begun ends; only what has not
/// begun waits for the reader. Whoever lets go of the answers gives up what is at work. `open` is held until nothing is.
pub(crate) fn in_order<T, W>(
    elements: impl Iterator<Item = W> + Send + 'static,
    open: watch::Receiver<bool>,
) -> BoxStream<T>
where
    T: Send + 'static,
    W: Future<Output = T> + Send + 'static,
{
    let (places, arriving) = mpsc::channel(UNREAD_MAX);
    let making = tokio::spawn(async move {
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
    });
    let answers = Answers { arriving, making };
    Box::pin(stream::try_unfold(answers, |mut answers| async move {
        let next = answers.next().await?;
        Ok(next.map(|answer| (answer, answers)))
    }))
}

/// Answers on their way to their reader.
struct Answers<T> {
    arriving: mpsc::Receiver<T>,
    making: JoinHandle<()>,
}

impl<T> Answers<T> {
    /// The next one, or none after the last.
    async fn next(&mut self) -> Result<Option<T>, Status> {
        if let Some(answer) = self.arriving.recv().await {
            return Ok(Some(answer));
        }
        let made = (&mut self.making).await;
        // Without a word, answers that are missing would look like the end.
        made.map_err(|failed| Refusal::new(Reason::OutcomeUnknown, failed.to_string()))?;
        Ok(None)
    }
}

impl<T> Drop for Answers<T> {
    fn drop(&mut self) {
        self.making.abort();
    }
}
