//! [`DevicePmr`]: the persistent memory region that hosts map ([NVMe1.4 §4.8]).
//!
//! Hosts store to the region and persist what they have stored, without commands. The drive creates
//! it, reports it in registers, and cuts its power. Commands cannot name addresses in it (PMRCAP
//! has no RDS, WDS and CMSS). Hosts that are confined to a part of the drive have no region; other
//! processes have it if their policy says so ([`AccessPolicy::persistent_region`]).
//!
//! [`AccessPolicy::persistent_region`]: crate::AccessPolicy::persistent_region
//!
//! # Persistence
//!
//! A store is persistent when its cache lines were written back and the host has read PMRSTS after
//! that (PMRCAP.PMRWBM). At a power cut, each aligned word of 8 bytes in a line that is not
//! persistent survives or not, by draws of the drive's seed. What is persistent survives power
//! cuts, controller resets and, beside an image, the process (`docs/format/sidecar.md`). A clean
//! shutdown persists everything.
//!
//! # Registers
//!
//! A host with [registers](crate::RegisterConfig) enables the region by PMRCTL.EN; neither a
//! controller reset nor a shutdown changes that. For other hosts it is enabled. PMRSTS reads as
//! ones after the host was detached, or the drive was shut down or powered off: a host must not
//! access the region then.

use std::sync::Arc;

use media::{DataStore, MediaConfig};
use mem::PersistentMemory;
use nvme::register::{PMRCAP, PMRCTL, PMREBS, PMRMSC, PMRSTS, PMRSWTP};
use nvme::{PmrCap, PmrControl, PmrStatus, PmrThroughput};
use rng::Rng;
use serde::{Deserialize, Serialize};
use time::Nanos;
use transport::{Port, PortRegion, RegionCosts, RegionCounters};

use crate::error::DriveError;
use crate::persistence::sidecar::{self, SidecarKind};
use crate::{DriveConfig, PmrConfig, PmrStore};

/// The base address register of the region.
const BAR: u8 = 4;
/// Time that a host waits for the region, in units of 500 ms. It is ready at once.
const TIMEOUT_500MS: u8 = 1;
/// The stream of the drive's seed from which power cuts of the region draw.
const POWER_CUTS: u64 = 0x504d_5220_6375_7473;

/// Counters of a persistent memory region. Those of accesses count the hosts in the drive's
/// process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmrStats {
    /// Cache lines that hosts have stored to.
    pub lines_stored: u64,
    /// Persists of hosts.
    pub persists: u64,
    /// Words of 8 bytes that power cuts have reverted.
    pub words_lost: u64,
}

#[derive(Debug)]
pub(crate) struct DevicePmr {
    memory: PersistentMemory,
    costs: RegionCosts,
    counters: Arc<RegionCounters>,
    words_lost: u64,
    power_cuts: Rng,
}

/// Returns where the drive keeps its data, which is where the region is.
fn data_store(config: &DriveConfig) -> &DataStore {
    match &config.media {
        MediaConfig::Nand(nand) => &nand.data,
        MediaConfig::Pcm(pcm) => &pcm.data,
        MediaConfig::Null { .. } => &DataStore::None,
    }
}

/// Returns the seed of the drive's power cuts.
fn seed(config: &DriveConfig) -> u64 {
    match &config.media {
        MediaConfig::Nand(nand) => nand.seed,
        MediaConfig::Pcm(_) | MediaConfig::Null { .. } => 0,
    }
}

