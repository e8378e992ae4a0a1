//! [`Load`]: an application that keeps requests outstanding.

use std::hint::black_box;
use std::time::Instant;

use block::{BlockDevice, Completion, Payload, Request};
use rng::Rng;
use time::Nanos;

use super::super::BenchError;

/// Random reads of one sector, as fio's `randread` with an I/O depth.
#[derive(Debug)]
pub struct Load {
    rng: Rng,
    sectors: u64,
    depth: u64,
    /// Requests submitted before the next poll.
    batch: u64,
    submitted: u64,
    completed: u64,
    now: Nanos,
}

impl Load {
    /// Returns a load with `depth` outstanding reads on a device of `sectors` sectors, submitted in
    /// batches of `batch`.
    pub fn new(sectors: u64, depth: u64, batch: u64, seed: u64) -> Load {
        let rng = Rng::new(seed);
        Load { rng, sectors, depth, batch, submitted: 0, completed: 0, now: Nanos(1) }
    }

    /// Submits `count` requests and waits for all of them; returns nanoseconds per request.
    ///
    /// Nothing remains outstanding: the next load on the device must not reap this load's requests.
    /// The clock is read once per iteration, as a runner does.
    ///
    /// # Errors
    /// [`BenchError::Status`] if a read fails.
    pub fn run<D: BlockDevice>(&mut self, device: &mut D, count: u64) -> Result<f64, BenchError> {
        let (begin, end) = (Instant::now(), self.submitted + count);
        while self.completed < end {
            self.now = Nanos(begin.elapsed().as_nanos() as u64 | 1);
            self.round(device, end)?;
        }
        Ok(begin.elapsed().as_nanos() as f64 / count as f64)
    }

    #[inline(always)]
    fn round<D: BlockDevice>(&mut self, device: &mut D, end: u64) -> Result<(), BenchError> {
        let room = self.depth - (self.submitted - self.completed);
        for _ in 0..room.min(self.batch).min(end - self.submitted) {
            // Multiplication instead of division, as in any fast generator of offsets.
            let wide = u128::from(self.rng.next_u64()) * u128::from(self.sectors);
            let lba = (wide >> 64) as u64;
            let request = Request::read(lba, 1, Payload::BitBucket, self.submitted);
            if device.submit(self.now, black_box(request)).is_err() {
                break;
            }
            self.submitted += 1;
        }
        device.poll(self.now);
        while let Some(Completion { tag, status, .. }) = device.reap() {
            black_box(tag);
            if !status.is_success() {
                return Err(BenchError::Status(status));
            }
            self.completed += 1;
        }
        Ok(())
    }
}
