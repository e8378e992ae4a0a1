//! [`Rrpc`]: the thesis's sector-based target (chapter 6, section 4.3): round robin over parallel
//! units, cost-based garbage collection on valid sectors and wear, overlapping requests in order, and
//! a map that the drive keeps.
//!
//! It is choices of what there is, no layer of its own: [`Pblk`] over a drive with a dual map, with
//! [`VictimPolicyKind::CostWear`](ftl::VictimPolicyKind) and wear levelling unless the configuration says
//! otherwise ([`Rrpc::config`]), behind [`OverlapSerializer`]. Guarantees: as [`Pblk`]; requests that overlap
//! take effect in the order in which they were submitted. Opening reads the drive's map, the journal
//! and nothing else, but pads open chunks.
//!
//! A flush tells the drive of trims (Map Trim) in place of writing pages of the map. A drive that was
//! written by `pblk` is refused, and the other way round: the journal says whose it is.
//!
//! What happens behind its back: chunks that are all reset are a new drive, whose write units are
//! numbered behind every trim that the map still knows; a map that is wiped while data is there, or that
//! names what was never written or is somebody else's, is refused. Of some chunks that are reset nobody
//! knows: with them the map forgets what was there, as with a trim.
//!
//! A drive has one map, so that it has one target that writes labels of logical addresses: `rrpc`, or
//! any number of `pblk`.

use std::sync::Arc;

use block::{BlockDevice, Completion, Limits, QueueFull, Request};
use clock::{Component, Nanos, Waker};
use driver::{ControllerHandle, ControllerInfo, DriverError, MediaEvent, QueuePair};
use ftl::{
    ActivePusError, Ftl, FtlConfig, FtlStats, LineMetadata, RecoveryStats, VictimPolicyKind,
};
use nvme::{Address, ChunkDescriptor, DeviceL2pLog, VendorExtensions};
use ring::{AddressSpace, Port};

use super::overlap::{OverlapSerializer, OverlapStats};
use super::pblk::{Pblk, PblkError, PblkHealth};
use crate::subsystem::ScrubConfig;

/// What a drive's own map says: of each logical address, all of them
/// ([`driver::Controller::dual_map`]), and in sum ([`driver::Controller::map_totals`]), read after the
/// last command that wrote.
pub type DeviceL2pEntries<'a> = (&'a [Option<Address>], DeviceL2pLog);

/// Why a drive cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum RrpcError {
    /// The drive keeps no map.
    #[error(
        "drive {serial} keeps no map of its own, which rrpc recovers from: set dual_map = true in the \
         drive, or use pblk"
    )]
    NoMap {
        /// The drive.
        serial: String,
    },
    /// Not the whole map.
    #[error("{given} entries of a map of {entries} logical addresses")]
    MapLength {
        /// Entries given.
        given: usize,
        /// Entries of the drive's map.
        entries: u64,
    },
    /// As pblk.
    #[error(transparent)]
    Pblk(#[from] PblkError),
}

/// A block device whose flash the host manages and whose map the drive keeps. [`Rrpc::open`] makes
/// one.
#[derive(Debug)]
pub struct Rrpc {
    device: OverlapSerializer<Pblk>,
}

impl Rrpc {
    /// What the thesis chooses; the rest as ever.
    pub fn config() -> FtlConfig {
        FtlConfig {
            victim_policy: VictimPolicyKind::CostWear,
            dynamic_wear_leveling: true,
            line_metadata: LineMetadata::Off,
            ..FtlConfig::default()
        }
    }

    /// Takes over the state of `other`, as [`Pblk::clone_state_from`] does.
    ///
    /// # Panics
    /// When there is no address space for the copy.
    pub fn clone_state_from(&mut self, other: &Rrpc) -> bool {
        self.device.clone_state_from(&other.device, Pblk::clone_state_from)
    }

    /// Opens the drive that `info` describes and `port` leads to, as [`Pblk::open`] does, with what its
    /// own map says.
    ///
    /// # Errors
    /// [`RrpcError`].
    pub fn open(
        info: &ControllerInfo,
        chunks: &[ChunkDescriptor],
        map: DeviceL2pEntries<'_>,
        parts: (QueuePair, Arc<Port>),
        config: FtlConfig,
        pump: &mut dyn FnMut(),
    ) -> Result<Rrpc, RrpcError> {
        Rrpc::open_on(info, chunks, (&|_| true, map), parts, config, pump)
    }

