//! [`QueueMemory`]: the registered memory of a queue pair's two rings.

use std::sync::Arc;

use mem::{Iova, PAGE_BYTES, SharedRegion};
use nvme::{DsmRange, Sqe};
use transport::Port;

use crate::DriverError;

/// Size of a completion queue entry, in bytes.
const CQE_BYTES: usize = 16;

/// A region with a submission ring and, from the next page, a completion ring of equal depth. A
/// port never removes a registration, so the memory of deleted queues is reused.
#[derive(Clone, Debug)]
pub(crate) struct QueueMemory {
    region: Arc<SharedRegion>,
    at: Iova,
    depth: u16,
    /// The drive's addresses of the submission ring and the completion ring.
    bus_addresses: (u64, u64),
}

impl QueueMemory {
    /// Allocates zeroed memory for two rings of `depth` entries, registered with `port`.
    ///
    /// # Errors
    /// [`DriverError::Register`]; [`DriverError::Depth`] if a ring is not contiguous for the drive.
    pub(crate) fn new(port: &Port, depth: u16) -> Result<QueueMemory, DriverError> {
        let (submission, completion) = (submission_bytes(depth), completion_bytes(depth));
        let (region, at) = port.memory().allocate_registered(submission + completion)?;
        let run = |at, bytes| port.memory().contiguous_bus_address(at, bytes as u64);
        let wire = run(at, submission).zip(run(at.offset(submission as u64), completion));
        let allowed = "the two rings are in one huge page of 2 MiB where there is no IOMMU";
        let wire = wire.ok_or(DriverError::Depth { depth, allowed })?;
        Ok(QueueMemory { region, at, depth, bus_addresses: wire })
    }

    /// Returns the drive's addresses of the submission ring and the completion ring.
    pub(crate) fn bus_addresses(&self) -> (u64, u64) {
        self.bus_addresses
    }

    /// Returns the number of entries of each ring.
    pub(crate) fn depth(&self) -> u16 {
        self.depth
    }

    /// Returns the addresses of the rings.
    pub(crate) fn rings(&self) -> crate::RingAddresses {
        crate::RingAddresses { submission: self.submission(), completion: self.completion() }
    }

    /// Returns the address of the submission ring.
    pub(crate) fn submission(&self) -> Iova {
        self.at
    }

    /// Returns the address of the completion ring.
    pub(crate) fn completion(&self) -> Iova {
        self.at.offset(submission_bytes(self.depth) as u64)
    }

    /// Clears the memory: phase tags of an earlier queue would look like completions.
    pub(crate) fn zero(&self) {
        self.region.fill(0, self.region.len(), 0);
    }
}

/// Memory for the ranges of discards, one [`DsmRange`] per tag, which must stay valid until the
/// drive has read them. The memory of deleted queues is reused.
#[derive(Clone, Debug)]
pub(crate) struct RangeMemory {
    region: Arc<SharedRegion>,
    at: Iova,
}

impl RangeMemory {
    /// Allocates memory for `tags` ranges, registered with `port`.
    ///
    /// # Errors
    /// [`DriverError::Register`].
    pub(crate) fn new(port: &Port, tags: u16) -> Result<RangeMemory, DriverError> {
        let bytes = usize::from(tags.max(1)) * DsmRange::BYTES;
        let (region, at) = port.memory().allocate_registered(bytes)?;
        Ok(RangeMemory { region, at })
    }

    /// Returns the number of ranges that fit.
    pub(crate) fn tags(&self) -> usize {
        self.region.len() / DsmRange::BYTES
    }

    /// Writes a tag's range and returns its address.
    #[inline]
    pub(crate) fn write(&self, tag: u16, range: &DsmRange) -> Iova {
        let offset = usize::from(tag) * DsmRange::BYTES;
        self.region.write(offset, &range.to_bytes());
        self.at.offset(offset as u64)
    }
}

fn submission_bytes(depth: u16) -> usize {
    (usize::from(depth) * size_of::<Sqe>()).next_multiple_of(PAGE_BYTES)
}

fn completion_bytes(depth: u16) -> usize {
    (usize::from(depth) * CQE_BYTES).next_multiple_of(PAGE_BYTES)
}
