//! Operations on names (creating, finding, renaming and removing files and directories) and on
//! attributes. They complete in memory at once, and wait only if the journal is full.

use crate::pipeline::{Core, OpStep, StepResult};
use crate::record::{ENTRY_BYTES, INODE_BYTES, RECORD_MAX, Record, TO_EOF};
use crate::tree::{Entry, new_node};
use crate::{Access, Error, Ino, Kind, Name, OpResult, SetAttr, Stat, StatFs, Time, Times};

/// Maximum bytes of the records of one such operation.
const CHANGE_RECORD_BYTES_MAX: usize = 2 * RECORD_MAX + 5 * INODE_BYTES;

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
        let buffered = |id| u64::from(self.page_cache.get(id).has_delalloc);
        let buffered: u64 = node.state.pages.values().map(|id| buffered(*id)).sum();
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
        let layout = self.superblock.layout;
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

    fn add_entry(&mut self, time: Time, dir: Ino, name: &Name, child: Ino, kind: Kind) {
        let name = name.as_bytes();
        let Some(node) = self.tree.find_mut(dir) else { return };
        (node.times.modify, node.times.change) = (time, time);
        let cookie = node.entries.next_cookie();
        self.tree.set_entry(dir, name, Entry { child, kind, cookie });
        Record::Entry { dir, cookie, child, kind, name }.encode(&mut self.txn.records);
        self.add_inode_to_txn(dir, true);
    }

    fn remove_entry(&mut self, time: Time, dir: Ino, name: &Name) {
        self.tree.remove_entry(dir, name.as_bytes());
        if let Some(node) = self.tree.find_mut(dir) {
            (node.times.modify, node.times.change) = (time, time);
        }
        Record::RemoveEntry { dir, name: name.as_bytes() }.encode(&mut self.txn.records);
        self.add_inode_to_txn(dir, true);
    }

    /// Creates an inode; returns `None` while the journal is full.
    fn create_inode(
        &mut self,
        time: Time,
        dir: Ino,
        name: &Name,
        (kind, access): (Kind, Access),
    ) -> Result<Option<Ino>, Error> {
        self.check_changeable(dir)?;
        let bytes = INODE_BYTES + ENTRY_BYTES + name.as_bytes().len();
        if !self.has_metadata_space(bytes) {
            return Err(Error::NoMetadataSpace);
        }
        if !self.ensure_journal_space(CHANGE_RECORD_BYTES_MAX) {
            return Ok(None);
        }
        let ino = self.tree.next_ino;
        if ino.0 == u64::MAX {
            return Err(Error::NoMetadataSpace);
        }
        let times = Times { access: time, modify: time, change: time, birth: time };
        self.tree.insert(ino, new_node(kind, access, times, dir));
        self.add_inode_to_txn(ino, true);
        self.add_entry(time, dir, name, ino, kind);
        Ok(Some(ino))
    }

    pub(crate) fn create(
        &mut self,
        time: Time,
        dir: Ino,
        name: &Name,
        access: Access,
        (exclusive, open): (bool, bool),
    ) -> StepResult {
        let ino = match self.tree.directory(dir)?.entries.get(name.as_bytes()) {
            Some(_) if exclusive => return Err(Error::Exists),
            Some(entry) if entry.kind == Kind::Directory => return Err(Error::IsDirectory),
            Some(entry) => entry.child,
            None => match self.create_inode(time, dir, name, (Kind::File, access))? {
                Some(ino) => ino,
                None => return Ok(OpStep::Wait),
            },
        };
        if open {
            self.tree.get_mut(ino)?.state.open_count += 1;
        }
        Ok(OpStep::Done(OpResult::Inode(ino)))
    }

    pub(crate) fn make_directory(
        &mut self,
        time: Time,
        dir: Ino,
        name: &Name,
        access: Access,
    ) -> StepResult {
        if self.tree.directory(dir)?.entries.get(name.as_bytes()).is_some() {
            return Err(Error::Exists);
        }
        Ok(match self.create_inode(time, dir, name, (Kind::Directory, access))? {
            Some(ino) => OpStep::Done(OpResult::Inode(ino)),
            None => OpStep::Wait,
        })
    }

    /// Checks whether an operation on files, or on directories, may remove an inode's name.
    fn check_removable(&self, ino: Ino, directory: bool) -> Result<(), Error> {
        let node = self.tree.get(ino)?;
        match (node.kind, directory) {
            (Kind::File, true) => Err(Error::NotDirectory),
            (Kind::Directory, false) => Err(Error::IsDirectory),
            (Kind::Directory, true) if node.entries.len() > 0 => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }

    pub(crate) fn remove(
        &mut self,
        time: Time,
        dir: Ino,
        name: &Name,
        directory: bool,
    ) -> StepResult {
        let entry = self.tree.directory(dir)?.entries.get(name.as_bytes());
        let child = entry.ok_or(Error::NotFound)?.child;
        self.check_removable(child, directory)?;
        if !self.ensure_journal_space(CHANGE_RECORD_BYTES_MAX) {
            return Ok(OpStep::Wait);
        }
        self.remove_entry(time, dir, name);
        self.unlink(time, child);
        Ok(OpStep::Done(OpResult::Done))
    }

    /// Handles the removal of an inode's name.
    fn unlink(&mut self, time: Time, ino: Ino) {
        if let Some(node) = self.tree.find_mut(ino) {
            node.links = 0;
            node.times.change = time;
        }
        self.add_inode_to_txn(ino, true);
        self.add_orphan(ino);
    }

    pub(crate) fn rename(
        &mut self,
        time: Time,
        (from, name): (Ino, &Name),
        (to, new): (Ino, &Name),
        replace: bool,
    ) -> StepResult {
        let entry = self.tree.directory(from)?.entries.get(name.as_bytes());
        let Entry { child, kind, .. } = entry.ok_or(Error::NotFound)?;
        self.check_changeable(to)?;
        let victim = self.tree.directory(to)?.entries.get(new.as_bytes()).map(|e| e.child);
        match victim {
            Some(_) if !replace => return Err(Error::Exists),
            Some(victim) if victim == child => return Ok(OpStep::Done(OpResult::Done)),
            Some(victim) => self.check_removable(victim, kind == Kind::Directory)?,
            None => {}
        }
        // A directory cannot be moved into itself.
        let mut above = to;
        while kind == Kind::Directory && above != Ino::ROOT {
            if above == child {
                return Err(Error::Invalid("a directory cannot be moved into itself"));
            }
            above = self.tree.get(above)?.parent;
        }
        let longer = new.as_bytes().len().saturating_sub(name.as_bytes().len());
        if longer > 0 && !self.has_metadata_space(longer) {
            return Err(Error::NoMetadataSpace);
        }
        if !self.ensure_journal_space(CHANGE_RECORD_BYTES_MAX) {
            return Ok(OpStep::Wait);
        }
        if let Some(victim) = victim {
            self.tree.remove_entry(to, new.as_bytes());
            self.unlink(time, victim);
        }
        self.remove_entry(time, from, name);
        self.add_entry(time, to, new, child, kind);
        if let Some(node) = self.tree.find_mut(child) {
            node.parent = to;
            node.times.change = time;
        }
        self.add_inode_to_txn(child, true);
        Ok(OpStep::Done(OpResult::Done))
    }

    pub(crate) fn set_attr(&mut self, time: Time, ino: Ino, changes: SetAttr) -> StepResult {
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
    pub(crate) fn add_orphan(&mut self, ino: Ino) {
        if self.options.read_only {
            return;
        }
        let Some(node) = self.tree.find_mut(ino) else { return };
        let live = &mut node.state;
        if node.links == 0 && live.open_count == 0 && live.ref_count == 0 && !live.is_orphan {
            live.is_orphan = true;
            self.orphans.push_back(ino);
        }
    }

    /// Removes queued inodes.
    pub(crate) fn reap_orphans(&mut self) {
        for _ in 0..self.orphans.len() {
            let Some(ino) = self.orphans.pop_front() else { return };
            let Some(node) = self.tree.find_mut(ino) else { continue };
            node.state.io_blocked = true;
            // The inode was opened again by its number.
            if node.state.open_count > 0 || node.state.ref_count > 0 {
                (node.state.is_orphan, node.state.io_blocked) = (false, false);
                continue;
            }
            if node.state.io_in_flight > 0 || !self.ensure_journal_space(CHANGE_RECORD_BYTES_MAX) {
                self.orphans.push_back(ino);
                continue;
            }
            self.invalidate(ino, 0, u32::MAX);
            let frees = &mut self.txn.freed_extents;
            self.tree.unmap(ino, 0, TO_EOF, |start, count| frees.push((start, count)));
            self.tree.remove(ino);
            Record::RemoveInode { ino }.encode(&mut self.txn.records);
            self.txn.started_at.get_or_insert(self.now);
            self.made_progress = true;
        }
    }
}
