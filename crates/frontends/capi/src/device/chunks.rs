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

/// The drive copies sectors by itself (`SLUICE_VECTOR_COPY`).
pub const SLUICE_VECTOR_CAN_COPY: u32 = 1;

/// Nothing is written in the chunk.
pub const SLUICE_CHUNK_FREE: u32 = 1;
/// It is full, or takes no more writes until it is erased.
pub const SLUICE_CHUNK_CLOSED: u32 = 2;
/// It is written in part; `write_pointer` says where writing goes on.
pub const SLUICE_CHUNK_OPEN: u32 = 4;
/// It is not to be used.
pub const SLUICE_CHUNK_OFFLINE: u32 = 8;

/// The shape of an open-channel drive. Set `size` to `sizeof(struct sluice_vector_geometry)` before asking.
///
/// The address of a sector is, from the highest bits on, its group, its parallel unit, its chunk and its
/// sector in the chunk, in so many bits each; `sluice_vector_address()` puts it together.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_vector_geometry {
    /// `sizeof(struct sluice_vector_geometry)`.
    pub size: usize,
    /// Groups (channels).
    pub groups: u32,
    /// Parallel units of a group.
    pub pus: u32,
    /// Chunks of a parallel unit.
    pub chunks: u32,
    /// Sectors of a chunk.
    pub sectors: u32,
    /// Bytes of a sector.
    pub sector_bytes: u32,
    /// Out-of-band bytes of a sector.
    pub oob_bytes: u32,
    /// Sectors that are written together at least: a write is of whole such units.
    pub ws_min: u32,
    /// Sectors that are best written together.
    pub ws_opt: u32,
    /// Sectors that must follow in the chunk before a sector can be read.
    pub mw_cunits: u32,
    /// Chunks that may be open at a time; 0 for no limit.
    pub max_open_chunks: u32,
    /// Addresses of a read or write at most: 64, or what the drive transfers at a time if that is less.
    pub max_addresses: u32,
    /// `SLUICE_VECTOR_CAN_COPY`.
    pub flags: u32,
    /// Bits of an address that are the group.
    pub group_bits: u32,
    /// Bits that are the parallel unit.
    pub pu_bits: u32,
    /// Bits that are the chunk.
    pub chunk_bits: u32,
    /// Bits that are the sector, the lowest.
    pub sector_bits: u32,
    /// The first parallel unit that may be used, counted through all groups: another than 0 of a part
    /// of a drive that another process serves.
    pub first_pu: u32,
    /// Parallel units from there on that may be used.
    pub pu_count: u32,
}

// SAFETY: begins with its size; numbers of 8 + 18 * 4 bytes, no padding.
unsafe impl ExtensibleStruct for sluice_vector_geometry {
    const NAME: &'static str = "struct sluice_vector_geometry";
}

/// Report of a drive about a chunk.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_chunk {
    /// The address of its first sector.
    pub address: u64,
    /// Sectors that can be written in it.
    pub sectors: u64,
    /// Sectors from its first on that are written.
    pub write_pointer: u64,
    /// `SLUICE_CHUNK_FREE`, `SLUICE_CHUNK_CLOSED`, `SLUICE_CHUNK_OPEN` or `SLUICE_CHUNK_OFFLINE`.
    pub state: u32,
    /// How worn it is, from 0 to 255.
    pub wear: u32,
}

/// Returns the geometry of an open-channel drive.
pub(crate) fn media(device: &IoDevice) -> Result<OpenChannelInfo, CallError> {
    let open = device.drive_info().and_then(|info| info.open_channel);
    open.ok_or_else(|| user_io::DirectError::NoVector { device: device.name().to_owned() }.into())
}

/// Says what shape an open-channel drive has.
///
/// @param device The device.
/// @param geometry Filled in as far as `geometry->size` reaches.
///
/// # Returns
///
/// 0, or `-EINVAL`, also for a `size` that no version had, or `-EOPNOTSUPP` for anything but an open-channel
/// drive without a target.
///
/// # Threads
///
/// Any.
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

/// Puts the address of a sector together.
///
/// @param device The device, an open-channel drive.
/// @param group Its group.
/// @param pu Its parallel unit in the group.
/// @param chunk Its chunk in the parallel unit.
/// @param sector Its place in the chunk.
/// @param address Where the address goes.
///
/// # Returns
///
/// 0, or `-EINVAL`, or `-ERANGE` for a sector that the drive does not have, or `-EOPNOTSUPP` as
/// `sluice_vector_get_geometry()`.
///
/// # Threads
///
/// Any.
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

/// Asks an open-channel drive about its chunks.
///
/// @param device The device.
/// @param first The first chunk, counted through all parallel units of all groups.
/// @param count How many.
/// @param chunks Where they go: as many places.
///
/// # Returns
///
/// 0, or `-EINVAL`, `-ERANGE` for chunks that the drive does not have, `-EOPNOTSUPP` as
/// `sluice_vector_get_geometry()`, or `-EIO`, `-ETIMEDOUT`, `-ECONNRESET` where the drive does not answer.
/// What is in `chunks` after a failure means nothing.
///
/// # Threads
///
/// Any. It waits for a command of the drive.
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
