//! [`Volume`]: an open volume with a single owner: submit, poll, reap.

use block::BlockDevice;
use event::Waker;
use mem::AddressSpace;
use nvme::Status;
use time::{Component, Nanos};

use crate::on_media::superblock::Superblock;
use crate::pipeline::Core;
use crate::{
    Error, Ino, InodeKind, Stat, StatFs, Stats, VolumeCompletion, VolumeRequest, VolumeViolation,
};

/// The request limit is reached; retry after a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the maximum number of requests is in flight; reap completions first")]
pub struct QueueFull;

/// An entry of a directory listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Inode.
    pub ino: Ino,
    /// Type of the inode.
    pub kind: InodeKind,
    /// Position for continuing the listing after this entry, valid whatever is added or removed
    /// meanwhile.
    pub cookie: u64,
}

/// An open volume.
///
/// Queries of metadata return at once. Everything else is a [`VolumeRequest`], which completes with one
/// [`VolumeCompletion`], in any order. The effects of completed requests are visible to all later ones.
/// Changes without a later sync may be lost in a power cut, in the order of barriers.
#[derive(Debug)]
pub struct Volume<D> {
    pub(crate) device: D,
    pub(crate) core: Core,
}

impl<D: BlockDevice> Volume<D> {
    /// Submits a request.
    ///
    /// # Errors
    /// [`QueueFull`]; the request was not accepted.
    pub fn submit(&mut self, now: Nanos, request: VolumeRequest) -> Result<(), QueueFull> {
        self.submit_reserved(now, request, 0)
    }

    /// Submits a request for which blocks were [reserved](Volume::reserve). A write that touches at
    /// most that many blocks, including the file's previous last block, does not fail for lack of
    /// space. Unused blocks are released when it completes.
    ///
    /// # Errors
    /// [`QueueFull`]; the request was not accepted, and the blocks stay reserved.
    ///
    /// # Panics
    /// If fewer blocks are reserved.
    pub fn submit_reserved(
        &mut self,
        now: Nanos,
        request: VolumeRequest,
        blocks: u64,
    ) -> Result<(), QueueFull> {
        assert!(blocks <= self.core.reserved_blocks(), "{blocks} blocks that were not reserved");
        self.core.set_now(now);
        if self.core.submit(&request, blocks) { Ok(()) } else { Err(QueueFull) }
    }

    /// Returns whether this many blocks are available, with the metadata that they may add, besides
    /// those reserved. A read-only volume has none, nor has one whose journal cannot be written.
    pub fn has_free_blocks(&self, blocks: u64) -> bool {
        self.core.has_free_blocks(blocks)
    }

    /// Reserves blocks for future writes. Returns whether they were
    /// [available](Volume::has_free_blocks). Reserved blocks cannot be used otherwise, although
    /// [`statfs`](Volume::statfs) counts them as free.
    pub fn reserve(&mut self, blocks: u64) -> bool {
        self.core.reserve(blocks)
    }

    /// Releases blocks that were reserved and not submitted with a request.
    ///
    /// # Panics
    /// If fewer blocks are reserved.
    pub fn unreserve(&mut self, blocks: u64) {
        assert!(blocks <= self.core.reserved_blocks(), "{blocks} blocks that were not reserved");
        self.core.unreserve(blocks);
    }

    /// Returns the next completion, if there is one.
    pub fn reap(&mut self) -> Option<VolumeCompletion> {
        self.core.pop_completion()
    }

    /// Returns the number of requests in flight, without those waiting to be reaped.
    pub fn in_flight(&self) -> usize {
        self.core.active_count()
    }

    /// Resolves `path` relative to directory `base`, also if it begins with a slash. `..` of the
    /// root is the root.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NameTooLong`].
    pub fn lookup(&self, base: Ino, path: impl AsRef<[u8]>) -> Result<Ino, Error> {
        self.core.lookup(base, path.as_ref())
    }

