//! [`IoRange`]: the part of a device that a job accesses.

use block::Limits;

use crate::job::JobSpec;
use crate::units::Size;

/// An extent of the device in bytes; it starts at a sector boundary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoRange {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
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
    let (device, sector) = (limits.bytes(), u64::from(limits.sector_bytes));
    if !sector.is_power_of_two() || limits.max_sectors == 0 {
        return Err(format!("the device has sectors of {sector} bytes"));
    }
    if spec.replay.is_some() {
        return Ok(IoRange { offset: 0, bytes: device });
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
    let start = offset(spec.range.offset)
        .checked_add(offset(spec.range.offset_increment).saturating_mul(u64::from(clone)))
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
    Ok(IoRange { offset: start, bytes })
}
