//! [`Tree`]: all metadata of a volume in memory: inodes, entries and extents.
//!
//! It is built from records when a volume is read ([`Tree::apply`]), and changed by operations. It
//! does not access the device, and tracks the bytes of records that it would need.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::inode_state::InodeState;
use crate::invariants::{VolumeViolation, require, require_eq};
use crate::metadata::extents::{Extents, FileExtent};
use crate::on_media::layout::BlockRun;
use crate::on_media::record::{
    ENTRY_BYTES, EXTENT_BYTES, INODE_BYTES, InodeRecord, MetadataRecord, TO_EOF,
};
use crate::{Error, Ino, InodeKind, InodePermissions, Times};

/// Target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) child: Ino,
    pub(crate) kind: InodeKind,
    pub(crate) cookie: u64,
}

/// Entries of a directory, by name and in listing order.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    names: BTreeMap<Arc<[u8]>, Entry>,
    order: BTreeMap<u64, Arc<[u8]>>,
    next_cookie: u64,
}

impl Directory {
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<Entry> {
        self.names.get(name).copied()
    }

    /// Returns the entries after `cookie`.
    pub(crate) fn entries_after(&self, cookie: u64) -> impl Iterator<Item = (&[u8], Entry)> {
        self.order.range(cookie.saturating_add(1)..).filter_map(|(_, name)| {
            let (name, entry) = self.names.get_key_value(name)?;
            Some((&name[..], *entry))
        })
    }

    /// Returns a cookie after all others.
    pub(crate) fn next_cookie(&self) -> u64 {
        self.next_cookie + 1
    }

    fn remove(&mut self, name: &[u8]) -> Option<Entry> {
        let entry = self.names.remove(name)?;
        self.order.remove(&entry.cookie);
        Some(entry)
    }

    fn set(&mut self, name: &[u8], entry: Entry) {
        let name: Arc<[u8]> = name.into();
        // While a volume is read, an entry of an older state may have the cookie.
        if let Some(other) = self.order.insert(entry.cookie, name.clone())
            && other != name
        {
            self.names.remove(&other);
        }
        self.names.insert(name, entry);
        self.next_cookie = self.next_cookie.max(entry.cookie);
    }
}

impl Directory {
    fn check_invariants(&self, dir: Ino) -> Result<(), VolumeViolation> {
        require_eq!(Inodes, "every entry is listed once", dir, self.names.len(), self.order.len());
        for (name, entry) in &self.names {
            require!(
                self.order.get(&entry.cookie) == Some(name) && entry.cookie <= self.next_cookie,
                Inodes,
                "an entry is listed at its cookie",
                dir,
                name,
                entry
            );
        }
        Ok(())
    }
}

/// An inode.
#[derive(Debug, Default)]
pub(crate) struct InodeNode {
    /// Whether its own record was read; its entries or extents may be read first.
    pub(crate) has_record: bool,
    pub(crate) kind: InodeKind,
    pub(crate) access: InodePermissions,
    pub(crate) links: u32,
    /// Size as seen by requests.
    pub(crate) size: u64,
    /// Recorded size: all bytes below are on the device.
    pub(crate) recorded_size: u64,
    pub(crate) times: Times,
    pub(crate) extents: Extents,
    pub(crate) entries: Directory,
    /// Parent directory.
    pub(crate) parent: Ino,
    pub(crate) state: InodeState,
}

impl InodeNode {
    fn bytes(&self) -> u64 {
        let names: u64 = self.entries.names.keys().map(|n| (ENTRY_BYTES + n.len()) as u64).sum();
        (INODE_BYTES + self.extents.len() * EXTENT_BYTES) as u64 + names
    }

    /// Returns its record.
    pub(crate) fn record(&self) -> InodeRecord {
        let InodeNode { kind, access, links, times, .. } = *self;
        InodeRecord { kind, access, links, size: self.recorded_size, times }
    }
}

/// All inodes.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: BTreeMap<Ino, Box<InodeNode>>,
    /// Greater than every inode number used so far.
    next_ino: Ino,
    /// Bytes of all records.
    bytes: u64,
    /// Inodes without a name and users, to be removed.
    orphans: VecDeque<Ino>,
}

impl Tree {
    pub(crate) fn new() -> Tree {
        Tree { nodes: BTreeMap::new(), next_ino: Ino(2), bytes: 0, orphans: VecDeque::new() }
    }

    /// Returns a number greater than every inode number used so far.
    pub(crate) fn next_ino(&self) -> Ino {
        self.next_ino
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ino, &InodeNode)> {
        self.nodes.iter().map(|(ino, node)| (*ino, &**node))
    }

