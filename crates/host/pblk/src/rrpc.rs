//! [`Rrpc`]: the sector target of [Thesis15 ch. 6 §4.3]: round robin over parallel units, garbage
//! collection with a cost of valid sectors and wear, ordered overlapping requests, and a map that
//! the drive keeps.
//!
//! It is a configuration of existing parts: [`Pblk`] on a drive with a device L2P, with
//! [`VictimPolicyKind::CostWear`](ftl::VictimPolicyKind) and wear leveling unless configured
//! otherwise ([`Rrpc::config`]), behind [`OverlapSerializer`].
//!
//! Invariants: those of [`Pblk`]. Requests that overlap take effect in the order of submission.
//! Opening reads the device L2P and the journal only, and pads open chunks.
//!
//! A flush sends trims to the drive (Map Trim) instead of writing map pages. A drive written by
//! `pblk` is rejected, and vice versa: the journal records its owner.
//!
//! Changes behind the target's back:
//! - If all chunks were reset, the drive is new; sequence numbers start after every trim that the
//!   device L2P records.
//! - A device L2P that was cleared although data exists, or that refers to unwritten or foreign
//!   sectors, is rejected.
//! - A reset of some chunks is not detected; the device L2P drops their entries, as after a trim.
//!
//! A drive has one device L2P, so only one target may write logical addresses to the out-of-band
//! bytes: one `rrpc`, or any number of `pblk`.

use std::collections::BTreeSet;

use block::{BlockDevice, Completion};
use driver::{ControllerHandle, ControllerInfo, DriverError, MediaEvent, QueuePair};
use ftl::{
    ActivePusError, ControlChange, ControlError, Ftl, FtlConfig, FtlStats, LineMetadata,
    RecoveryStats, VictimPolicyKind,
};
use nvme::{Address, ChunkDescriptor, ChunkId, DeviceL2pLog, VendorExtensions};
use serde::{Deserialize, Serialize};
use time::Component;

use super::invariants::{PblkViolation, require_eq};
use super::overlap::{OverlapSerializer, OverlapStats, SavedOrder};
use super::pblk::{DriveQueue, Pblk, PblkError, PblkHealth, SavedPblk};
use lnvm::ScrubConfig;

/// Contents of the device L2P, read after the last write command: the entries of all logical
/// addresses ([`driver::ControllerHandle::dual_map`]), and the totals
/// ([`driver::ControllerHandle::map_totals`]).
#[derive(Clone, Copy, Debug)]
pub struct DeviceL2pEntries<'a> {
    /// The location of every logical sector; `None` if it is not mapped.
    pub entries: &'a [Option<Address>],
    /// Counters of the map.
    pub totals: DeviceL2pLog,
}

/// Why a drive cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum RrpcError {
    /// The drive has no device L2P.
    #[error(
        "drive {serial} has no device L2P, which rrpc recovers from: set device_l2p = true in the \
         drive, or use pblk"
    )]
    NoMap {
        /// Serial number of the drive.
        serial: String,
    },
    /// The device L2P is incomplete.
    #[error("{given} map entries are given, but the device L2P has {entries}")]
    MapLength {
        /// Number of entries given.
        given: usize,
        /// Number of entries of the drive's map.
        entries: u64,
    },
    /// The error of the underlying pblk.
    #[error(transparent)]
    Pblk(#[from] PblkError),
}

/// A block device with an FTL on the host and its map in the drive. [`Rrpc::open`] creates one.
#[derive(Debug)]
pub struct Rrpc {
    device: OverlapSerializer<Pblk>,
}

/// The state of an idle device, as read from its saved form. [`Rrpc::restore`] takes it.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedRrpc<'a> {
    #[serde(borrow)]
    pblk: SavedPblk<'a>,
    order: SavedOrder,
}

impl Rrpc {
    /// Returns the configuration of [Thesis15 ch. 6 §4.3]; other fields have their defaults.
    pub fn config() -> FtlConfig {
        FtlConfig {
            victim_policy: VictimPolicyKind::CostWear,
            dynamic_wear_leveling: true,
            line_metadata: LineMetadata::Off,
            ..FtlConfig::default()
        }
    }

