//! Invariants of the maps alone.

use collections::BitSet;

use super::Mapping;
use crate::L2pEntry;
use crate::check::{Subject, Violation, require, require_eq};
use crate::env::Env;
use crate::ids::{MapPageId, ToIndex};

/// Checks the maps: mapped sectors are counted, mapped once, and in the P2L; pages are in frames or
/// being fetched.
pub(super) fn check(mapping: &Mapping, env: &Env) -> Result<(), Violation> {
    let shown = mapping.fetches.check(&mapping.l2p)?;
    require_eq!(
        Mapping,
        "the scratch frame is unmapped between calls",
        Subject::Part,
        MapPageId::NONE,
        shown
    );
    let mut sectors = BitSet::new(env.geometry.total_sectors().index());
    let mut mapped = 0;
    for lba in mapping.resident_sectors(env) {
        let at = mapping.l2p.get(lba);
        mapped += u64::from(at != L2pEntry::Unmapped);
        let L2pEntry::Flash(phys) = at else { continue };
        let (subject, is_new) = (Subject::Sector(phys), sectors.insert(phys.index()));
        require!(is_new, Mapping, "a physical sector is mapped once", subject, 1, 2);
        if mapping.p2l.is_in_memory() {
            let found = mapping.p2l.get(phys);
            require!(
                found == Some(lba),
                Mapping,
                "P2L agrees with L2P",
                subject,
                lba,
                found.map_or_else(|| "none".to_string(), |lba| lba.to_string())
            );
        }
    }
    let counted = mapping.l2p.mapped();
    // A page that is not in memory was counted while it was.
    require!(
        mapped == counted || mapping.is_cached() && mapped < counted,
        Mapping,
        "mapped sectors",
        Subject::Part,
        mapped,
        counted
    );
    if let Some(frames) = mapping.l2p.frames() {
        frames.check()?;
    }
    for page in mapping.page_rebuild.jobs() {
        require!(
            !mapping.l2p.is_page_resident(page),
            Mapping,
            "a page that is rebuilt is in no frame",
            Subject::Page(page),
            "no frame",
            "a frame"
        );
    }
    Ok(())
}
