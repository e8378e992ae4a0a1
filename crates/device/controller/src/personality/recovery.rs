//! Recovery of a drive's FTL from its media, when the drive is powered on; no time passes.

use ftl::{
    CapacityError, ChunkReport, FlashGeometry, Ftl, FtlConfig, LineMetadata, NewFtlError, Oob,
    Recovery, RecoveryError, RecoveryOp, RecoveryOpKind, RecoveryOpResult, SectorAddressing,
};
use media::{ChunkId, ChunkState, DataStore, Nand, UnitInChunk};
use nvme::Status;

use crate::personality::spaces::SpaceUnits;
use crate::{DriveConfig, WriteBuffer};

/// Returns the number of chunks of parallel units that were good when the drive was new. A chunk that
/// failed later has been erased or written.
pub(crate) fn factory_good_chunks(nand: &Nand, units: SpaceUnits) -> u32 {
    let is_own = |chunk: ChunkId| units.contains(nand.layout().pu_of(chunk));
    let grown = |info: media::ChunkInfo| info.wear > 0 || info.write_pointer > 0;
    let own = nand.chunks().filter(|(chunk, _)| is_own(*chunk));
    own.filter(|(_, i)| i.state != ChunkState::Offline || grown(*i)).count() as u32
}

/// Returns the state of a chunk for the recovery of the FTL that has these parallel units.
pub(super) fn scan_chunk(
    nand: &Nand,
    units: SpaceUnits,
    shape: &FlashGeometry,
    chunk: ChunkId,
) -> ChunkReport {
    if !units.contains(shape.pu_of(chunk)) {
        return ChunkReport::NotOwned;
    }
    let Some(info) = nand.chunk_info(chunk) else { return ChunkReport::Bad };
    match info.state {
        ChunkState::Free => ChunkReport::Free,
        ChunkState::Open => ChunkReport::Open(info.write_pointer),
        ChunkState::Closed if info.write_pointer == shape.sectors_per_chunk => {
            ChunkReport::Closed(info.write_pointer)
        }
        ChunkState::Closed => ChunkReport::ProgramFailed(info.write_pointer),
        ChunkState::Offline => ChunkReport::Bad,
    }
}

/// Lines at most that an FTL keeps for moves about which the rules have ended with an error.
const UNCONFIRMED_LINES_MAX: u32 = 2;

/// Changes the configuration of the FTL of a drive to that of one whose sectors have names.
pub fn name_sectors(ftl: &mut FtlConfig) {
    ftl.addressing = SectorAddressing::Named { unconfirmed_lines_max: UNCONFIRMED_LINES_MAX };
    ftl.line_metadata = LineMetadata::Off;
}

/// Returns the configuration of a drive's FTL. `is_named` says whether its sectors have names.
///
/// # Errors
/// A setting that the FTL of a drive cannot have.
pub(super) fn ftl_config(
    nand: &Nand,
    drive: &DriveConfig,
    is_named: bool,
) -> Result<FtlConfig, NewFtlError> {
    let (mut config, cache) = (drive.ftl, drive.write_buffer);
    if nand.config().data == DataStore::None && config.map_cache_sectors > 0 {
        return Err(CapacityError::MapCacheWithoutData.into());
    }
    if config.vector_copy {
        return Err(CapacityError::VectorCopyInDrive.into());
    }
    config.addressing = SectorAddressing::Logical;
    if is_named {
        name_sectors(&mut config);
    }
    if let WriteBuffer::Volatile { bytes } | WriteBuffer::PowerLossProtected { bytes } = cache {
        let sector_bytes = u64::from(nand.layout().sector_bytes());
        let sectors = (bytes / sector_bytes).min(1 << 24) as u32;
        config.write_buffer_sectors = config.write_buffer_sectors.max(sectors);
    }
    Ok(config)
}

/// Creates an FTL on parallel units that have no data, although they may have been used. Its capacity
/// is that of `good_when_new` good chunks.
///
/// # Errors
/// The drive has too few good chunks left, or no memory.
pub(super) fn erased_ftl(
    nand: &Nand,
    units: SpaceUnits,
    config: FtlConfig,
    good_when_new: u32,
) -> Result<Ftl, NewFtlError> {
    let shape = FlashGeometry::from_geometry(&nand.config().host_geometry());
    let usable = |chunk| match scan_chunk(nand, units, &shape, chunk) {
        unusable @ (ChunkReport::Bad | ChunkReport::NotOwned) => unusable,
        _ => ChunkReport::Free,
    };
    Ftl::new_over_used_flash(shape, config, usable, good_when_new)
}

/// Recovers the FTL of parallel units from the media; see [`ftl::Recovery`].
pub(super) fn recover(
    nand: &mut Nand,
    units: SpaceUnits,
    shape: FlashGeometry,
    config: FtlConfig,
) -> Result<Ftl, RecoveryError> {
    let chunks = shape.chunks().map(|c| scan_chunk(nand, units, &shape, c)).collect();
    let mut recovery = Recovery::new(shape, config, chunks, factory_good_chunks(nand, units))?;
    loop {
        let jobs = recovery.next_ops();
        if jobs.is_empty() {
            return recovery.finish();
        }
        for job in jobs {
            execute_recovery_job(nand, &shape, &job, &mut recovery);
        }
    }
}

/// Executes a step that the recovery requests, without advancing time.
fn execute_recovery_job(
    nand: &mut Nand,
    shape: &FlashGeometry,
    job: &RecoveryOp,
    recovery: &mut Recovery,
) {
    let size = shape.sector_bytes as usize;
    match &job.action {
        RecoveryOpKind::Pad { chunk, sector, bytes } => {
            let padded = program_padding(nand, shape, *chunk, *sector, bytes);
            let status = padded.map_or_else(|e| e.status(), |()| Status::SUCCESS);
            recovery.complete(job.id, RecoveryOpResult::Padded(status));
        }
        RecoveryOpKind::ReadOob { phys } | RecoveryOpKind::ReadData { phys } => {
            let (mut failed, mut oob) = (0, [[0; Oob::BYTES]; 64]);
            let wants_data = matches!(job.action, RecoveryOpKind::ReadData { .. });
            let mut data = vec![0; if wants_data { job.count as usize * size } else { 0 }];
            for i in 0..job.count {
                let phys = *phys + i;
                if nand.check_read(phys).is_err() {
                    failed |= 1 << i;
                } else if wants_data {
                    nand.read_bytes(phys, &mut data[i as usize * size..][..size]);
                } else {
                    nand.oob(phys, &mut oob[i as usize]);
                }
            }
            let oob = &oob[..if wants_data { 0 } else { job.count as usize }];
            recovery.complete(job.id, RecoveryOpResult::Read { failed, oob, data: &data });
        }
    }
}

/// Programs padding with the given contents.
fn program_padding(
    nand: &mut Nand,
    shape: &FlashGeometry,
    chunk: ChunkId,
    sector: u32,
    bytes: &[u8],
) -> Result<(), media::MediaError> {
    let unit = sector / shape.ws_opt;
    let first = nand.layout().unit_start(chunk, UnitInChunk(unit));
    let mut sectors = bytes.chunks(shape.sector_bytes as usize);
    for phys in first.run(shape.ws_opt) {
        let mut contents = sectors.next().unwrap_or_default().to_vec();
        contents.resize(shape.sector_bytes as usize, 0);
        nand.stage_bytes(phys, &contents)?;
        nand.set_oob(phys, &RecoveryOp::PADDING.encode())?;
    }
    nand.begin_program(chunk, UnitInChunk(unit))?;
    nand.complete_program(chunk, UnitInChunk(unit))
}
