//! Operations on names (creating, finding, renaming and removing files and directories) and on
//! attributes. They complete in memory at once, and wait only if the journal is full.

use crate::metadata::tree::{Entry, new_node};
use crate::on_media::record::{ENTRY_BYTES, INODE_BYTES, MetadataRecord, RECORD_MAX, TO_EOF};
use crate::pipeline::{Core, OpStep, StepResult};
use crate::{
    Error, Ino, InodeKind, InodePermissions, Name, OpResult, SetAttr, Stat, StatFs, Time, Times,
};

/// Maximum bytes of the records of one such operation.
const CHANGE_RECORD_BYTES_MAX: usize = 2 * RECORD_MAX + 5 * INODE_BYTES;

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryName<'a> {
    pub(super) dir: Ino,
    pub(super) name: &'a Name,
}

/// How a file is created.
#[derive(Clone, Copy, Debug)]
pub(super) struct CreateMode {
    /// Fails if the file exists.
    pub(super) exclusive: bool,
    /// Also opens the file.
    pub(super) open: bool,
}

impl Core {
    /// Resolves a path relative to `base`; `..` of the root is the root.
    pub(crate) fn lookup(&self, base: Ino, path: &[u8]) -> Result<Ino, Error> {
        let mut at = base;
        self.tree.get(at)?;
        for part in path.split(|b| *b == b'/') {
            if part.is_empty() {
                continue;
            }
            let node = self.tree.directory(at)?;
            at = match part {
                b"." => at,
                b".." => node.parent,
                _ if part.len() > Name::MAX => return Err(Error::NameTooLong),
                _ => node.entries.get(part).ok_or(Error::NotFound)?.child,
            };
        }
        // A trailing slash demands a directory.
        if path.ends_with(b"/") {
            self.tree.directory(at)?;
        }
        Ok(at)
    }

    pub(crate) fn stat(&self, ino: Ino) -> Result<Stat, Error> {
        let node = self.tree.get(ino)?;
        let buffered = self.delalloc_blocks(node);
        Ok(Stat {
            ino,
            kind: node.kind,
            access: node.access,
            links: node.links,
            size: node.size,
            blocks: node.extents.blocks() + buffered,
            times: node.times,
        })
    }

    pub(crate) fn statfs(&self) -> StatFs {
        let layout = self.superblock().layout;
        let each = (INODE_BYTES + ENTRY_BYTES + 16) as u64;
        StatFs {
            block_bytes: crate::BLOCK as u32,
            blocks: layout.data_blocks().into(),
            free: self.allocator.available() + self.allocator.reserved(),
            inodes: self.tree.len() as u64,
            free_inodes: layout.metadata_bytes().saturating_sub(self.tree.bytes()) / each,
        }
    }

    /// Checks that entries of a directory may change.
    fn check_changeable(&self, dir: Ino) -> Result<(), Error> {
        let node = self.tree.directory(dir)?;
        // The directory was removed while open.
        if node.links == 0 { Err(Error::NotFound) } else { Ok(()) }
    }

    fn add_entry(&mut self, time: Time, at: EntryName<'_>, child: Ino, kind: InodeKind) {
        let (dir, name) = (at.dir, at.name.as_bytes());
        let node = self.tree.existing_mut(dir);
        (node.times.modify, node.times.change) = (time, time);
        let cookie = node.entries.next_cookie();
        self.tree.set_entry(dir, name, Entry { child, kind, cookie });
        self.log.record(&MetadataRecord::Entry { dir, cookie, child, kind, name });
        self.add_inode_to_txn(dir, true);
    }

    fn remove_entry(&mut self, time: Time, at: EntryName<'_>) {
        let (dir, name) = (at.dir, at.name.as_bytes());
        self.tree.remove_entry(dir, name);
        let node = self.tree.existing_mut(dir);
        (node.times.modify, node.times.change) = (time, time);
        self.log.record(&MetadataRecord::RemoveEntry { dir, name });
        self.add_inode_to_txn(dir, true);
    }

    /// Creates an inode; returns `None` while the journal is full.
    fn create_inode(
        &mut self,
        time: Time,
        at: EntryName<'_>,
        kind: InodeKind,
        access: InodePermissions,
    ) -> Result<Option<Ino>, Error> {
        let EntryName { dir, name } = at;
        self.check_changeable(dir)?;
        let bytes = INODE_BYTES + ENTRY_BYTES + name.as_bytes().len();
        if !self.has_metadata_space(bytes) {
            return Err(Error::NoMetadataSpace);
        }
        if !self.ensure_journal_space(CHANGE_RECORD_BYTES_MAX) {
            return Ok(None);
        }
        let ino = self.tree.next_ino();
        if ino.0 == u64::MAX {
            return Err(Error::NoMetadataSpace);
        }
        let times = Times { access: time, modify: time, change: time, birth: time };
        self.tree.insert(ino, new_node(kind, access, times, dir));
        self.add_inode_to_txn(ino, true);
        self.add_entry(time, at, ino, kind);
        Ok(Some(ino))
    }

    pub(super) fn create(
        &mut self,
        time: Time,
        at: EntryName<'_>,
        access: InodePermissions,
        mode: CreateMode,
    ) -> StepResult {
        let ino = match self.tree.directory(at.dir)?.entries.get(at.name.as_bytes()) {
            Some(_) if mode.exclusive => return Err(Error::Exists),
            Some(entry) if entry.kind == InodeKind::Directory => return Err(Error::IsDirectory),
            Some(entry) => entry.child,
            None => match self.create_inode(time, at, InodeKind::File, access)? {
                Some(ino) => ino,
                None => return Ok(OpStep::Wait),
            },
        };
        if mode.open {
            self.tree.get_mut(ino)?.state.users.open();
        }
        Ok(OpStep::Done(OpResult::Inode(ino)))
    }

