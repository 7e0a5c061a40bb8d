//! What tells a command to end: Ctrl-C, kill(1), a terminal that is gone.

use std::fs;
use std::future::{Future, poll_fn};
use std::io;
use std::process;
use std::task::Poll;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::sleep;

use crate::exit::{Exit, Failure, Outcome};

/// How long a command may take to notice that it was told to end, once it is told again.
const PATIENCE: Duration = Duration::from_secs(1);
/// And how long when it is told once.
const UNTOLD: Duration = Duration::from_secs(10);

/// Ends what is waited for, and not the process: what was begun can be put in order.
pub struct Interrupt(Receiver<()>);

impl Interrupt {
    /// From now on. A command that does not notice, as one does not whose output nobody takes, has the process end when it is told again, or after ten
    /// seconds.
    pub fn watch() -> Outcome<Interrupt> {
        let signals = signals().map_err(Failure::io("cannot watch for signals"))?;
        let (tell, told) = channel(1);
        // Another thread's task: that of the command may be kept by what it writes.
        tokio::spawn(pass_on(signals, tell));
        Ok(Interrupt(told))
    }

    /// What `work` comes to, unless an interrupt comes first, or has come since the last one was told of.
    pub async fn or<T>(&mut self, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        let interrupted = || Err(Failure::new(Exit::Failed, "interrupted"));
        self.before(work).await.unwrap_or_else(interrupted)
    }

    /// The same; none when an interrupt comes first.
    pub async fn before<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            outcome = work => Some(outcome),
            Some(()) = self.0.recv() => None,
        }
    }
}

fn signals() -> io::Result<Vec<Signal>> {
    let mut kinds = vec![SignalKind::interrupt(), SignalKind::terminate()];
    if !outlives_its_terminal() {
        kinds.push(SignalKind::hangup());
    }
    kinds.into_iter().map(signal).collect()
}

/// Whether whoever started this has it go on without a terminal, as nohup(1) does: whom a signal is ignored for would else get it.
fn outlives_its_terminal() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let of_terminal = 1 << (SignalKind::hangup().as_raw_value() - 1);
    ignored.is_some_and(|mask| mask & of_terminal != 0)
}

async fn pass_on(mut signals: Vec<Signal>, tell: Sender<()>) {
    loop {
        one_of(&mut signals).await;
        let impatience = async {
            tokio::select! {
                () = one_of(&mut signals) => sleep(PATIENCE).await,
                () = sleep(UNTOLD) => {}
            }
        };
        let noticed = async {
            tell.send(()).await.ok()?;
            // There is room for the next when this one was taken.
            tell.reserve().await.ok().map(drop)
        };
        let is_noticed = tokio::select! {
            biased;
            noticed = noticed => noticed.is_some(),
            () = impatience => false,
        };
        if !is_noticed {
            // What a measurement has made goes along.
            forebay_bench::abandon();
            process::exit(Exit::Failed as i32);
        }
    }
}

async fn one_of(signals: &mut [Signal]) {
    poll_fn(|cx| {
        let mut signals = signals.iter_mut();
        match signals.any(|signal| signal.poll_recv(cx).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}
