//! [`fsck()`]: checks all metadata of a volume, reports every problem, and repairs unambiguous ones.

pub(crate) mod check;
pub(crate) mod problem;

use block::BlockDevice;
use time::Nanos;

use crate::blocking_volume::BlockingTransfers;
use crate::fsck::check::check;
use crate::metadata::tree::{Entry, Tree, new_node};
use crate::on_media::layout::SEGMENT_BYTES;
use crate::on_media::superblock::Superblock;
use crate::recovery::metadata_reader::{LoadedMetadata, MetadataReader};
use crate::recovery::mount::start_volume;
use crate::recovery::replay::JournalReplay;
use crate::{
    BlockingVolume, Error, FsckProblem, Ino, InodeKind, InodePermissions, Options, Owner, Times,
    VolumeOp, VolumeOpenError, format,
};

/// Directory in which repairs put unnamed inodes.
const LOST_AND_FOUND: &str = "lost+found";

/// Options of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsckOptions {
    /// Whether to repair.
    pub repair: bool,
    /// Whether to ignore the owner mark; a repair clears it.
    pub clear_owner: bool,
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsckReport {
    /// The current superblock.
    pub superblock: Superblock,
    /// All problems found.
    pub problems: Vec<FsckProblem>,
    /// Whether all problems were repaired.
    pub repaired: bool,
    /// Number of files.
    pub files: u64,
    /// Number of directories, including the root.
    pub directories: u64,
    /// Number of extents of all files.
    pub extents: u64,
    /// Number of blocks of all files.
    pub used_blocks: u64,
    /// Bytes of all metadata.
    pub metadata_bytes: u64,
    /// Transactions in the journal.
    pub transactions: u64,
    /// Blocks with journaled data that may not be in place.
    pub journaled_blocks: u64,
}

impl FsckReport {
    /// Returns whether no problem remains that a mount would not fix.
    pub fn is_clean(&self) -> bool {
        !self.problems.iter().any(FsckProblem::is_damage)
    }

    /// Returns the process that uses the volume, or was killed while using it.
    pub fn owner(&self) -> Option<Owner> {
        self.superblock.owner
    }
}

/// Checks the volume on `device`, and repairs it if requested and if every problem is repairable;
/// `tick` is as for [`BlockingVolume`].
///
/// # Errors
/// [`VolumeOpenError`] if there is nothing to check; [`VolumeOpenError::InUse`] for a repair.
pub fn fsck<D: BlockDevice>(
    device: &mut D,
    options: FsckOptions,
    mut tick: impl FnMut(&mut D) -> Nanos,
) -> Result<FsckReport, VolumeOpenError> {
    let mut loader = MetadataReader::new(device, true)?;
    let mut now = tick(device);
    let loaded = loop {
        if let Some(loaded) = loader.poll(device, now) {
            break loaded?;
        }
        now = tick(device);
    };
    let mut report = describe(&loaded);
    let marked = report.superblock.owner.is_some();
    let wrong = !report.problems.is_empty() || marked && options.clear_owner;
    if !options.repair || !wrong {
        return Ok(report);
    }
    if let Some(owner) = report.superblock.owner.filter(|_| !options.clear_owner) {
        return Err(VolumeOpenError::InUse { owner });
    }
    if !report.problems.iter().filter(|f| f.is_damage()).all(FsckProblem::is_repairable) {
        return Ok(report);
    }
    report.repaired = repair(device, loaded, now, &mut tick)?;
    Ok(report)
}

fn describe(loaded: &LoadedMetadata) -> FsckReport {
    let LoadedMetadata {
        superblock, tree, journaled: parts, problems: findings, transactions, ..
    } = loaded;
    let count = |kind| tree.iter().filter(|(_, n)| n.kind == kind).count() as u64;
    FsckReport {
        superblock: *superblock,
        problems: findings.clone(),
        repaired: false,
        files: count(InodeKind::File),
        directories: count(InodeKind::Directory),
        extents: tree.iter().map(|(_, n)| n.extents.len() as u64).sum(),
        used_blocks: tree.iter().map(|(_, n)| n.extents.blocks()).sum(),
        metadata_bytes: tree.bytes(),
        transactions: *transactions,
        journaled_blocks: parts.len() as u64,
    }
}

