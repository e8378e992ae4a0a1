//! [`VectorIoHost`]: vector I/O to the parallel units of an open-channel drive in virtual time, as
//! with the paper's version of fio ([LightNVM17 §5], table 1 and figure 8).
//!
//! It owns the drive and the host's end of one queue pair. Commands name consecutive sectors of one
//! chunk; their data is discarded. Guarantee: a failed command is an error and never a result.

use std::path::Path;

use driver::{ControllerHandle, OpenChannelInfo, QueuePair};
use mem::{Iova, SharedRegion};
use nvme::{Address, MAX_VECTOR_ADDRESSES, PpaList, SglDescriptor, Sqe};
use rng::Rng;
use scenario::Scenario;
use std::sync::Arc;
use time::{Component, Nanos, VirtualRunner};
use workload::Histogram;

use super::super::{BenchError, MeasuredInterval};
use super::setup;

/// Maximum number of outstanding commands.
const DEPTH: u16 = 1024;
/// Size of a command's address list in bytes.
const LIST: usize = MAX_VECTOR_ADDRESSES as usize * 8;
/// Maximum number of polls of the drive for one admin command.
const ADMIN_POLL_LIMIT: u64 = 1_000_000;

/// A host that uses a drive's physical addresses.
#[derive(Debug)]
pub struct VectorIoHost {
    drive: ::controller::Controller,
    queue: QueuePair,
    info: OpenChannelInfo,
    nsid: u32,
    lists: Arc<SharedRegion>,
    lists_at: Iova,
    runner: VirtualRunner,
    /// Per tag: the command's user data and its submission time.
    sent: Vec<(u64, Nanos)>,
}

/// A completed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandCompletion {
    /// User data of the command.
    pub user_data: u64,
    /// Latency of the command.
    pub latency: Nanos,
}

/// Load of each of several equal streams, one per parallel unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Whether it writes; otherwise it reads.
    pub writes: bool,
    /// Whether addresses are random; otherwise they are sequential.
    pub random: bool,
    /// Number of sectors of a command.
    pub sectors: u32,
    /// Number of outstanding commands.
    pub depth: u32,
    /// First chunk, and number of chunks.
    pub chunks: (u32, u32),
}

/// Measurements of streams.
#[derive(Clone, Debug)]
pub struct AchievedRate {
    /// Bytes per second of all streams together.
    pub bytes_per_sec: f64,
    /// Latencies of commands.
    pub latency: Histogram,
}

impl VectorIoHost {
    /// Powers on the open-channel drive of a scenario's text.
    ///
    /// # Errors
    /// If the scenario is invalid, or if the drive cannot be initialized.
    pub fn new(scenario: &str) -> Result<VectorIoHost, BenchError> {
        let scenario = Scenario::parse(Path::new("bench"), scenario).map_err(setup)?;
        let mut drive =
            ::controller::Controller::new(scenario.drives[0].config.clone()).map_err(setup)?;
        let port = drive.attach()?;
        let mut progress = || {
            drive.poll(Nanos::ZERO);
        };
        let mut controller =
            ControllerHandle::connect(port.clone(), &mut progress, ADMIN_POLL_LIMIT)
                .map_err(setup)?;
        let queue = controller.create_queue_pair(DEPTH, None, &mut progress).map_err(setup)?;
        let info = controller.info();
        let shape = info.open_channel.ok_or_else(|| setup("the drive is not open-channel"))?;
        let lists = SharedRegion::anonymous(usize::from(DEPTH) * LIST)?;
        let lists_at = port.memory().register(&lists)?;
        Ok(VectorIoHost {
            nsid: info.nsid,
            queue,
            info: shape,
            lists,
            lists_at,
            runner: VirtualRunner::new(),
            sent: vec![(0, Nanos::ZERO); usize::from(DEPTH)],
            drive,
        })
    }

    /// Returns the drive's geometry.
    pub fn info(&self) -> &OpenChannelInfo {
        &self.info
    }

