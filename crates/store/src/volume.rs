//! [`Store`]: files on a device, for one owner: submit, poll, reap.

use block::BlockDevice;
use clock::{Component, Nanos, Waker};
use nvme::Status;
use ring::AddressSpace;

use crate::core::Core;
use crate::superblock::Superblock;
use crate::{Error, Ino, Kind, OpCompletion, Request, Stat, StatFs, Stats};

/// The store takes no further request now; try again after one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("as many requests are under way as the store was opened for")]
pub struct QueueFull;

/// An entry of a directory, as it is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// What it stands for.
    pub ino: Ino,
    /// What that is.
    pub kind: Kind,
    /// Where listing goes on behind it, whatever is added and removed meanwhile.
    pub cookie: u64,
}

/// An open volume.
///
/// What only looks at metadata is answered at once; everything else is a [`Request`], ends with one
/// [`Done`], and may end in any order. What has ended of others is seen; what was not followed by a sync
/// may be lost with the power.
#[derive(Debug)]
pub struct Volume<D> {
    pub(crate) device: D,
    pub(crate) core: Core,
}

impl<D: BlockDevice> Volume<D> {
    /// Takes a request.
    ///
    /// # Errors
    /// [`Busy`]; the request was not taken.
    pub fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        self.submit_reserved(now, request, 0)
    }

    /// Takes a request for which so many blocks have been [reserved](Store::reserve): a write that touches no more
    /// of them, the one that its file ended in included, does not end for lack of space. What it does not need is
    /// everybody's when it has ended.
    ///
    /// # Errors
    /// [`Busy`]; the request was not taken, and what is reserved still is.
    ///
    /// # Panics
    /// Less is reserved.
    pub fn submit_reserved(
        &mut self,
        now: Nanos,
        request: Request,
        blocks: u64,
    ) -> Result<(), QueueFull> {
        assert!(blocks <= self.core.allocator.reserved(), "{blocks} blocks that were not reserved");
        self.core.now = now;
        if self.core.closing {
            let result = Err(Error::ReadOnly);
            self.core.allocator.unreserve(blocks);
            self.core.completions.push_back(OpCompletion { id: request.id, result });
            return Ok(());
        }
        if self.core.submit(&request, blocks) { Ok(()) } else { Err(QueueFull) }
    }

    /// Whether there is room for so many blocks, with what they may bring of metadata, besides what is reserved.
    /// A volume that is only read has none, nor has one whose journal cannot be written.
    pub fn has_free_blocks(&self, blocks: u64) -> bool {
        self.core.has_free_blocks(blocks)
    }

    /// Reserves blocks for writes to come; whether there was [room](Volume::has_free_blocks). They are nobody else's, though
    /// [`statfs`](Store::statfs) counts them as free.
    pub fn reserve(&mut self, blocks: u64) -> bool {
        self.core.has_free_blocks(blocks) && self.core.allocator.reserve(blocks)
    }

    /// Gives blocks back that were reserved and not submitted with a request.
    ///
    /// # Panics
    /// Fewer are reserved.
    pub fn unreserve(&mut self, blocks: u64) {
        assert!(blocks <= self.core.allocator.reserved(), "{blocks} blocks that were not reserved");
        self.core.allocator.unreserve(blocks);
        self.core.made_progress = true;
    }

    /// Takes a request that has ended.
    pub fn reap(&mut self) -> Option<OpCompletion> {
        self.core.completions.pop_front()
    }

    /// Requests under way, those that were not reaped not included.
    pub fn in_flight(&self) -> usize {
        self.core.active_count()
    }

    /// What `path` leads to, from directory `base` on. `..` of the root is the root, and a path is
    /// relative whether it begins with a slash or not.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NameTooLong`].
    pub fn lookup(&self, base: Ino, path: impl AsRef<[u8]>) -> Result<Ino, Error> {
        self.core.lookup(base, path.as_ref())
    }

    /// Everything about an inode.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn stat(&self, ino: Ino) -> Result<Stat, Error> {
        self.core.stat(ino)
    }

    /// What the volume has.
    pub fn statfs(&self) -> StatFs {
        self.core.statfs()
    }

    /// The entries of a directory behind `cookie`, 0 for all. `.` and `..` are not among them.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`].
    pub fn list(&self, dir: Ino, cookie: u64) -> Result<impl Iterator<Item = DirEntry<'_>>, Error> {
        let entries = self.core.tree.directory(dir)?.entries.entries_after(cookie);
        Ok(entries.map(|(name, e)| DirEntry { name, ino: e.child, kind: e.kind, cookie: e.cookie }))
    }

    /// The directory that a directory or file is in; the root is in itself.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn parent(&self, ino: Ino) -> Result<Ino, Error> {
        self.core.tree.get(ino).map(|node| node.parent)
    }

    /// Opens an inode: it stays until it is closed as often, whatever becomes of its name.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn open(&mut self, ino: Ino) -> Result<(), Error> {
        self.core.tree.get_mut(ino)?.state.open_count += 1;
        Ok(())
    }

    /// Closes it.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Invalid`] if it is not open.
    pub fn close(&mut self, ino: Ino) -> Result<(), Error> {
        let live = &mut self.core.tree.get_mut(ino)?.state;
        live.open_count = live.open_count.checked_sub(1).ok_or(Error::Invalid("it is not open"))?;
        self.core.add_orphan(ino);
        Ok(())
    }

    /// Where the data of requests must be registered.
    pub fn memory(&self) -> &AddressSpace {
        &self.core.memory
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        let (ring, frames) = (&self.core.ring, &self.core.page_cache);
        Stats {
            journal_used: ring.used(),
            dirty_pages: frames.dirty as u64,
            journal_only_blocks: frames.journaled as u64,
            ..self.core.stats
        }
    }

    /// What the volume is.
    pub fn superblock(&self) -> &Superblock {
        &self.core.superblock
    }

    /// What stopped all changes, if something did.
    pub fn failure(&self) -> Option<Status> {
        self.core.aborted
    }

    /// Whether it was closed in order.
    pub fn is_closed(&self) -> bool {
        self.core.closed
    }

    /// Whom the device wakes when something completes while the owner's runner is parked.
    pub fn set_waker(&mut self, waker: Waker) {
        self.device.set_waker(waker);
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The same, to change it; its completions are the store's.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Gives the device back. What was not made durable may be lost, and the volume is marked as in use
    /// unless it was closed.
    pub fn into_device(self) -> D {
        self.device
    }

    pub(crate) fn poll_device(&mut self, now: Nanos) -> bool {
        let core = &mut self.core;
        core.now = now;
        let mut moved = self.device.poll(now);
        while let Some(completion) = self.device.reap() {
            core.on_transfer_complete(&completion);
            moved = true;
        }
        let done = core.completions.len();
        core.advance();
        moved |= core.completions.len() > done;
        if core.transfers.send(&mut self.device, now) {
            moved = true;
            self.device.poll(now);
        }
        moved
    }
}

impl Core {
    /// Does everything that can be done now.
    fn advance(&mut self) {
        self.expire_dirty();
        loop {
            self.made_progress = false;
            self.step_all();
            self.reap_orphans();
            self.write_back();
            self.poll_checkpoint();
            self.poll_commit();
            if !self.made_progress {
                return;
            }
        }
    }
}

impl<D: BlockDevice> Component for Volume<D> {
    fn poll(&mut self, now: Nanos) -> bool {
        self.poll_device(now)
    }

    fn deadline(&self) -> Nanos {
        let core = &self.core;
        let own = core.dirty_deadline().min(core.commit_deadline());
        // What is due and has not happened waits for the device.
        let own = if core.aborted.is_some() || own <= core.now { Nanos::MAX } else { own };
        self.device.deadline().min(own)
    }
}