fn repair<D: BlockDevice>(
    device: &mut D,
    mut loaded: LoadedMetadata,
    mut now: Nanos,
    tick: &mut impl FnMut(&mut D) -> Nanos,
) -> Result<bool, VolumeOpenError> {
    let layout = loaded.superblock.layout;
    // A repair may reveal further problems.
    for _ in 0..4 {
        let findings = check(&loaded.tree, &loaded.journaled, &layout);
        for finding in findings.iter().filter(|f| f.is_damage()) {
            if let FsckProblem::OrphanedData { ino, block } = finding {
                loaded.journaled.remove(*ino, *block, block + 1);
            }
            repair_problem(&mut loaded.tree, finding);
        }
        loaded.tree.rebuild_counts();
    }
    let left = check(&loaded.tree, &loaded.journaled, &layout);
    if left.iter().any(FsckProblem::is_damage) {
        return Ok(false);
    }
    let mut replay = JournalReplay::new(device, loaded, false)?;
    let replayed = loop {
        if let Some(replayed) = replay.poll(device, now) {
            break replayed?;
        }
        now = tick(device);
    };
    let store = start_volume(device, Options::default(), replayed, now)?;
    let mut session = BlockingVolume::new(store, |device: &mut &mut D| tick(device))?;
    let closed = session.run(VolumeOp::Close);
    match (closed, session.volume().failure()) {
        (Ok(_), None) => {}
        (Err(Error::Io { status }), _) | (_, Some(status)) => {
            return Err(VolumeOpenError::Io { offset: 0, status });
        }
        (Err(error), None) => return Err(VolumeOpenError::Unfit { what: error.to_string() }),
    }
    // Clear the journal, so that no damaged sector can be mistaken for its continuation.
    let device = session.into_volume().into_device();
    format::clear_journal(&mut BlockingTransfers::new(device, tick, SEGMENT_BYTES)?, &layout)?;
    Ok(true)
}

/// Repairs one problem.
fn repair_problem(tree: &mut Tree, finding: &FsckProblem) {
    match finding {
        FsckProblem::NoInode { ino } => {
            tree.remove(*ino);
        }
        FsckProblem::DanglingEntry { dir, name, .. } => {
            tree.remove_entry(*dir, name);
        }
        FsckProblem::WrongKind { dir, name } => {
            let entry = tree.find(*dir).and_then(|n| n.entries.get(name));
            let kind = entry.and_then(|e| tree.find(e.child)).map(|n| n.kind);
            if let (Some(entry), Some(kind)) = (entry, kind) {
                tree.remove_entry(*dir, name);
                tree.set_entry(*dir, name, Entry { kind, ..entry });
            }
        }
        FsckProblem::Links { ino, right, .. } => {
            if let Some(node) = tree.find_mut(*ino) {
                node.links = *right;
            }
        }
        FsckProblem::Unnamed { ino } => {
            let lost = lost_and_found(tree);
            let Some(kind) = tree.find(*ino).map(|n| n.kind) else { return };
            // A cycle of directories is cut where it is found first.
            if let Some(parent) = tree.find(*ino).map(|n| n.parent).filter(|p| p.0 != 0) {
                let name = tree.find(parent).and_then(|n| {
                    n.entries
                        .entries_after(0)
                        .find(|(_, e)| e.child == *ino)
                        .map(|(n, _)| n.to_vec())
                });
                if let Some(name) = name {
                    let above_is_lost = tree.find(parent).is_some_and(|n| n.parent == lost);
                    if above_is_lost {
                        return;
                    }
                    tree.remove_entry(parent, &name);
                }
            }
            let name = format!("#{}", ino.0);
            let cookie = tree.find(lost).map_or(1, |n| n.entries.next_cookie());
            tree.set_entry(lost, name.as_bytes(), Entry { child: *ino, kind, cookie });
            if let Some(node) = tree.find_mut(*ino) {
                node.parent = lost;
            }
        }
        _ => {}
    }
}

/// Returns the directory for unnamed inodes; creates it if necessary.
fn lost_and_found(tree: &mut Tree) -> Ino {
    let found = tree.find(Ino::ROOT).and_then(|root| root.entries.get(LOST_AND_FOUND.as_bytes()));
    if let Some(entry) = found.filter(|e| e.kind == InodeKind::Directory) {
        return entry.child;
    }
    let ino = tree.next_ino();
    let access = InodePermissions { mode: 0o700, ..InodePermissions::default() };
    tree.insert(ino, new_node(InodeKind::Directory, access, Times::default(), Ino::ROOT));
    let cookie = tree.find(Ino::ROOT).map_or(1, |n| n.entries.next_cookie());
    let entry = Entry { child: ino, kind: InodeKind::Directory, cookie };
    tree.set_entry(Ino::ROOT, LOST_AND_FOUND.as_bytes(), entry);
    ino
}
