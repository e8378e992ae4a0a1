//! The table of namespaces in the non-volatile settings of the controller
//! (`docs/format/sidecar.md`).

use collections::{put_at, u32_at, u64_at};

use crate::error::DriveError;
use crate::namespaces::layout::NAMESPACES_MAX;
use crate::namespaces::table::{
    DriveNamespace, GRANULES_MAX, GranuleRange, NamespaceExtent, NamespaceSpace, NamespaceTable,
};
use crate::persistence::nonvolatile::{NonVolatile, SettingsSection};

/// Version of the section; 0 if it was never written.
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 32;
const NAMESPACE_BYTES: usize = 32;
const EXTENT_BYTES: usize = 4;
/// Flag of a namespace that is attached.
const ATTACHED: u32 = 1;

const _: () = assert!(
    HEADER_BYTES + NAMESPACES_MAX * NAMESPACE_BYTES + GRANULES_MAX as usize * EXTENT_BYTES
        <= SettingsSection::Namespaces.bytes()
);

fn encode_extent(extent: &NamespaceExtent, granule: u64) -> [u8; EXTENT_BYTES] {
    let first = (extent.first / granule) as u16;
    let count = extent.units.div_ceil(granule) as u16;
    let mut bytes = [0; EXTENT_BYTES];
    put_at(&mut bytes, 0, &first.to_le_bytes());
    put_at(&mut bytes, 2, &count.to_le_bytes());
    bytes
}

fn encode(table: &NamespaceTable) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    put_at(&mut bytes, 0, &VERSION.to_le_bytes());
    put_at(&mut bytes, 4, &(table.namespaces.len() as u32).to_le_bytes());
    put_at(&mut bytes, 8, &table.space.units.to_le_bytes());
    put_at(&mut bytes, 16, &table.space.unit_blocks.to_le_bytes());
    put_at(&mut bytes, 20, &table.created.to_le_bytes());
    for namespace in &table.namespaces {
        let mut entry = [0; NAMESPACE_BYTES];
        put_at(&mut entry, 0, &namespace.nsid.to_le_bytes());
        put_at(&mut entry, 4, &u32::from(namespace.is_attached).to_le_bytes());
        put_at(&mut entry, 8, &namespace.blocks.to_le_bytes());
        put_at(&mut entry, 16, &namespace.generation.to_le_bytes());
        put_at(&mut entry, 20, &(namespace.extents.len() as u32).to_le_bytes());
        bytes.extend(entry);
        let granule = table.granule_units();
        bytes.extend(namespace.extents.iter().flat_map(|e| encode_extent(e, granule)));
    }
    bytes
}

/// Decodes a section that was written. Returns `None` if it is not a table.
fn decode(bytes: &[u8]) -> Option<NamespaceTable> {
    if u32_at(bytes, 0)? != VERSION {
        return None;
    }
    let space = NamespaceSpace { units: u64_at(bytes, 8)?, unit_blocks: u32_at(bytes, 16)? };
    let count = u32_at(bytes, 4)?;
    if space.units == 0 || !space.unit_blocks.is_power_of_two() || count > NAMESPACES_MAX as u32 {
        return None;
    }
    let mut table = NamespaceTable { space, namespaces: Vec::new(), created: u32_at(bytes, 20)? };
    let mut rest = bytes.get(HEADER_BYTES..)?;
    for _ in 0..count {
        let (entry, after) = rest.split_at_checked(NAMESPACE_BYTES)?;
        let extents = u32_at(entry, 20)? as usize;
        let (list, after) = after.split_at_checked(extents.checked_mul(EXTENT_BYTES)?)?;
        rest = after;
        let half = |pair: &[u8]| u64::from(u16::from_le_bytes([pair[0], pair[1]]));
        let range = |e: &[u8]| GranuleRange { first: half(e), end: half(e) + half(&e[2..]) };
        let ranges: Vec<_> = list.chunks_exact(EXTENT_BYTES).map(range).collect();
        if ranges.iter().any(|range| range.first >= range.end || range.end > space.granules()) {
            return None;
        }
        table.namespaces.push(DriveNamespace {
            nsid: u32_at(entry, 0)?,
            blocks: u64_at(entry, 8)?,
            generation: u32_at(entry, 16)?,
            is_attached: u32_at(entry, 4)? & ATTACHED != 0,
            extents: space.extents(&ranges),
        });
    }
    table.check_invariants().is_ok().then_some(table)
}

/// Returns the table that the settings have; `None` if it was never written.
///
/// # Errors
/// [`DriveError::Config`] for a table of another capacity or block size, or one that is damaged.
pub(crate) fn load(
    settings: &NonVolatile,
    space: NamespaceSpace,
) -> Result<Option<NamespaceTable>, DriveError> {
    let bytes = settings.section(SettingsSection::Namespaces);
    if u32_at(bytes, 0) == Some(0) {
        return Ok(None);
    }
    let error =
        |what: String, allowed: &str| Err(DriveError::Config { what, allowed: allowed.to_owned() });
    match decode(bytes) {
        None => error("the table of namespaces is damaged".into(), "restore the file of settings"),
        Some(table) if table.space != space => {
            let (found, asked) = (table.space, space);
            let (units, blocks) = (found.units, found.unit_blocks);
            error(
                format!(
                    "the namespaces of the drive are parts of {units} sectors of {blocks} blocks, \
                     but it has {} of {}",
                    asked.units, asked.unit_blocks
                ),
                "open it with the over-provisioning and lba_bytes with which they were created",
            )
        }
        Some(table) => Ok(Some(table)),
    }
}

/// Replaces the table in the settings: all of it or nothing.
///
/// # Errors
/// [`DriveError::Sidecar`] or [`DriveError::Memory`] if the file of the settings cannot be replaced.
pub(crate) fn save(settings: &mut NonVolatile, table: &NamespaceTable) -> Result<(), DriveError> {
    settings.replace(SettingsSection::Namespaces, &encode(table))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespaces::layout::NamespaceLayout;

    #[test]
    fn a_table_survives_and_damage_is_found() {
        let space = NamespaceSpace { units: 5_001, unit_blocks: 8 };
        let layout = NamespaceLayout::of_sizes(&[Some(1 << 20), None]).unwrap();
        let mut table = NamespaceTable::new(space, &layout, 512).unwrap();
        table.remove(2);
        (2..=32).for_each(|nsid| table.add(nsid, 40, table.allocate(40).unwrap()));
        (2..=32).step_by(3).for_each(|nsid| table.remove(nsid));
        let blocks = table.unallocated_units() * 8;
        table.add(2, blocks, table.allocate(blocks).unwrap());
        table.set_attached(1, false);
        let bytes = encode(&table);
        assert_eq!(decode(&bytes), Some(table.clone()));
        for (at, value) in [(0, 2), (4, 33), (16, 3), (8, 1), (32, 0), (40, 0xff), (52, 200)] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            assert_eq!(decode(&damaged), None, "byte {at}");
        }
        assert_eq!(decode(&bytes[..60]), None);
    }
}