    /// Returns the current time.
    pub fn now(&self) -> Nanos {
        self.runner.now()
    }

    /// Enables or disables zero latency of commands.
    pub fn set_instant(&mut self, instant: bool) {
        self.drive.set_zero_latency(instant);
    }

    /// Submits a command for `sectors` from `first` on; the doorbell is rung in the next
    /// [`wait`](VectorIoHost::wait).
    ///
    /// # Errors
    /// If the queue is full.
    pub fn send(
        &mut self,
        writes: bool,
        first: Address,
        sectors: u32,
        user: u64,
    ) -> Result<(), BenchError> {
        let full = BenchError::Thread("a queue of vector commands");
        let Some(tag) = self.queue.next_tag() else { return Err(full) };
        let ppa = |i| self.info.format.pack(Address { sector: first.sector + i, ..first });
        let offset = usize::from(tag.0) * LIST;
        let list = if sectors == 1 {
            PpaList::One(ppa(0))
        } else {
            for i in 0..sectors {
                self.lists.write(offset + i as usize * 8, &ppa(i).0.to_le_bytes());
            }
            PpaList::List { at: self.lists_at.offset(offset as u64).0, count: sectors as u8 }
        };
        let mut sqe = if writes {
            Sqe::vector_write(self.nsid, list)
        } else {
            Sqe::vector_read(self.nsid, list)
        };
        let length = sectors * self.info.geometry.sector_bytes;
        sqe.set_sgl(SglDescriptor::BitBucket { length });
        self.sent[usize::from(tag.0)] = (user, self.runner.now());
        self.queue.submit(sqe, tag.0.into()).map_err(|_| full)?;
        Ok(())
    }

    /// Returns the next completion and advances time to it; `None` if nothing is outstanding.
    ///
    /// # Errors
    /// If the command failed.
    pub fn wait(&mut self) -> Result<Option<CommandCompletion>, BenchError> {
        loop {
            if let Some(done) = self.queue.reap() {
                if !done.status.is_success() {
                    return Err(BenchError::Status(done.status));
                }
                let (user, at) = self.sent[done.user as usize];
                return Ok(Some(CommandCompletion {
                    user_data: user,
                    latency: self.runner.now().since(at),
                }));
            }
            if !self.queue.ring() {
                self.queue.release();
            }
            if self.drive.poll(self.runner.now()) {
                continue;
            }
            match self.drive.deadline() {
                Nanos::MAX => return Ok(None),
                due => self.runner.advance_to(due),
            }
        }
    }

    /// Returns chunk 0, sector 0 of the parallel unit with this index. Indices run over channels
    /// first, so that neighbors are on different channels.
    pub fn striped(&self, pu: u32) -> Address {
        let groups = self.info.geometry.groups;
        Address { group: pu % groups, pu: pu / groups, chunk: 0, sector: 0 }
    }

    /// Writes `chunks` chunks of each parallel unit without advancing time.
    ///
    /// # Errors
    /// If a write fails.
    pub fn fill(&mut self, pus: &[Address], chunks: u32) -> Result<(), BenchError> {
        self.set_instant(true);
        let (sectors, unit) = (self.info.geometry.sectors, self.info.geometry.ws_opt);
        for pu in pus {
            for chunk in 0..chunks {
                for sector in (0..sectors).step_by(unit as usize) {
                    self.send(true, Address { chunk, sector, ..*pu }, unit, 0)?;
                    self.wait()?;
                }
            }
        }
        self.set_instant(false);
        Ok(())
    }

