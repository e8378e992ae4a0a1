//! [`Load`]: a closed loop over a handle with a fixed number of outstanding requests of one size at
//! random addresses.

use block::{BlockDevice, Completion, Payload, Request};
use event::RealClock;
use rng::Rng;
use time::Nanos;
use user_io::{Buffer, Handle};
use workload::Histogram;

use super::super::BenchError;
use super::setup;

/// A closed loop of random reads.
#[derive(Debug)]
pub(super) struct Load {
    rng: Rng,
    /// Number of blocks of `sectors` that reads can start at.
    blocks: u64,
    sectors: u32,
    depth: usize,
    /// Free slots, and the destination of their data.
    free: Vec<u64>,
    data: Option<Buffer>,
    block_bytes: u64,
}

/// Measurements of an interval of a closed loop.
#[derive(Clone, Debug)]
pub(super) struct LoadInterval {
    /// Number of requests.
    pub(super) requests: u64,
    /// From the first submission to the last completion.
    pub(super) time: Nanos,
    /// CPU time of the calling thread.
    pub(super) cpu: Nanos,
    /// Latencies, if requested.
    pub(super) latency: Histogram,
}

impl LoadInterval {
    /// Returns the requests per second.
    pub(super) fn iops(&self) -> f64 {
        self.requests as f64 / self.time.as_secs_f64()
    }
}

/// The blocks that a load reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadArea {
    /// Size of a block in bytes.
    pub(super) block_bytes: u32,
    /// Length in bytes of the area, from the start of the device.
    pub(super) bytes: u64,
}

impl Load {
    /// Returns a load with `depth` outstanding reads of blocks of `area` of `device`. Data goes to memory of its own, or is discarded.
    pub(super) fn new(
        device: &user_io::IoDevice,
        area: LoadArea,
        depth: usize,
        keep_data: bool,
        seed: u64,
    ) -> Result<Load, BenchError> {
        let LoadArea { block_bytes, bytes } = area;
        let limits = device.limits();
        let sectors = (block_bytes / limits.sector_bytes).max(1);
        let blocks = (bytes.min(limits.bytes()) / u64::from(block_bytes)).max(1);
        let data = match keep_data {
            true => Some(device.buffer(depth * block_bytes as usize).map_err(setup)?),
            false => None,
        };
        let free = (0..depth as u64).collect();
        let (rng, block_bytes) = (Rng::new(seed), block_bytes.into());
        Ok(Load { rng, blocks, sectors, depth, free, data, block_bytes })
    }

    #[inline(always)]
    fn read(&mut self, slot: u64) -> Request {
        // Multiplication instead of division, as in any fast generator of offsets.
        let wide = u128::from(self.rng.next_u64()) * u128::from(self.blocks);
        let lba = (wide >> 64) as u64 * u64::from(self.sectors);
        let data = match &self.data {
            Some(data) => Payload::Contiguous(data.iova().offset(slot * self.block_bytes)),
            None => Payload::BitBucket,
        };
        Request::read(lba, self.sectors, data, slot)
    }

    /// Reads every block once, in order.
    pub(super) fn warm<D: BlockDevice>(
        &mut self,
        handle: &mut Handle<D>,
    ) -> Result<(), BenchError> {
        for block in 0..self.blocks {
            let lba = block * u64::from(self.sectors);
            let read = Request { lba, ..self.read(0) };
            handle.run(read).map_err(setup)?;
        }
        Ok(())
    }

    /// Executes `count` requests, always as many as there are free slots, with busy polling.
    /// Nothing remains outstanding. Returns nanoseconds per request.
    pub(super) fn run<D: BlockDevice>(
        &mut self,
        handle: &mut Handle<D>,
        count: u64,
    ) -> Result<f64, BenchError> {
        let clock = RealClock::start();
        let (mut submitted, mut ended) = (0, 0);
        while ended < count {
            while submitted < count
                && let Some(slot) = self.free.pop()
            {
                let read = self.read(slot);
                if handle.submit(std::hint::black_box(read)).is_err() {
                    self.free.push(slot);
                    break;
                }
                submitted += 1;
            }
            handle.poll();
            while let Some(Completion { tag, status, .. }) = handle.reap() {
                if !status.is_success() {
                    return Err(BenchError::Status(status));
                }
                self.free.push(tag);
                ended += 1;
            }
        }
        Ok(clock.now().0 as f64 / count as f64)
    }

    /// Runs for `time` and waits for completions in the handle's wait mode.
    pub(super) fn run_for<D: BlockDevice>(
        &mut self,
        handle: &mut Handle<D>,
        time: Nanos,
    ) -> Result<LoadInterval, BenchError> {
        let clock = RealClock::start();
        let cpu = event::thread_cpu_time();
        let mut latency = Histogram::new();
        let mut sent = vec![Nanos::ZERO; self.depth];
        let mut requests = 0;
        let mut now = clock.now();
        loop {
            while now < time
                && let Some(slot) = self.free.pop()
            {
                let read = self.read(slot);
                if handle.submit(read).is_err() {
                    self.free.push(slot);
                    break;
                }
                sent[slot as usize] = now;
            }
            let Some(first) = handle.wait() else { break };
            now = clock.now();
            let mut done = Some(first);
            while let Some(Completion { tag, status, .. }) = done {
                if !status.is_success() {
                    return Err(BenchError::Status(status));
                }
                latency.record(now.since(sent[tag as usize]));
                self.free.push(tag);
                requests += 1;
                done = handle.reap();
            }
        }
        let time = clock.now();
        let cpu = event::thread_cpu_time().since(cpu);
        Ok(LoadInterval { requests, time, cpu, latency })
    }
}

#[cfg(test)]
mod tests {
    use user_io::QueueConfig;

    use super::*;

    #[test]
    fn as_many_are_carried_out_as_were_asked_for() {
        let device = open::open("null:1M", &Default::default()).unwrap();
        let queue = device.create_queue(QueueConfig::default()).unwrap();
        let mut handle = Handle::new(&device, queue).unwrap();
        for keep_data in [true, false] {
            let mut load =
                Load::new(&device, LoadArea { block_bytes: 4096, bytes: 1 << 20 }, 8, keep_data, 1)
                    .unwrap();
            assert_eq!(load.blocks, 256);
            load.warm(&mut handle).unwrap();
            assert!(load.run(&mut handle, 1000).unwrap() > 0.0);
            assert_eq!((handle.outstanding(), load.free.len()), (0, 8));
            let stretch = load.run_for(&mut handle, Nanos::from_millis(5)).unwrap();
            assert!(stretch.requests > 100 && stretch.time >= Nanos::from_millis(5));
            assert_eq!(stretch.latency.count(), stretch.requests);
            assert_eq!((handle.outstanding(), load.free.len()), (0, 8));
        }
    }
}