/// Returns the identity of the drive, which its sidecar file has: a digest of its serial number.
fn identity(config: &DriveConfig) -> u64 {
    // FNV-1a, 64 bits.
    config.name.bytes().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Opens emulated memory: beside the image if the drive has one.
fn open_emulated(config: &DriveConfig, bytes: usize) -> Result<PersistentMemory, DriveError> {
    let (kind, identity) = (SidecarKind::Pmr, identity(config));
    let beside = |image| sidecar::sidecar_path(image, "pmr");
    let (path, region) = match data_store(config) {
        DataStore::File(image) | DataStore::DurableFile(image) => {
            let path = beside(image);
            let region = sidecar::open_or_create(&path, kind, bytes, identity)?;
            (path, region)
        }
        DataStore::Overlay(image) => {
            let path = beside(image);
            let region = sidecar::open_overlay(&path, kind, bytes, identity)?;
            (path, region)
        }
        DataStore::Memory | DataStore::Preallocated(_) | DataStore::None => {
            return PersistentMemory::new(bytes).map_err(DriveError::Memory);
        }
    };
    PersistentMemory::over(region).map_err(|source| DriveError::PersistentMemory { path, source })
}

impl DevicePmr {
    /// Creates the region at power-on; `kept` is the region at the power cut.
    ///
    /// # Errors
    /// Out of memory, a file that is not the region of this drive, or a DAX file that cannot be
    /// mapped as such.
    pub(crate) fn power_on(
        config: &DriveConfig,
        kept: Option<DevicePmr>,
    ) -> Result<Option<DevicePmr>, DriveError> {
        let Some(PmrConfig { store, costs }) = &config.pmr else { return Ok(None) };
        if kept.is_some() {
            return Ok(kept);
        }
        let memory = match store {
            PmrStore::Emulated { bytes } => open_emulated(config, *bytes as usize)?,
            PmrStore::Dax { path } => {
                let fail = |source| DriveError::PersistentMemory { path: path.clone(), source };
                let memory = PersistentMemory::map_dax(path).map_err(fail)?;
                if !PmrConfig::is_size(memory.len() as u64) {
                    return Err(DriveError::Config {
                        what: format!("{} has {} bytes", path.display(), memory.len()),
                        allowed: "a DAX file of a multiple of 4 KiB, up to 64 GiB".into(),
                    });
                }
                memory
            }
        };
        Ok(Some(DevicePmr {
            memory,
            costs: *costs,
            counters: Arc::default(),
            words_lost: 0,
            power_cuts: Rng::new(seed(config)).fork(POWER_CUTS),
        }))
    }

    /// Gives the region to a host. It is enabled unless the host does that by its registers.
    pub(crate) fn attach(&self, port: &Port) {
        let (memory, costs) = (self.memory.clone(), self.costs);
        port.set_persistent_region(PortRegion { memory, costs, counters: self.counters.clone() });
        publish(port, PmrStatus { not_ready: port.has_registers(), ..PmrStatus::default() });
        if !port.has_registers() {
            port.set_register(PMRCTL, PmrControl { enabled: true }.to_value());
        }
    }

    /// Whether another process can map the region.
    pub(crate) fn can_share(&self) -> bool {
        self.memory.share().is_ok_and(|images| images.is_some())
    }

    /// Cuts the power of the region.
    pub(crate) fn cut_power(&mut self) {
        self.words_lost += self.memory.cut_power(&mut self.power_cuts);
    }

    /// Clears the region, which is persistent at once.
    pub(crate) fn clear(&self) {
        self.memory.clear();
    }

    /// Persists everything, and waits until it is on the file's device.
    ///
    /// # Errors
    /// The error that `fdatasync(2)` returns.
    pub(crate) fn shut_down(&self) -> std::io::Result<()> {
        self.memory.persist_all();
        self.memory.sync()
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> PmrStats {
        let (lines_stored, persists) = self.counters.counts();
        PmrStats { lines_stored, persists, words_lost: self.words_lost }
    }

    /// Resets the counters.
    pub(crate) fn reset_stats(&mut self) {
        self.counters.reset();
        self.words_lost = 0;
    }
}

/// Returns the capabilities of every region, PMRCAP.
fn capabilities() -> PmrCap {
    PmrCap { bar: BAR, persists_by_status: true, timeout: TIMEOUT_500MS, ..PmrCap::default() }
}

/// Returns the throughput of stores with these costs; 0 if they take no time.
fn throughput(costs: RegionCosts) -> PmrThroughput {
    let line = PersistentMemory::LINE_BYTES as u64;
    let per_sec = Nanos::from_secs(1).0 * line;
    PmrThroughput::from_bytes_per_sec(per_sec.checked_div(costs.store.0).unwrap_or(0))
}

/// Writes the registers of the region that only the drive may write, if they differ. Returns
/// whether any did. The port has the region.
pub(crate) fn publish(port: &Port, status: PmrStatus) -> bool {
    let Some(region) = port.persistent_region() else { return false };
    let control = PmrControl::from_value(port.register(PMRCTL));
    let registers = [
        (PMRCAP, capabilities().to_value()),
        // Reserved bits read as zeros.
        (PMRCTL, control.to_value()),
        (PMRSTS, status.to_value()),
        // There is no elasticity buffer, and no memory space for commands.
        (PMREBS, 0),
        (PMRSWTP, throughput(region.costs).to_value()),
        (PMRMSC, 0),
        (PMRMSC + 4, 0),
    ];
    let mut changed = false;
    for (offset, value) in registers {
        if port.register(offset) != value {
            port.set_register(offset, value);
            changed = true;
        }
    }
    changed
}

/// Has the registers of the region read as ones for a host that must not access it any more.
pub(crate) fn remove(port: &Port) {
    if port.persistent_region().is_some() {
        for offset in [PMRCAP, PMRCTL, PMRSTS, PMREBS, PMRSWTP, PMRMSC, PMRMSC + 4] {
            port.set_register(offset, u32::MAX);
        }
    }
}

/// Returns whether a host has the region enabled: Sanitize is refused then.
pub(crate) fn is_enabled(port: &Port) -> bool {
    port.persistent_region().is_some() && PmrControl::from_value(port.register(PMRCTL)).enabled
}