    /// Runs a stream on each of these parallel units, and measures `interval`.
    ///
    /// # Errors
    /// If a command fails, or if writes reach the end of the chunks.
    pub fn measure(
        &mut self,
        pus: &[Address],
        stream: Stream,
        interval: MeasuredInterval,
    ) -> Result<AchievedRate, BenchError> {
        let MeasuredInterval { ramp, time } = interval;
        let begin = self.now() + ramp;
        let end = begin + time;
        let mut rng = Rng::new(1);
        let mut next = vec![0u32; pus.len()];
        for (lane, next) in next.iter_mut().enumerate() {
            for _ in 0..stream.depth {
                self.send_next(pus, lane, next, stream, &mut rng)?;
            }
        }
        let (mut latency, mut done) = (Histogram::new(), 0u64);
        while let Some(CommandCompletion { user_data: user, latency: took }) = self.wait()? {
            let now = self.now();
            if now >= begin && now < end {
                latency.record(took);
                done += 1;
            }
            if now < end {
                let lane = user as usize;
                self.send_next(pus, lane, &mut next[lane], stream, &mut rng)?;
            }
        }
        let bytes = done * u64::from(stream.sectors * self.info.geometry.sector_bytes);
        Ok(AchievedRate { bytes_per_sec: bytes as f64 / time.as_secs_f64(), latency })
    }

    fn send_next(
        &mut self,
        pus: &[Address],
        lane: usize,
        next: &mut u32,
        stream: Stream,
        rng: &mut Rng,
    ) -> Result<(), BenchError> {
        let per_chunk = self.info.geometry.sectors / stream.sectors;
        let all = per_chunk * stream.chunks.1;
        let which = if stream.random { rng.below(all.into()) as u32 } else { *next };
        if stream.writes && which >= all {
            return Err(setup("the writes of a measurement have come to the end of its chunks"));
        }
        let which = which % all;
        *next += 1;
        let first = Address {
            chunk: stream.chunks.0 + which / per_chunk,
            sector: which % per_chunk * stream.sectors,
            ..pus[lane]
        };
        self.send(stream.writes, first, stream.sectors, lane as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PRESET;
    use super::*;

    #[test]
    fn a_unit_reads_what_was_written_at_the_time_that_the_flash_takes() {
        let mut direct = VectorIoHost::new(&format!("[drive]\n{PRESET}")).unwrap();
        let pu = direct.striped(17);
        assert_eq!((pu.group, pu.pu), (1, 1));
        direct.fill(&[pu], 1).unwrap();
        assert_eq!(direct.now(), Nanos::ZERO);
        direct.send(false, pu, 1, 7).unwrap();
        let ended = direct.wait().unwrap().unwrap();
        // 45.5 us in the array, 4 KB over a channel of 280 MB/s and out of the drive at 4.5 GB/s,
        // and 12.1 us for the command.
        let transfers = Nanos::transfer(4096, 280_000_000) + Nanos::transfer(4096, 4_500_000_000);
        assert_eq!(
            (ended.user_data, ended.latency),
            (7, Nanos(45_500) + transfers + Nanos(12_100))
        );
        assert_eq!(direct.wait().unwrap(), None);
        direct.send(false, Address { chunk: 1, ..pu }, 1, 0).unwrap();
        assert!(matches!(direct.wait(), Err(BenchError::Status(_))), "nothing was written there");
    }

    #[test]
    fn writes_stop_at_the_end_of_their_chunks() {
        let text = format!("[drive]\n{PRESET}geometry.chunks = 2\n");
        let mut direct = VectorIoHost::new(&text).unwrap();
        let pu = [direct.striped(0)];
        let stream = Stream { writes: true, random: false, sectors: 16, depth: 2, chunks: (0, 1) };
        let brief = MeasuredInterval { ramp: Nanos::ZERO, time: Nanos::from_millis(10) };
        let reached = direct.measure(&pu, stream, brief).unwrap();
        assert!(reached.latency.count() > 0 && reached.bytes_per_sec > 0.0);
        let long = MeasuredInterval { ramp: Nanos::ZERO, time: Nanos::from_secs(10) };
        let further = Stream { chunks: (1, 1), ..stream };
        assert!(direct.measure(&pu, further, long).is_err());
    }
}
