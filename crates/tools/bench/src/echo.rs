//! [`EchoController`]: a drive that completes every command immediately, with the queue pair to it.
//!
//! It fetches commands and posts success, so a measurement shows the cost of the queue pair alone.
//! It has no admin queue. [`QueuePairMemory`] lays out the memory of one I/O queue pair; each end
//! can be opened once.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use block::Raw;
use driver::{ControllerInfo, QueuePair, RingAddresses};
use event::AllowedCpus;
use mem::{Iova, PAGE_BYTES, SharedRegion};
use nvme::{Cqe, SglDescriptor, Sqe, Status};
use transport::{CqConsumer, CqProducer, Port, SqConsumer, SqProducer};

use super::{BenchError, on_first_cpu};

/// Id of a port's first queue; 0 would be the admin queue.
const QID: u16 = 1;
/// Sector size of the drive in bytes.
const SECTOR_BYTES: u32 = 4096;

/// Registered memory for one queue pair.
#[derive(Debug)]
pub struct QueuePairMemory {
    port: Arc<Port>,
    submission: Iova,
    completion: Iova,
    qid: u16,
    depth: u16,
}

impl QueuePairMemory {
    /// Allocates memory for rings of `depth` entries.
    ///
    /// # Errors
    /// If memory or registrations are exhausted.
    pub fn new(depth: u16) -> Result<QueuePairMemory, BenchError> {
        QueuePairMemory::on_port(Port::new()?, QID, depth)
    }

    /// Returns another queue pair on this port, with the next queue id.
    ///
    /// # Errors
    /// As for [`new`](QueuePairMemory::new).
    pub fn new_on_same_port(&self) -> Result<QueuePairMemory, BenchError> {
        QueuePairMemory::on_port(self.port.clone(), self.qid + 1, self.depth)
    }

    fn on_port(port: Arc<Port>, qid: u16, depth: u16) -> Result<QueuePairMemory, BenchError> {
        let submission_bytes = (usize::from(depth) * size_of::<Sqe>()).next_multiple_of(PAGE_BYTES);
        let completion_bytes = (usize::from(depth) * 16).next_multiple_of(PAGE_BYTES);
        let memory = SharedRegion::anonymous(submission_bytes + completion_bytes)?;
        let submission = port.memory().register(&memory)?;
        let completion = submission.offset(submission_bytes as u64);
        Ok(QueuePairMemory { port, submission, completion, qid, depth })
    }

    /// Returns the port between the two ends.
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// Returns the rings of the host's end.
    ///
    /// # Errors
    /// If the depth is less than 2.
    pub fn rings(&self) -> Result<(SqProducer, CqConsumer), BenchError> {
        Ok((
            SqProducer::open(&self.port, self.qid, self.submission, self.depth)?,
            CqConsumer::open(&self.port, self.qid, self.completion, self.depth)?,
        ))
    }

    /// Returns the host's end as a queue pair.
    ///
    /// # Errors
    /// As for [`rings`](QueuePairMemory::rings).
    pub fn queue_pair(&self) -> Result<QueuePair, BenchError> {
        let at = RingAddresses { submission: self.submission, completion: self.completion };
        Ok(QueuePair::open(&self.port, self.qid, at, self.depth, None)?)
    }

    /// Returns the host's end as a raw block device.
    ///
    /// # Errors
    /// As for [`rings`](QueuePairMemory::rings), and if there is no memory.
    pub fn raw(&self) -> Result<Raw, BenchError> {
        let info = ControllerInfo {
            serial: "echo".into(),
            product: driver::ProductIdentity { model: "echo".into(), firmware: String::new() },
            nsid: 1,
            sector_bytes: SECTOR_BYTES,
            oob_bytes: 0,
            metadata: None,
            sectors: 1 << 30,
            max_sectors: 32,
            optimal_sectors: 1,
            volatile_cache: false,
            io_queues: 1,
            max_outstanding: 0,
            data: driver::DataPointers::Sgl,
            features: driver::Features::default(),
            open_channel: None,
        };
        Ok(Raw::from_pair(&info, self.queue_pair()?, self.port.clone())?)
    }

    /// Returns the id of the queue pair.
    pub fn qid(&self) -> u16 {
        self.qid
    }