    /// Returns the inodes from `ino` on.
    pub(crate) fn range_from(&self, ino: Ino) -> impl Iterator<Item = (Ino, &InodeNode)> {
        self.nodes.range(ino..).map(|(ino, node)| (*ino, &**node))
    }

    pub(crate) fn find(&self, ino: Ino) -> Option<&InodeNode> {
        self.nodes.get(&ino).map(|n| &**n)
    }

    pub(crate) fn find_mut(&mut self, ino: Ino) -> Option<&mut InodeNode> {
        self.nodes.get_mut(&ino).map(|n| &mut **n)
    }

    /// Returns an inode that has users, I/O in flight or a name.
    ///
    /// # Panics
    /// If it does not exist.
    pub(crate) fn existing(&self, ino: Ino) -> &InodeNode {
        self.find(ino).unwrap_or_else(|| panic!("inodes: {ino} is in use and does not exist"))
    }

    /// Mutable access to an [existing](Tree::existing) inode.
    pub(crate) fn existing_mut(&mut self, ino: Ino) -> &mut InodeNode {
        self.find_mut(ino).unwrap_or_else(|| panic!("inodes: {ino} is in use and does not exist"))
    }

    pub(crate) fn get(&self, ino: Ino) -> Result<&InodeNode, Error> {
        self.find(ino).ok_or(Error::NotFound)
    }

    pub(crate) fn get_mut(&mut self, ino: Ino) -> Result<&mut InodeNode, Error> {
        self.find_mut(ino).ok_or(Error::NotFound)
    }

    pub(crate) fn file(&self, ino: Ino) -> Result<&InodeNode, Error> {
        let node = self.get(ino)?;
        if node.kind == InodeKind::File { Ok(node) } else { Err(Error::IsDirectory) }
    }

    pub(crate) fn directory(&self, ino: Ino) -> Result<&InodeNode, Error> {
        let node = self.get(ino)?;
        if node.kind == InodeKind::Directory { Ok(node) } else { Err(Error::NotDirectory) }
    }

    /// Inserts an inode.
    pub(crate) fn insert(&mut self, ino: Ino, node: InodeNode) {
        self.remove(ino);
        self.bytes += node.bytes();
        self.next_ino = self.next_ino.max(Ino(ino.0.saturating_add(1)));
        self.nodes.insert(ino, Box::new(node));
    }

    /// Removes an inode.
    pub(crate) fn remove(&mut self, ino: Ino) -> Option<Box<InodeNode>> {
        let node = self.nodes.remove(&ino)?;
        self.bytes -= node.bytes();
        Some(node)
    }

    fn get_or_insert(&mut self, ino: Ino) -> &mut InodeNode {
        let next = Ino(ino.0.saturating_add(1));
        self.next_ino = self.next_ino.max(next);
        self.nodes.entry(ino).or_insert_with(|| {
            self.bytes += INODE_BYTES as u64;
            Box::default()
        })
    }

    /// Sets or replaces an entry.
    pub(crate) fn set_entry(&mut self, dir: Ino, name: &[u8], entry: Entry) {
        let node = self.get_or_insert(dir);
        let names = node.entries.len();
        node.entries.set(name, entry);
        // Replacing an entry with the same cookie happens only while a volume is read; the count is
        // recomputed afterwards (`rebuild_counts`).
        if node.entries.len() > names {
            self.bytes += (ENTRY_BYTES + name.len()) as u64;
        }
    }

    /// Removes an entry.
    pub(crate) fn remove_entry(&mut self, dir: Ino, name: &[u8]) -> Option<Entry> {
        let entry = self.nodes.get_mut(&dir)?.entries.remove(name)?;
        self.bytes = self.bytes.saturating_sub((ENTRY_BYTES + name.len()) as u64);
        Some(entry)
    }

    /// Maps blocks of a file.
    pub(crate) fn map(&mut self, ino: Ino, extent: FileExtent) {
        self.extents(ino, |extents| extents.set(extent));
    }

    /// Unmaps blocks of a file.
    pub(crate) fn unmap(&mut self, ino: Ino, at: u32, count: u32, freed: impl FnMut(BlockRun)) {
        self.extents(ino, |extents| extents.clear(at, count, freed));
    }

    fn extents(&mut self, ino: Ino, change: impl FnOnce(&mut Extents)) {
        let node = self.get_or_insert(ino);
        let before = node.extents.len();
        change(&mut node.extents);
        let after = node.extents.len();
        self.bytes += (after * EXTENT_BYTES) as u64;
        self.bytes -= (before * EXTENT_BYTES) as u64;
    }

