//! Both ends of a queue pair on one thread: the cost of the instructions when every line is in the
//! cache. The lower bound is copying one entry of 64 bytes in one direction and one of 16 bytes in
//! the other.

use std::hint::black_box;

use event::RealClock;

use super::hand_off::LockedQueues;
use crate::echo::{EchoController, QueuePairMemory, read};
use crate::{BenchError, RunLength, Sink, interleaved};

/// Number of entries of the rings: more than a batch, and small enough for the second-level cache.
const DEPTH: u16 = 256;

/// Measures batches of `batch` commands: the host submits all and rings the doorbell, the drive
/// completes all, the host reaps all.
///
/// # Errors
/// If the system refuses memory, or if the output fails.
pub fn measure(effort: RunLength, batch: u16, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let batches = effort.choose(160_000, 640) / u32::from(batch);
    let clock = RealClock::start();
    let per_command = |work: &mut dyn FnMut()| {
        let start = clock.now();
        for _ in 0..batches {
            work();
        }
        Ok(clock.now().since(start).0 as f64 / f64::from(batches * u32::from(batch)))
    };

    let bare_wire = QueuePairMemory::new(DEPTH)?;
    let (mut sq, mut cq) = bare_wire.rings()?;
    let mut bare_echo = bare_wire.echo_controller()?;
    let mut bare = || {
        for lba in 0..u64::from(batch) {
            // The ring is larger than a batch, and empty between batches.
            let pushed = sq.push(&read(black_box(lba)));
            debug_assert!(pushed.is_ok());
        }
        cq.release();
        sq.ring();
        bare_echo.poll();
        while let Some(cqe) = cq.pop() {
            sq.update_head(cqe.sq_head);
            black_box(cqe);
        }
    };

    let pair_wire = QueuePairMemory::new(DEPTH)?;
    let mut pair = pair_wire.queue_pair()?;
    let mut pair_echo: EchoController = pair_wire.echo_controller()?;
    let mut paired = || {
        for user in 0..u64::from(batch) {
            let submitted = pair.submit(read(black_box(user)), user);
            debug_assert!(submitted.is_ok());
        }
        pair.ring();
        pair_echo.poll();
        while let Some(done) = pair.reap() {
            black_box(done);
        }
    };

    let mut copies = Copies::new();
    let mut copied = || copies.batch(batch);
    let queues = LockedQueues::default();
    let mut locked = || queues.batch(batch);

    let rounds = effort.choose(41, 3);
    let [bare, paired, copied, locked] = interleaved(
        rounds,
        [
            &mut || per_command(&mut bare),
            &mut || per_command(&mut paired),
            &mut || per_command(&mut copied),
            &mut || per_command(&mut locked),
        ],
    )?;
    let case = format!("bare rings, one thread, batch {batch}");
    super::push(sink, &case, &bare, ("copying 64 and 16 bytes", &copied), None)?;
    let case = format!("queue pair, one thread, batch {batch}");
    let most = super::TAGS_MAX * bare.median();
    super::push(sink, &case, &paired, ("two Mutex<VecDeque>", &locked), Some(most))
}

/// Copies as many bytes as a command and its completion have into rings and out of them.
#[derive(Debug)]
struct Copies {
    entries: Box<[[u8; 64]]>,
    answers: Box<[[u8; 16]]>,
    at: usize,
}

impl Copies {
    fn new() -> Copies {
        let depth = usize::from(DEPTH);
        Copies { entries: vec![[0; 64]; depth].into(), answers: vec![[0; 16]; depth].into(), at: 0 }
    }

    fn batch(&mut self, batch: u16) {
        let (entry, answer) = (black_box([1; 64]), black_box([2; 16]));
        for _ in 0..batch {
            self.at = (self.at + 1) % usize::from(DEPTH);
            self.entries[self.at] = entry;
            self.answers[self.at] = answer;
            black_box((&self.entries[self.at], &self.answers[self.at]));
        }
    }
}
