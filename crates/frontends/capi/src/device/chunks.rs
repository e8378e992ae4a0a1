//! Geometry, physical addresses and chunk information of an open-channel drive ([LightNVM17 §3.2,
//! §3.3]; \[OC20\], Geometry and Chunk Information).

use std::ffi::c_int;

use driver::OpenChannelInfo;
use nvme::Address;
use user_io::IoDevice;

use crate::device::{object_ref, sluice_device};
use crate::error::{CallError, call};
use crate::options::{ExtensibleStruct, write_struct};
use crate::vector::io::ADDRESSES_MAX;

/// The drive supports copy (`SLUICE_VECTOR_COPY`).
pub const SLUICE_VECTOR_CAN_COPY: u32 = 1;

/// The chunk is free: no sector is written.
pub const SLUICE_CHUNK_FREE: u32 = 1;
/// The chunk is full, or accepts no writes until it is erased.
pub const SLUICE_CHUNK_CLOSED: u32 = 2;
/// The chunk is partially written; the next write goes to `write_pointer`.
pub const SLUICE_CHUNK_OPEN: u32 = 4;
/// The chunk is offline: it must not be used.
pub const SLUICE_CHUNK_OFFLINE: u32 = 8;

/// Geometry of an open-channel drive. Set `size` to `sizeof(struct sluice_vector_geometry)` before
/// the call.
///
/// The address of a sector consists of, from the highest bits to the lowest: group, parallel unit,
/// chunk, and sector in the chunk. The members `*_bits` are the widths of these fields.
/// `sluice_vector_address()` builds an address.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_vector_geometry {
    /// `sizeof(struct sluice_vector_geometry)`.
    pub size: usize,
    /// Number of groups (channels).
    pub groups: u32,
    /// Number of parallel units per group.
    pub pus: u32,
    /// Number of chunks per parallel unit.
    pub chunks: u32,
    /// Number of sectors per chunk.
    pub sectors: u32,
    /// Sector size in bytes.
    pub sector_bytes: u32,
    /// Number of out-of-band bytes per sector.
    pub oob_bytes: u32,
    /// Minimum write size in sectors: a write consists of whole units of this size.
    pub ws_min: u32,
    /// Optimal write size in sectors.
    pub ws_opt: u32,
    /// Number of sectors that must be written after a sector in its chunk before that sector can be
    /// read.
    pub mw_cunits: u32,
    /// Maximum number of open chunks; 0 for no limit.
    pub max_open_chunks: u32,
    /// Maximum number of addresses of a read or write: 64, or less if the drive's maximum transfer
    /// size is smaller.
    pub max_addresses: u32,
    /// `SLUICE_VECTOR_CAN_COPY`, or 0.
    pub flags: u32,
    /// Width of the group field of an address, in bits.
    pub group_bits: u32,
    /// Width of the parallel unit field, in bits.
    pub pu_bits: u32,
    /// Width of the chunk field, in bits.
    pub chunk_bits: u32,
    /// Width of the sector field, in bits.
    pub sector_bits: u32,
    /// First parallel unit that may be used, counted through all groups. Nonzero only for a
    /// partition of a drive that another process serves.
    pub first_pu: u32,
    /// Number of parallel units from `first_pu` on that may be used.
    pub pu_count: u32,
}

// SAFETY: begins with its size; numbers of 8 + 18 * 4 bytes, no padding.
unsafe impl ExtensibleStruct for sluice_vector_geometry {
    const NAME: &'static str = "struct sluice_vector_geometry";
}

/// A drive's report about a chunk.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_chunk {
    /// Address of its first sector.
    pub address: u64,
    /// Number of sectors that can be written.
    pub sectors: u64,
    /// Number of sectors that are written, from the first one on.
    pub write_pointer: u64,
    /// `SLUICE_CHUNK_FREE`, `SLUICE_CHUNK_CLOSED`, `SLUICE_CHUNK_OPEN` or `SLUICE_CHUNK_OFFLINE`.
    pub state: u32,
    /// Wear index, 0 to 255.
    pub wear: u32,
}

/// Returns the geometry of an open-channel drive.
pub(crate) fn media(device: &IoDevice) -> Result<OpenChannelInfo, CallError> {
    let open = device.drive_info().and_then(|info| info.open_channel);
    open.ok_or_else(|| user_io::DirectError::NoVector { device: device.name().to_owned() }.into())
}