    /// Returns the attributes of an inode.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn stat(&self, ino: Ino) -> Result<Stat, Error> {
        self.core.stat(ino)
    }

    /// Returns the statistics of the volume.
    pub fn statfs(&self) -> StatFs {
        self.core.statfs()
    }

    /// Returns the entries of a directory after `cookie` (0 for all), without `.` and `..`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`].
    pub fn list(&self, dir: Ino, cookie: u64) -> Result<impl Iterator<Item = DirEntry<'_>>, Error> {
        self.core.list(dir, cookie)
    }

    /// Returns the parent directory of a directory or file; the root is its own parent.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn parent(&self, ino: Ino) -> Result<Ino, Error> {
        self.core.parent(ino)
    }

    /// Opens an inode: it exists until it is closed as often, whatever happens to its name.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn open(&mut self, ino: Ino) -> Result<(), Error> {
        self.core.open(ino)
    }

    /// Closes an inode once.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Invalid`] if it is not open.
    pub fn close(&mut self, ino: Ino) -> Result<(), Error> {
        self.core.close_inode(ino)
    }

    /// Returns the address space in which data of requests must be registered.
    pub fn memory(&self) -> &AddressSpace {
        self.core.memory()
    }

    /// Returns the maximum bytes of a write that is kept whole: after a power cut, a write of a power
    /// of two of bytes from [`BLOCK`](crate::BLOCK) to this, at a multiple of its length, is in the
    /// file as a whole or not at all. 0 if the device has no atomic writes.
    pub fn atomic_write_bytes_max(&self) -> u32 {
        self.core.atomic_bytes_max()
    }

    /// Acknowledges a barrier, as [`VolumeOp::Barrier`](crate::VolumeOp::Barrier) does, at once: it
    /// covers the requests that have completed, and no other one. Returns its number.
    ///
    /// # Errors
    /// [`Error::Barrier`] if an earlier barrier cannot become durable.
    pub fn barrier(&mut self, now: Nanos) -> Result<u64, Error> {
        self.core.set_now(now);
        self.core.issue_barrier()
    }

    /// Returns the last acknowledged barrier; 0 if there was none since the volume was opened.
    pub fn last_barrier(&self) -> u64 {
        self.core.barrier_order().issued()
    }

    /// Returns the last durable barrier. It grows to [`last_barrier`](Volume::last_barrier) while
    /// the volume is polled, within [`Options::barrier_delay`](crate::Options::barrier_delay) and
    /// the time that the device takes, unless the device fails.
    pub fn durable_barrier(&self) -> u64 {
        self.core.barrier_order().durable()
    }

    /// Has the barriers up to this one become durable without a delay, as
    /// [`VolumeOp::AwaitBarrier`](crate::VolumeOp::AwaitBarrier) does, without a completion. Numbers
    /// above the last acknowledged barrier are as that one.
    pub fn request_barrier(&mut self, barrier: u64) {
        self.core.request_barrier(barrier);
    }

    /// Returns whether barriers are being made durable, so that the volume must be polled when the
    /// device completes requests. Others wait for their delay.
    pub fn is_making_barriers_durable(&self) -> bool {
        self.core.is_covering_barriers()
    }

    /// Returns the counters.
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Returns the superblock.
    pub fn superblock(&self) -> &Superblock {
        self.core.superblock()
    }

    /// Returns the status that aborted the volume, if it was aborted.
    pub fn failure(&self) -> Option<Status> {
        self.core.lifecycle().aborted()
    }

    /// Returns whether the volume was closed cleanly.
    pub fn is_closed(&self) -> bool {
        self.core.lifecycle().is_closed()
    }

    /// Checks the invariants of every part of the state. May be called between any two calls of the
    /// volume's methods; takes time proportional to the size of all metadata and of the page cache.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), VolumeViolation> {
        self.core.check_invariants()
    }

    /// Sets the waker that the device wakes on completions while the owner's runner is parked.
    pub fn set_waker(&mut self, waker: Waker) {
        self.device.set_waker(waker);
    }

    /// Returns the device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Returns the device, mutably; its completions belong to the volume.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Returns the device by value. Changes that were not made durable may be lost, and unless the
    /// volume was closed, it stays marked as in use.
    pub fn into_device(self) -> D {
        self.device
    }

    pub(crate) fn poll_device(&mut self, now: Nanos) -> bool {
        let core = &mut self.core;
        core.set_now(now);
        let mut moved = self.device.poll(now);
        while let Some(completion) = self.device.reap() {
            core.on_transfer_complete(&completion);
            moved = true;
        }
        moved |= core.advance();
        if core.send(&mut self.device) {
            moved = true;
            self.device.poll(now);
        }
        moved
    }
}

impl<D: BlockDevice> Component for Volume<D> {
    fn poll(&mut self, now: Nanos) -> bool {
        self.poll_device(now)
    }

    fn deadline(&self) -> Nanos {
        self.device.deadline().min(self.core.deadline())
    }
}