    /// As [`open`](Rrpc::open), on the chunks that are `owned`, by flat number, as
    /// [`Pblk::open_on`] does. Nobody else on the drive may label sectors as `pblk` and this do.
    ///
    /// # Errors
    /// [`RrpcError`].
    pub fn open_on(
        info: &ControllerInfo,
        chunks: &[ChunkDescriptor],
        (owned, map): (&dyn Fn(u32) -> bool, DeviceL2pEntries<'_>),
        parts: (QueuePair, Arc<Port>),
        config: FtlConfig,
        pump: &mut dyn FnMut(),
    ) -> Result<Rrpc, RrpcError> {
        if let Some(open_channel) = &info.open_channel {
            let extensions = &open_channel.extensions;
            if !extensions.has(VendorExtensions::DEVICE_L2P) {
                return Err(RrpcError::NoMap { serial: info.serial.clone() });
            }
            let entries = extensions.l2p_entries.get();
            if map.0.len() as u64 != entries {
                return Err(RrpcError::MapLength { given: map.0.len(), entries });
            }
        }
        let pblk = Pblk::open_with_map(info, chunks, (owned, map), parts, config, pump)?;
        Ok(Rrpc { device: OverlapSerializer::new(pblk) })
    }

    /// Counters of the translation layer.
    pub fn stats(&self) -> &FtlStats {
        self.device.device().stats()
    }

    /// How often requests overlapped.
    pub fn overlap_stats(&self) -> &OverlapStats {
        self.device.stats()
    }

    /// What was read when the device was opened, if there was something to be recovered.
    pub fn recovery_stats(&self) -> Option<&RecoveryStats> {
        self.device.device().recovery_stats()
    }

    /// Writes to `count` parallel units at a time from now on, as [`Pblk::set_active_pus`].
    ///
    /// # Errors
    /// [`ActivePusError`] for more than the device was opened with; nothing changes.
    pub fn set_active_pus(&mut self, count: u32) -> Result<(), ActivePusError> {
        self.device.device_mut().set_active_pus(count)
    }

    /// Listens to what the drive tells of its media, and acts on it, as [`Pblk::subscribe_events`]. The drive's map
    /// forgets nothing, so that what has gone is no checkpoint's business: sectors whose only copy
    /// was in a chunk that went offline are media errors for as long as the map names that chunk.
    ///
    /// # Errors
    /// As [`ControllerHandle::subscribe_events`]; the controller comes back.
    pub fn subscribe_events(
        &mut self,
        controller: Box<ControllerHandle>,
    ) -> Result<(), (Box<ControllerHandle>, DriverError)> {
        self.device.device_mut().subscribe_events(controller)
    }

    /// Gives the admin queue back, if the device has it.
    pub fn take_controller(&mut self) -> Option<ControllerHandle> {
        self.device.device_mut().take_controller()
    }

    /// Begins to look after cold data, as [`Pblk::set_scrub`].
    pub fn set_scrub(&mut self, config: ScrubConfig) {
        self.device.device_mut().set_scrub(config);
    }

    /// What was heard of the media, and done about it.
    pub fn health(&self) -> PblkHealth {
        self.device.device().health()
    }

    /// The drive has noticed something about its media, as [`Pblk::on_media_event`].
    pub fn on_media_event(&mut self, event: &MediaEvent) {
        self.device.device_mut().on_media_event(event);
    }

    /// The translation layer, for what can be asked about it.
    pub fn ftl(&self) -> &Ftl {
        self.device.device().ftl()
    }

    /// The queue pair, for its counters.
    pub fn queue(&self) -> &QueuePair {
        self.device.device().queue()
    }

    /// Whether nothing is outstanding: no request, and no command on the drive.
    pub fn is_idle(&self) -> bool {
        self.device.is_empty() && self.device.device().is_idle()
    }

    /// Gives the device up, as [`Pblk::into_queue`].
    pub fn into_queue(self) -> (QueuePair, Vec<Completion>) {
        self.device.close(Pblk::into_queue)
    }
}

impl Component for Rrpc {
    fn poll(&mut self, now: Nanos) -> bool {
        self.device.poll(now)
    }

    fn deadline(&self) -> Nanos {
        self.device.deadline()
    }
}

impl BlockDevice for Rrpc {
    fn limits(&self) -> &Limits {
        self.device.limits()
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        self.device.submit(now, request)
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        self.device.reap()
    }

    fn memory(&self) -> &AddressSpace {
        self.device.memory()
    }

    fn set_waker(&mut self, waker: Waker) {
        self.device.set_waker(waker);
    }
}