    /// Returns the state to be saved, as [`Pblk::state_to_save`] does.
    pub fn state_to_save(&self) -> Option<SavedRrpc<'_>> {
        let (pblk, order) = self.device.state_to_save()?;
        Some(SavedRrpc { pblk: pblk.state_to_save()?, order })
    }

    /// Takes over the state of another device, as [`Pblk::restore`] does.
    pub fn restore(&mut self, SavedRrpc { pblk, order }: SavedRrpc<'_>) -> bool {
        self.device.restore(order, |device| device.restore(pblk))
    }

    /// Opens the drive that `info` describes, through `port`, with the contents of its device L2P;
    /// otherwise as [`Pblk::open`].
    ///
    /// # Errors
    /// [`RrpcError`].
    pub fn open(
        info: &ControllerInfo,
        chunks: &[ChunkDescriptor],
        map: DeviceL2pEntries<'_>,
        queue: DriveQueue,
        config: FtlConfig,
        progress: &mut dyn FnMut(),
    ) -> Result<Rrpc, RrpcError> {
        Rrpc::open_on(info, chunks, &|_| true, map, queue, config, progress)
    }

    /// Opens the device on the chunks for which `owned` returns true, as [`Pblk::open_on`] does;
    /// otherwise as [`open`](Rrpc::open). No other target on the drive may write logical addresses
    /// to the out-of-band bytes.
    ///
    /// # Errors
    /// [`RrpcError`].
    pub fn open_on(
        info: &ControllerInfo,
        chunks: &[ChunkDescriptor],
        owned: &dyn Fn(ChunkId) -> bool,
        map: DeviceL2pEntries<'_>,
        queue: DriveQueue,
        config: FtlConfig,
        progress: &mut dyn FnMut(),
    ) -> Result<Rrpc, RrpcError> {
        if let Some(open_channel) = &info.open_channel {
            let extensions = &open_channel.extensions;
            if !extensions.has(VendorExtensions::DEVICE_L2P) {
                return Err(RrpcError::NoMap { serial: info.serial.clone() });
            }
            let entries = extensions.l2p_entries.get();
            if map.entries.len() as u64 != entries {
                return Err(RrpcError::MapLength { given: map.entries.len(), entries });
            }
        }
        let pblk = Pblk::open_with_map(info, chunks, owned, map, queue, config, progress)?;
        Ok(Rrpc { device: OverlapSerializer::new(pblk) })
    }

    /// Returns the counters of the FTL.
    pub fn stats(&self) -> &FtlStats {
        self.device.device().stats()
    }

    /// Returns the counters of overlapping requests.
    pub fn overlap_stats(&self) -> &OverlapStats {
        self.device.stats()
    }

    /// Returns what recovery read when the device was opened, or `None` if nothing had to be
    /// recovered.
    pub fn recovery_stats(&self) -> Option<&RecoveryStats> {
        self.device.device().recovery_stats()
    }

    /// Sets the number of parallel units that are written at a time, see [`Pblk::set_active_pus`].
    ///
    /// # Errors
    /// [`ActivePusError`] if `count` exceeds the number that the device was opened with; nothing
    /// changes.
    pub fn set_active_pus(&mut self, count: u32) -> Result<(), ActivePusError> {
        self.device.device_mut().set_active_pus(count)
    }

    /// Changes a setting of the FTL, see [`Pblk::apply_change`].
    ///
    /// # Errors
    /// [`ControlError`]; nothing changes.
    pub fn apply_change(&mut self, change: &ControlChange) -> Result<(), ControlError> {
        self.device.device_mut().apply_change(change)
    }

    /// Subscribes to the drive's media events and handles them, see [`Pblk::subscribe_events`]. A
    /// loss needs no checkpoint, because the device L2P keeps its entries. Sectors whose only copy
    /// was on a chunk that went offline are media errors as long as the map refers to that chunk.
    ///
    /// # Errors
    /// As [`ControllerHandle::subscribe_events`]; the error returns the controller.
    pub fn subscribe_events(
        &mut self,
        controller: Box<ControllerHandle>,
    ) -> Result<(), (Box<ControllerHandle>, DriverError)> {
        self.device.device_mut().subscribe_events(controller)
    }

    /// Returns the admin queue, if the device has it.
    pub fn take_controller(&mut self) -> Option<ControllerHandle> {
        self.device.device_mut().take_controller()
    }

    /// Starts a scrub of cold data, see [`Pblk::set_scrub`].
    pub fn set_scrub(&mut self, config: ScrubConfig) {
        self.device.device_mut().set_scrub(config);
    }

    /// Returns the counts of media events and reactions.
    pub fn health(&self) -> PblkHealth {
        self.device.device().health()
    }

    /// Handles a media event of the drive, see [`Pblk::on_media_event`].
    pub fn on_media_event(&mut self, event: &MediaEvent) {
        self.device.device_mut().on_media_event(event);
    }

    /// Returns the FTL, for queries.
    pub fn ftl(&self) -> &Ftl {
        self.device.device().ftl()
    }

    /// Checks the invariants of the order of overlapping requests and of the target; not those of
    /// the FTL. See [`Pblk::check_invariants`].
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), PblkViolation> {
        self.device.check_invariants()?;
        let pblk = self.device.device();
        pblk.check_invariants()?;
        let passed: BTreeSet<u64> = self.device.at_device().map(u64::from).collect();
        let at_pblk: BTreeSet<u64> = pblk.outstanding_tags().collect();
        require_eq!(Overlaps, "requests in flight are at the device", "all", passed, at_pblk);
        Ok(())
    }

    /// Returns the queue pair, for its counters.
    pub fn queue(&self) -> &QueuePair {
        self.device.device().queue()
    }

    /// Returns whether no request is outstanding and no command is on the drive.
    pub fn is_idle(&self) -> bool {
        self.device.is_empty() && self.device.device().is_idle()
    }

    /// Closes the device, see [`Pblk::into_queue`].
    pub fn into_queue(self) -> (QueuePair, Vec<Completion>) {
        self.device.close(Pblk::into_queue)
    }
}

impl Component for Rrpc {
    block::delegate_block_device!(self => self.device; poll, deadline);
}

impl BlockDevice for Rrpc {
    block::delegate_block_device!(self => self.device; limits, submit, reap, memory, set_waker, can_wake,
        enable_sharing, can_wait, wait_for_event);
    block::answer_block_device!(visit_layers: self);
}
