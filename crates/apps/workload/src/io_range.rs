//! [`IoRange`]: the part of a device that a job accesses.

use block::Limits;

use crate::job::JobSpec;
use crate::key_spec::KeySpec;
use crate::runner::verify;
use crate::units::Size;

/// An extent of the device in bytes; it starts at a unit boundary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoRange {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Bytes per addressed unit: of a sector, or of a record's value.
    pub(crate) unit_bytes: u64,
}

/// Returns the largest block size of a job, in bytes.
pub(crate) fn largest_block(spec: &JobSpec) -> u64 {
    crate::parse::options::used_directions(&spec.pattern.access)
        .flat_map(|d| spec.pattern.block_sizes[d as usize].iter().map(|(b, _)| *b))
        .max()
        .unwrap_or(0)
}

/// Returns the part of the device that clone `clone` of a job accesses.
pub(crate) fn io_range(spec: &JobSpec, clone: u32, limits: &Limits) -> Result<IoRange, String> {
    if let Some(keys) = &spec.keys {
        return key_range(spec, keys, clone).map_err(|(_, what)| what);
    }
    let (device, sector) = (limits.bytes(), u64::from(limits.sector_bytes));
    if !sector.is_power_of_two() || limits.max_sectors == 0 {
        return Err(format!("the device has sectors of {sector} bytes"));
    }
    // Units and chunks are chosen by the source of the job.
    if spec.replay.is_some() || spec.units.is_some() {
        return Ok(IoRange { offset: 0, bytes: device, unit_bytes: sector });
    }
    for direction in crate::parse::options::used_directions(&spec.pattern.access) {
        for (bytes, _) in &spec.pattern.block_sizes[direction as usize] {
            if bytes % sector != 0 {
                return Err(format!(
                    "a {} block of {bytes} bytes is not in whole sectors of {sector} bytes",
                    direction.name()
                ));
            }
        }
    }
    let offset = |size: Size| match size {
        Size::Bytes(bytes) => bytes,
        percent => percent.resolve(device) / sector * sector,
    };
    let increment = offset(spec.range.offset_increment);
    let start = offset(spec.range.offset)
        .checked_add(increment.saturating_mul(u64::from(clone)))
        .filter(|o| *o < device)
        .ok_or_else(|| format!("its offset is past the end of the device ({device} bytes)"))?;
    if start % sector != 0 {
        return Err(format!("its offset of {start} bytes is not in whole sectors of {sector}"));
    }
    let rest = device - start;
    let bytes = match spec.range.size {
        None => rest,
        Some(Size::Bytes(bytes)) if bytes > rest => {
            return Err(format!(
                "its {bytes} bytes from {start} on are past the end of the device ({device} bytes)"
            ));
        }
        Some(size) => size.resolve(device).min(rest),
    };
    Ok(IoRange { offset: start, bytes, unit_bytes: sector })
}

/// Returns the records that clone `clone` of a job on keys accesses, as an extent of their values.
///
/// # Errors
/// The option that does not fit, and a description.
pub(crate) fn key_range(
    spec: &JobSpec,
    keys: &KeySpec,
    clone: u32,
) -> Result<IoRange, (&'static str, String)> {
    let unit = spec.value_bytes();
    let sizes = &spec.pattern.block_sizes;
    let mut used = crate::parse::options::used_directions(&spec.pattern.access);
    if unit == 0 || !used.all(|d| matches!(sizes[d as usize][..], [(bytes, _)] if bytes == unit)) {
        return Err(("bs", "values of records have one size: `bs=SIZE`".to_owned()));
    }
    if spec.integrity.verify && unit < verify::HEADER as u64 {
        let least = verify::HEADER;
        return Err(("verify", format!("`verify` needs values (`bs`) of at least {least} bytes")));
    }
    if keys.record_count == 0 {
        return Err(("ycsb", "a job on keys needs `recordcount=NUMBER`".to_owned()));
    }
    if keys.ycsb.is_some() {
        let bytes = keys.addressed_records(spec.numjobs).saturating_mul(unit);
        return Ok(IoRange { offset: 0, bytes, unit_bytes: unit });
    }
    let (records, all) = (keys.record_count, keys.record_count.saturating_mul(unit));
    let whole = |name, size: Size| match size {
        Size::Bytes(bytes) if bytes % unit != 0 => {
            Err((name, format!("`{name}` of {bytes} bytes is not in whole values of {unit} bytes")))
        }
        Size::Bytes(bytes) => Ok(bytes),
        percent => Ok(percent.resolve(all) / unit * unit),
    };
    let increment = whole("offset_increment", spec.range.offset_increment)?;
    let first = whole("offset", spec.range.offset)?;
    let start = first
        .checked_add(increment.saturating_mul(clone.into()))
        .filter(|at| *at < all)
        .ok_or_else(|| {
            let option = if first < all { "offset_increment" } else { "offset" };
            (option, format!("`{option}` is past the last of {records} records of {unit} bytes"))
        })?;
    let rest = all - start;
    let bytes = match spec.range.size {
        None => rest,
        Some(size @ Size::Bytes(_)) => {
            let bytes = whole("size", size)?;
            if bytes > rest {
                let what = format!(
                    "`size` of {bytes} bytes from {start} on is past the last of {records} records \
                     of {unit} bytes"
                );
                return Err(("size", what));
            }
            bytes
        }
        Some(size) => whole("size", size)?.min(rest),
    };
    if bytes == 0 {
        return Err(("size", "`size` has no whole record".to_owned()));
    }
    Ok(IoRange { offset: start, bytes, unit_bytes: unit })
}