    pub(super) fn make_directory(
        &mut self,
        time: Time,
        at: EntryName<'_>,
        access: InodePermissions,
    ) -> StepResult {
        if self.tree.directory(at.dir)?.entries.get(at.name.as_bytes()).is_some() {
            return Err(Error::Exists);
        }
        Ok(match self.create_inode(time, at, InodeKind::Directory, access)? {
            Some(ino) => OpStep::Done(OpResult::Inode(ino)),
            None => OpStep::Wait,
        })
    }

    /// Checks whether an operation on files, or on directories, may remove an inode's name.
    fn check_removable(&self, ino: Ino, directory: bool) -> Result<(), Error> {
        let node = self.tree.get(ino)?;
        match (node.kind, directory) {
            (InodeKind::File, true) => Err(Error::NotDirectory),
            (InodeKind::Directory, false) => Err(Error::IsDirectory),
            (InodeKind::Directory, true) if node.entries.len() > 0 => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }

    pub(super) fn remove(&mut self, time: Time, at: EntryName<'_>, directory: bool) -> StepResult {
        let entry = self.tree.directory(at.dir)?.entries.get(at.name.as_bytes());
        let child = entry.ok_or(Error::NotFound)?.child;
        self.check_removable(child, directory)?;
        if !self.ensure_journal_space(CHANGE_RECORD_BYTES_MAX) {
            return Ok(OpStep::Wait);
        }
        self.remove_entry(time, at);
        self.unlink(time, child);
        Ok(OpStep::Done(OpResult::Done))
    }

    /// Handles the removal of an inode's name.
    fn unlink(&mut self, time: Time, ino: Ino) {
        let node = self.tree.existing_mut(ino);
        node.links = 0;
        node.times.change = time;
        self.add_inode_to_txn(ino, true);
        self.add_orphan(ino);
    }

    pub(super) fn rename(
        &mut self,
        time: Time,
        from: EntryName<'_>,
        to: EntryName<'_>,
        replace: bool,
    ) -> StepResult {
        let (name, new) = (from.name.as_bytes(), to.name.as_bytes());
        let entry = self.tree.directory(from.dir)?.entries.get(name);
        let Entry { child, kind, .. } = entry.ok_or(Error::NotFound)?;
        self.check_changeable(to.dir)?;
        let victim = self.tree.directory(to.dir)?.entries.get(new).map(|e| e.child);
        match victim {
            Some(_) if !replace => return Err(Error::Exists),
            Some(victim) if victim == child => return Ok(OpStep::Done(OpResult::Done)),
            Some(victim) => self.check_removable(victim, kind == InodeKind::Directory)?,
            None => {}
        }
        // A directory cannot be moved into itself.
        let mut above = to.dir;
        while kind == InodeKind::Directory && above != Ino::ROOT {
            if above == child {
                return Err(Error::Invalid("a directory cannot be moved into itself"));
            }
            above = self.tree.get(above)?.parent;
        }
        let longer = new.len().saturating_sub(name.len());
        if longer > 0 && !self.has_metadata_space(longer) {
            return Err(Error::NoMetadataSpace);
        }
        if !self.ensure_journal_space(CHANGE_RECORD_BYTES_MAX) {
            return Ok(OpStep::Wait);
        }
        if let Some(victim) = victim {
            self.tree.remove_entry(to.dir, new);
            self.unlink(time, victim);
        }
        self.remove_entry(time, from);
        self.add_entry(time, to, child, kind);
        let node = self.tree.existing_mut(child);
        node.parent = to.dir;
        node.times.change = time;
        self.add_inode_to_txn(child, true);
        Ok(OpStep::Done(OpResult::Done))
    }

    pub(super) fn set_attr(&mut self, time: Time, ino: Ino, changes: SetAttr) -> StepResult {
        self.tree.get(ino)?;
        if !self.ensure_journal_space(INODE_BYTES) {
            return Ok(OpStep::Wait);
        }
        let node = self.tree.get_mut(ino)?;
        let (access, times) = (&mut node.access, &mut node.times);
        let SetAttr { mode, uid, gid, access: accessed, modify } = changes;
        access.mode = mode.unwrap_or(access.mode);
        access.uid = uid.unwrap_or(access.uid);
        access.gid = gid.unwrap_or(access.gid);
        times.access = accessed.unwrap_or(times.access);
        times.modify = modify.unwrap_or(times.modify);
        times.change = time;
        self.add_inode_to_txn(ino, false);
        Ok(OpStep::Done(OpResult::Done))
    }

    /// Queues an inode for removal if it has no name and no users.
    pub(super) fn add_orphan(&mut self, ino: Ino) {
        if !self.options.read_only {
            self.tree.add_orphan(ino);
        }
    }

    /// Removes queued inodes.
    pub(super) fn reap_orphans(&mut self) {
        for _ in 0..self.tree.orphans_len() {
            let Some(ino) = self.tree.pop_orphan() else { return };
            let state = &mut self.tree.existing_mut(ino).state;
            let is_idle = state.io.quiesce();
            // The inode was opened again by its number.
            if state.users.is_used() {
                state.users.cancel_removal();
                state.io.unblock();
                continue;
            }
            if !is_idle || !self.ensure_journal_space(CHANGE_RECORD_BYTES_MAX) {
                self.tree.requeue_orphan(ino);
                continue;
            }
            self.invalidate(ino, 0, u32::MAX);
            self.tree.unmap(ino, 0, TO_EOF, |blocks| self.log.free_when_durable(blocks));
            self.tree.remove(ino);
            self.log.record(&MetadataRecord::RemoveInode { ino });
            self.barriers.ordered.record_change();
            self.log.record_change(self.now);
            self.made_progress = true;
        }
    }
}