/// Returns the geometry of an open-channel drive.
///
/// @param device The device.
/// @param geometry Receives the geometry, up to `geometry->size` bytes.
///
/// # Returns
///
/// 0, or `-EINVAL` if an argument is `NULL` or `geometry->size` is not a size of any version, or
/// `-E2BIG` if it is larger than 4096, or `-EOPNOTSUPP` if the device is not an open-channel drive
/// without a target.
///
/// # Threads
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_vector_get_geometry(
    device: *const sluice_device,
    geometry: *mut sluice_vector_geometry,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let device = &unsafe { object_ref("device", device) }?.device;
        let open = media(device)?;
        let (g, format) = (open.geometry, open.format);
        let (first_pu, pu_count) = match device.session_grant().map(|granted| granted.span) {
            Some(share_proto::PartitionSpan::ParallelUnits { first, count }) => (first, count),
            _ => (0, g.total_pus()),
        };
        let value = sluice_vector_geometry {
            size: 0,
            groups: g.groups,
            pus: g.pus,
            chunks: g.chunks,
            sectors: g.sectors,
            sector_bytes: g.sector_bytes,
            oob_bytes: g.oob_bytes,
            ws_min: g.ws_min,
            ws_opt: g.ws_opt,
            mw_cunits: g.mw_cunits,
            max_open_chunks: open.max_open_chunks,
            max_addresses: device.limits().max_sectors.min(ADDRESSES_MAX),
            flags: if open.can_copy { SLUICE_VECTOR_CAN_COPY } else { 0 },
            group_bits: format.group_bits.into(),
            pu_bits: format.pu_bits.into(),
            chunk_bits: format.chunk_bits.into(),
            sector_bits: format.sector_bits.into(),
            first_pu,
            pu_count,
        };
        // SAFETY: as above.
        unsafe { write_struct("geometry", geometry, &value) }?;
        Ok(0)
    })
}

/// Builds the address of a sector.
///
/// @param device The device, an open-channel drive.
/// @param group Group.
/// @param pu Parallel unit in the group.
/// @param chunk Chunk in the parallel unit.
/// @param sector Sector in the chunk.
/// @param address Receives the address.
///
/// # Returns
///
/// 0, or `-EINVAL` if a pointer is `NULL`, or `-ERANGE` if the drive has no such sector, or
/// `-EOPNOTSUPP` if the device is not an open-channel drive without a target.
///
/// # Threads
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_vector_address(
    device: *const sluice_device,
    group: u32,
    pu: u32,
    chunk: u32,
    sector: u32,
    address: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let device = &unsafe { object_ref("device", device) }?.device;
        if address.is_null() {
            return Err(CallError::Null("address"));
        }
        let open = media(device)?;
        let parts = Address { group, pu, chunk, sector };
        if !open.geometry.contains(parts) {
            return Err(CallError::NoSector(parts));
        }
        // SAFETY: not NULL, and writable as the header demands.
        unsafe { address.write(open.format.pack(parts).0) };
        Ok(0)
    })
}

/// Reads the chunk information of an open-channel drive.
///
/// @param device The device.
/// @param first Index of the first chunk, counted through all parallel units of all groups.
/// @param count Number of chunks.
/// @param chunks Receives the reports: an array of `count` elements.
///
/// # Returns
///
/// 0, or `-EINVAL` if a pointer is `NULL`, or `-ERANGE` if the drive does not have all of these
/// chunks, or `-EOPNOTSUPP` if the device is not an open-channel drive without a target, or `-EIO`,
/// `-ETIMEDOUT` or `-ECONNRESET` if the drive does not answer. After a failure the contents of
/// `chunks` are undefined.
///
/// # Threads
///
/// Any thread. The call waits for admin commands of the drive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_vector_get_chunks(
    device: *const sluice_device,
    first: u64,
    count: u64,
    chunks: *mut sluice_chunk,
) -> c_int {
    /// Chunk descriptors read at a time.
    const BATCH: u64 = 256;
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let device = &unsafe { object_ref("device", device) }?.device;
        if chunks.is_null() && count > 0 {
            return Err(CallError::Null("chunks"));
        }
        let all = media(device)?.geometry.total_chunks();
        if first.checked_add(count).is_none_or(|end| end > all) {
            let error = driver::DriverError::NoSuchChunks { first, count, chunks: all };
            return Err(user_io::DirectError::from(error).into());
        }
        let mut done = 0;
        while done < count {
            let found = device.chunks(first + done, (count - done).min(BATCH))?;
            for chunk in &found {
                let value = sluice_chunk {
                    address: chunk.slba.get(),
                    sectors: chunk.cnlb.get(),
                    write_pointer: chunk.wp.get(),
                    state: chunk.state.into(),
                    wear: chunk.wear_index.into(),
                };
                // SAFETY: `done` is less than `count`, which is the capacity that the header
                // demands; the drive returns as many descriptors as requested.
                unsafe { chunks.add(done as usize).write(value) };
                done += 1;
            }
        }
        Ok(0)
    })
}