    /// Returns the number of entries of its rings.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Returns the rings of the drive's end.
    ///
    /// # Errors
    /// As for [`rings`](QueuePairMemory::rings).
    pub fn drive_rings(&self) -> Result<(SqConsumer, CqProducer), BenchError> {
        Ok((
            SqConsumer::open(&self.port, self.qid, self.submission, self.depth)?,
            CqProducer::open(&self.port, self.qid, self.completion, self.depth, None)?,
        ))
    }

    /// Returns the drive's end.
    ///
    /// # Errors
    /// As for [`rings`](QueuePairMemory::rings).
    pub fn echo_controller(&self) -> Result<EchoController, BenchError> {
        let (sq, cq) = self.drive_rings()?;
        Ok(EchoController { sq, cq, deferred_cqe: None, qid: self.qid })
    }
}

/// The drive's end of a queue pair; completes every command immediately.
#[derive(Debug)]
pub struct EchoController {
    sq: SqConsumer,
    cq: CqProducer,
    /// Completion that did not fit into the host's completion queue.
    deferred_cqe: Option<Cqe>,
    qid: u16,
}

impl EchoController {
    /// Completes all available commands; returns their number.
    #[inline]
    pub fn poll(&mut self) -> u64 {
        let mut answered = 0;
        // A queue with an invalid doorbell stops; the fault is the host's.
        if self.sq.read_tail().is_err() {
            return 0;
        }
        while let Some(cqe) = self.deferred_cqe.take().or_else(|| self.fetch()) {
            if self.cq.post(cqe).is_err() {
                self.deferred_cqe = Some(cqe);
                break;
            }
            answered += 1;
        }
        answered
    }

    /// Busy-polls on the second CPU while `host` runs on the first.
    ///
    /// # Errors
    /// If no thread can be started; errors of `host`.
    pub fn run_beside<T: Send>(
        mut self,
        cores: &AllowedCpus,
        host: impl FnOnce() -> Result<T, BenchError> + Send,
    ) -> Result<T, BenchError> {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let drive = thread::Builder::new().spawn_scoped(scope, || {
                cores.pin(1);
                while !stop.load(Ordering::Relaxed) {
                    if self.poll() == 0 {
                        spin_loop();
                    }
                }
            })?;
            let result = on_first_cpu(cores, host);
            stop.store(true, Ordering::Relaxed);
            drive.join().map_err(|_| BenchError::Thread("the echo drive"))?;
            result
        })
    }

    #[inline]
    fn fetch(&mut self) -> Option<Cqe> {
        let sqe = self.sq.fetch()?;
        Some(Cqe {
            result: 0,
            sq_head: self.sq.head(),
            sq_id: self.qid,
            cid: sqe.cid.get(),
            status: Status::SUCCESS,
        })
    }
}

/// Returns a read of one sector into unused memory.
#[inline]
pub fn read(lba: u64) -> Sqe {
    let mut sqe = Sqe::read(1, lba, 1);
    sqe.set_sgl(SglDescriptor::DataBlock { address: 1 << 40, length: SECTOR_BYTES });
    sqe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_answered_once() {
        let wire = QueuePairMemory::new(8).unwrap();
        let (mut pair, mut echo) = (wire.queue_pair().unwrap(), wire.echo_controller().unwrap());
        for round in 0..100 {
            for user in 0..7 {
                pair.submit(read(user), round * 7 + user).unwrap();
            }
            pair.ring();
            assert_eq!(echo.poll(), 7);
            let users: Vec<u64> = std::iter::from_fn(|| pair.reap()).map(|c| c.user).collect();
            assert_eq!(users, (round * 7..round * 7 + 7).collect::<Vec<_>>());
        }
        assert_eq!(pair.spurious_completions(), 0);
        assert!(QueuePairMemory::new(1).unwrap().rings().is_err());
    }

    #[test]
    fn replies_without_a_free_slot_are_deferred() {
        let wire = QueuePairMemory::new(4).unwrap();
        let ((mut sq, mut cq), mut echo) = (wire.rings().unwrap(), wire.echo_controller().unwrap());
        for _ in 0..3 {
            sq.push(&read(0)).unwrap();
        }
        sq.ring();
        assert_eq!(echo.poll(), 3);
        while let Some(cqe) = cq.pop() {
            sq.update_head(cqe.sq_head);
        }
        // Popped but not released: there is no capacity for another completion.
        sq.push(&read(0)).unwrap();
        sq.ring();
        assert_eq!(echo.poll(), 0);
        cq.release();
        assert_eq!(echo.poll(), 1);
        assert!(cq.pop().is_some());
    }
}
