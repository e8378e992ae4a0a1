//! [`check`]: consistency check of all metadata of a volume.

use std::collections::{BTreeMap, BTreeSet};

use crate::metadata::extents::{BlockMapping, FileExtent};
use crate::metadata::tree::Tree;
use crate::on_media::record::EXTENT_BYTES;
use crate::recovery::journaled_blocks::JournaledBlocks;
use crate::{BLOCK, FsckProblem, Ino, InodeKind, VolumeLayout};

/// Checks everything, and returns the problems found.
pub(crate) fn check(
    tree: &Tree,
    parts: &JournaledBlocks,
    layout: &VolumeLayout,
) -> Vec<FsckProblem> {
    let mut findings = Vec::new();
    if tree.find(Ino::ROOT).is_none_or(|n| !n.has_record || n.kind != InodeKind::Directory) {
        findings.push(FsckProblem::NoRoot);
    }
    check_names(tree, &mut findings);
    check_blocks(tree, layout, &mut findings);
    let bytes = tree.bytes()
        + check_journaled_data(tree, parts, layout, &mut findings) * EXTENT_BYTES as u64;
    if bytes > layout.metadata_bytes() {
        findings.push(FsckProblem::TooMuchMetadata { bytes });
    }
    findings
}

/// Checks journaled data; returns the number of blocks that must be allocated for it.
fn check_journaled_data(
    tree: &Tree,
    parts: &JournaledBlocks,
    layout: &VolumeLayout,
    findings: &mut Vec<FsckProblem>,
) -> u64 {
    let mut new = BTreeSet::new();
    for (ino, block) in parts.iter() {
        let node = tree.find(ino).filter(|n| n.has_record && n.kind == InodeKind::File);
        match node.filter(|n| u64::from(block) * (BLOCK as u64) < n.size) {
            Some(node) => {
                if matches!(node.extents.find(block), BlockMapping::Hole { .. }) {
                    new.insert((ino, layout.unit_start(block)));
                }
            }
            None => findings.push(FsckProblem::OrphanedData { ino, block }),
        }
    }
    let new = new.len() as u64 * u64::from(layout.unit_blocks);
    let used: u64 = tree.iter().map(|(_, n)| n.extents.blocks()).sum();
    if new > u64::from(layout.data_blocks()).saturating_sub(used) {
        findings.push(FsckProblem::NotEnoughSpace { blocks: new });
    }
    new
}

fn check_names(tree: &Tree, findings: &mut Vec<FsckProblem>) {
    let mut named: BTreeMap<Ino, Ino> = BTreeMap::from([(Ino::ROOT, Ino::ROOT)]);
    let mut children = BTreeSet::from([Ino::ROOT]);
    for (dir, node) in tree.iter() {
        if !node.has_record {
            findings.push(FsckProblem::NoInode { ino: dir });
            continue;
        }
        if match node.kind {
            InodeKind::File => node.entries.len() > 0,
            InodeKind::Directory => node.extents.len() > 0 || node.size > 0,
        } {
            findings.push(FsckProblem::WrongContents { ino: dir });
        }
        for (name, entry) in node.entries.entries_after(0) {
            let child = entry.child;
            match tree.find(child).filter(|n| n.has_record) {
                None => {
                    findings.push(FsckProblem::DanglingEntry { dir, name: name.to_vec(), child });
                    continue;
                }
                Some(node) if node.kind != entry.kind => {
                    findings.push(FsckProblem::WrongKind { dir, name: name.to_vec() });
                }
                Some(_) => {}
            }
            // The first name counts.
            if *named.entry(child).or_insert(dir) != dir || !children.insert(child) {
                findings.push(FsckProblem::SecondName { dir, name: name.to_vec(), child });
            }
        }
    }
    let mut reached = BTreeSet::from([Ino::ROOT]);
    for (ino, node) in tree.iter().filter(|(_, n)| n.has_record) {
        // Follow parents up to an inode known to be reachable; a cycle never reaches one.
        let (mut path, mut at) = (Vec::new(), ino);
        let found = loop {
            if reached.contains(&at) {
                break true;
            }
            path.push(at);
            match named.get(&at) {
                Some(dir) if path.len() <= tree.len() => at = *dir,
                _ => break false,
            }
        };
        if found {
            reached.extend(path);
        }
        let right = match node.kind {
            InodeKind::Directory => 2,
            InodeKind::File => 1,
        };
        if node.links == 0 && !named.contains_key(&ino) {
            findings.push(FsckProblem::Orphan { ino });
        } else if !found {
            findings.push(FsckProblem::Unnamed { ino });
        } else if node.links != right {
            findings.push(FsckProblem::Links { ino, recorded: node.links, right });
        }
    }
}

fn check_blocks(tree: &Tree, layout: &VolumeLayout, findings: &mut Vec<FsckProblem>) {
    let mut all: Vec<(u32, u32, Ino)> = Vec::new();
    for (ino, node) in tree.iter() {
        for extent in node.extents.iter() {
            let end = u64::from(extent.phys) + u64::from(extent.count);
            if extent.phys < layout.data() || end > layout.data_end().into() {
                findings.push(FsckProblem::OutOfRange { ino, block: extent.phys });
            } else {
                all.push((extent.phys, extent.count, ino));
            }
        }
        if let Some(block) = unaligned_block(node.extents.iter(), layout.unit_blocks) {
            findings.push(FsckProblem::Unaligned { ino, block });
        }
    }
    all.sort_unstable();
    for pair in all.windows(2) {
        let [(start, count, first), (block, _, second)] = [pair[0], pair[1]];
        if start + count > block {
            findings.push(FsckProblem::Overlap { first, second, block });
        }
    }
}

/// Returns the first block of a file that is not in a whole unit, whose blocks are contiguous and
/// aligned in the file and on the volume.
fn unaligned_block(extents: impl Iterator<Item = FileExtent>, unit: u32) -> Option<u32> {
    // The end of the previous extent, which must be the end of a unit unless the next continues it.
    let mut open: Option<(u32, u32)> = None;
    for extent in extents {
        let (logical, phys) = (extent.logical, extent.phys);
        let continues = open == Some((logical, phys));
        if let Some((end, _)) = open.filter(|_| !continues) {
            return Some(end - 1);
        }
        let is_aligned = logical.is_multiple_of(unit) && phys.is_multiple_of(unit);
        if !(continues || is_aligned) {
            return Some(logical);
        }
        let is_whole = extent.end().is_multiple_of(unit);
        open = (!is_whole).then(|| (extent.end(), phys + extent.count));
    }
    open.map(|(end, _)| end - 1)
}