    /// Queues an inode for removal if it has no name and no users.
    pub(crate) fn add_orphan(&mut self, ino: Ino) {
        let node = self.existing_mut(ino);
        if node.links == 0 && node.state.users.become_orphan() {
            self.orphans.push_back(ino);
        }
    }

    /// Returns the number of inodes queued for removal.
    pub(crate) fn orphans_len(&self) -> usize {
        self.orphans.len()
    }

    /// Takes the first inode queued for removal.
    pub(crate) fn pop_orphan(&mut self) -> Option<Ino> {
        self.orphans.pop_front()
    }

    /// Queues an inode for removal again, because it cannot be removed now.
    pub(crate) fn requeue_orphan(&mut self, ino: Ino) {
        self.orphans.push_back(ino);
    }

    /// Applies a record.
    pub(crate) fn apply(&mut self, record: MetadataRecord<'_>) {
        match record {
            MetadataRecord::Inode { ino, record: image } => {
                let node = self.get_or_insert(ino);
                let InodeRecord { kind, access, links, size, times } = image;
                node.has_record = true;
                (node.kind, node.access, node.links, node.times) = (kind, access, links, times);
                (node.size, node.recorded_size) = (size, size);
            }
            MetadataRecord::Entry { dir, cookie, child, kind, name } => {
                // The name may have had another cookie.
                self.remove_entry(dir, name);
                self.set_entry(dir, name, Entry { child, kind, cookie });
            }
            MetadataRecord::RemoveEntry { dir, name } => {
                self.remove_entry(dir, name);
            }
            MetadataRecord::Map { ino, extent } => self.map(ino, extent),
            MetadataRecord::Unmap { ino, logical: at, count } => {
                let count = if count == TO_EOF { u32::MAX } else { count };
                self.unmap(ino, at, count, |_| {});
            }
            MetadataRecord::RemoveInode { ino } => {
                self.nodes.remove(&ino);
                self.next_ino = self.next_ino.max(Ino(ino.0.saturating_add(1)));
            }
            MetadataRecord::NextInode { ino } => self.next_ino = self.next_ino.max(ino),
            // Data is not metadata.
            MetadataRecord::Data { .. } => {}
        }
    }

    /// After the last record: recomputes the byte count, and sets parents.
    pub(crate) fn rebuild_counts(&mut self) {
        self.bytes = self.nodes.values().map(|n| n.bytes()).sum();
        let parents: Vec<(Ino, Ino)> = self
            .iter()
            .flat_map(|(dir, node)| node.entries.names.values().map(move |e| (e.child, dir)))
            .collect();
        for (child, dir) in parents {
            if let Some(node) = self.find_mut(child) {
                node.parent = dir;
            }
        }
        if let Some(root) = self.find_mut(Ino::ROOT) {
            root.parent = Ino::ROOT;
        }
    }
}

impl Tree {
    pub(crate) fn check_invariants(&self) -> Result<(), VolumeViolation> {
        let bytes: u64 = self.nodes.values().map(|node| node.bytes()).sum();
        require_eq!(Inodes, "bytes of all records", "all inodes", bytes, self.bytes);
        let orphans: BTreeSet<Ino> = self.orphans.iter().copied().collect();
        require_eq!(
            Inodes,
            "an inode is queued for removal once",
            "all inodes",
            orphans.len(),
            self.orphans.len()
        );
        for (ino, node) in self.iter() {
            require!(
                ino < self.next_ino,
                Inodes,
                "inode numbers are below the next one",
                ino,
                self.next_ino,
                ino
            );
            require_eq!(
                Inodes,
                "an orphan is queued for removal",
                ino,
                node.state.users.is_orphan(),
                orphans.contains(&ino)
            );
            require!(
                node.recorded_size <= node.size,
                Inodes,
                "the recorded size is part of the size",
                ino,
                node.size,
                node.recorded_size
            );
            node.extents.check_invariants(ino)?;
            node.entries.check_invariants(ino)?;
            node.state.check_invariants(ino)?;
            for (_, entry) in node.entries.entries_after(0) {
                let parent = self.find(entry.child).map(|child| child.parent);
                require_eq!(
                    Inodes,
                    "an entry's inode has its directory as parent",
                    entry.child,
                    Some(ino),
                    parent
                );
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn break_bytes(&mut self) {
        self.bytes += 1;
    }
}

/// Creates the node of a new directory or file.
pub(crate) fn new_node(
    kind: InodeKind,
    access: InodePermissions,
    times: Times,
    parent: Ino,
) -> InodeNode {
    let links = if kind == InodeKind::Directory { 2 } else { 1 };
    InodeNode { has_record: true, kind, access, links, times, parent, ..InodeNode::default() }
}
