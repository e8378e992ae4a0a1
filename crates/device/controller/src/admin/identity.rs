//! [`ControllerIdentity`] and [`HealthCounters`]: the inputs of the admin state, and the Identify
//! data structures made from them [NVMe1.4 §5.15.2].

use nvme::{
    CloudHealthLog, Geometry, IdentifyController, IdentifyNamespace, LatencyMonitorLog, LbaFormat,
    MediaTiming, PpaFormat, ProtectionType, VendorExtensions, feature, sanicap,
};
use time::Nanos;

use super::{
    ERROR_LOG_ENTRIES, EVENT_REQUESTS_MAX, FIRMWARE, TEMPERATURE_CRITICAL, TEMPERATURE_WARNING,
    VERSION,
};
use crate::PersonalityKind;
use crate::command::ranges::CopyLimits;
use crate::namespaces::layout::NAMESPACES_MAX;

/// The bytes of an NGUID that name its vendor: the bit for locally administered identifiers is set.
const LOCAL_OUI: [u8; 3] = [0x02, 0x53, 0x4c];

/// The properties of a drive that its host may know.
#[derive(Clone, Debug)]
pub(crate) struct ControllerIdentity {
    /// Serial number (cut to 20 characters) and suffix of the NVMe qualified name.
    pub(crate) name: String,
    /// The interface that the drive exposes.
    pub(crate) personality: PersonalityKind,
    /// The namespace.
    pub(crate) namespace: NamespaceIdentity,
    /// Maximum transfer size in bytes, rounded down to a power of two of pages; 0 for no limit.
    pub(crate) max_transfer_bytes: u64,
    /// Whether completed writes need a Flush to be durable.
    pub(crate) volatile_cache: bool,
    /// Geometry of an open-channel drive.
    pub(crate) geometry: Option<Geometry>,
    /// Media timing of an open-channel drive.
    pub(crate) timing: MediaTiming,
    /// Maximum number of open chunks, in total and per parallel unit; 0 for no limit.
    pub(crate) max_open_chunks: (u32, u32),
    /// Number of I/O queue pairs, at least 1.
    pub(crate) io_queues: u16,
    /// Maximum number of entries per queue.
    pub(crate) queue_depth: u16,
    /// Vendor extensions of an open-channel drive.
    pub(crate) extensions: VendorExtensions,
    /// Whether the contents of the controller memory buffer survive a power loss.
    pub(crate) protected_cmb: bool,
    /// The commands and events that only some drives support, or not for every host.
    pub(crate) optional: OptionalCommands,
    /// Arbitration settings after a reset.
    pub(crate) arbitration: feature::Arbitration,
}

/// Commands and events that only some drives support, or not for every host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OptionalCommands {
    /// Doorbell Buffer Config.
    pub(crate) doorbell_buffer: bool,
    /// Get LBA Status, the admin command.
    pub(crate) get_lba_status: bool,
    /// The I/O command for the status of logical blocks.
    pub(crate) lba_status: bool,
    /// Keep Alive: the end of its timer needs registers to be reported.
    pub(crate) keep_alive: bool,
    /// Format NVM.
    pub(crate) format: bool,
    /// Namespace Management and Namespace Attachment.
    pub(crate) namespaces: bool,
    /// Sanitize.
    pub(crate) sanitize: bool,
    /// The commands and the log page of rules.
    pub(crate) rules: bool,
    /// Commands on sectors with names.
    pub(crate) names: bool,
    /// The notice of changed namespaces, and their list.
    pub(crate) namespace_notices: bool,
}

/// The writes that a power cut does not tear, in sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicUnit {
    /// Maximum length, at least 1.
    pub(crate) sectors: u32,
    /// A write across a multiple of this many sectors is not atomic; 0 for no boundary.
    pub(crate) boundary: u32,
}

impl AtomicUnit {
    /// Single sectors.
    pub(crate) const SECTOR: AtomicUnit = AtomicUnit { sectors: 1, boundary: 0 };
}

/// The properties of a drive's namespace that its host may know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamespaceIdentity {
    pub(crate) nsid: u32,
    /// Number of namespaces that the drive had created before; 0 for those of a new drive.
    pub(crate) generation: u32,
    /// Capacity in sectors.
    pub(crate) sectors: u64,
    /// Sector size in bytes: a power of two, at least 512.
    pub(crate) sector_bytes: u32,
    /// Out-of-band bytes per sector that the host may use.
    pub(crate) oob_bytes: u16,
    /// End-to-end protection information, which are these out-of-band bytes.
    pub(crate) protection: Option<ProtectionType>,
    /// Optimal write size in sectors, at least 1.
    pub(crate) optimal_sectors: u32,
    /// Sectors per unit that the drive maps, at least 1. Accesses below a unit cost more.
    pub(crate) unit_sectors: u32,
    /// The writes that a power cut does not tear.
    pub(crate) atomic: AtomicUnit,
    /// Whether the namespace is write protected for this host.
    pub(crate) write_protected: bool,
    /// The optional commands Compare, Write Uncorrectable, Verify and Copy that it supports, as bits
    /// of ONCS.
    pub(crate) block_commands: u16,
    /// First sector of the drive that belongs to the namespace.
    pub(crate) first_sector: u64,
}

/// The counters that the health log reports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HealthCounters {
    /// Bytes read by the host.
    pub(crate) bytes_read: u64,
    /// Bytes written by the host.
    pub(crate) bytes_written: u64,
    /// Read commands.
    pub(crate) reads: u64,
    /// Write commands.
    pub(crate) writes: u64,
    /// Time with at least one command outstanding.
    pub(crate) busy: Nanos,
    /// Time since power-on, accumulated over all power cycles.
    pub(crate) powered: Nanos,
    /// Number of power-ons.
    pub(crate) power_cycles: u64,
    /// Number of power cuts.
    pub(crate) power_cuts: u64,
    /// Uncorrectable sectors.
    pub(crate) media_errors: u64,
    /// Remaining spare capacity in percent.
    pub(crate) spare_percent: u8,
    /// Rated endurance used in percent; may exceed 100.
    pub(crate) used_percent: u8,
    /// Whether the drive has become read-only.
    pub(crate) read_only: bool,
    /// The cloud health log of a drive with flash.
    pub(crate) cloud: Option<CloudHealthLog>,
    /// The log of the latency monitor.
    pub(crate) latency: Option<LatencyMonitorLog>,
}

impl ControllerIdentity {
    fn supports_copy(&self) -> bool {
        self.namespace.block_commands & IdentifyController::ONCS_COPY != 0
    }

    /// Returns the optional events that the host can enable, OAES.
    pub(super) fn optional_events(&self) -> u32 {
        match self.optional.namespace_notices {
            true => IdentifyController::OAES_NAMESPACE_ATTRIBUTES,
            false => 0,
        }
    }

    /// Returns the Identify Controller data structure.
    pub(super) fn identify_controller(&self, burst_log2: u8) -> IdentifyController {
        let mut c = IdentifyController::zeroed();
        c.set_serial(&self.name);
        c.set_model(match self.personality {
            PersonalityKind::Null => "Sluice null drive",
            PersonalityKind::Block => "Sluice block drive",
            PersonalityKind::OpenChannel => "Sluice open-channel drive",
        });
        c.fr = FIRMWARE;
        c.rab = burst_log2;
        c.mdts =
            (self.max_transfer_bytes / mem::PAGE_BYTES as u64).checked_ilog2().unwrap_or(0) as u8;
        c.ver = VERSION.into();
        c.oaes = self.optional_events().into();
        c.cntrltype = 1;
        c.aerl = EVENT_REQUESTS_MAX as u8 - 1;
        // One firmware slot, which is read-only.
        c.frmw = 0x03;
        c.lpa = IdentifyController::LPA_EFFECTS | IdentifyController::LPA_EXTENDED;
        c.elpe = ERROR_LOG_ENTRIES as u8 - 1;
        (c.wctemp, c.cctemp) = (TEMPERATURE_WARNING.into(), TEMPERATURE_CRITICAL.into());
        c.tnvmcap =
            (u128::from(self.namespace.sectors) * u128::from(self.namespace.sector_bytes)).into();
        let atomic = (self.namespace.atomic.sectors.clamp(1, 1 << 16) - 1) as u16;
        (c.awun, c.awupf) = (atomic.into(), atomic.into());
        (c.sqes, c.cqes) = (0x66, 0x44);
        c.maxcmd = self.queue_depth.into();
        c.nn = match self.optional.namespaces {
            true => (NAMESPACES_MAX as u32).into(),
            false => self.namespace.nsid.into(),
        };
        if self.optional.namespaces {
            c.mnan = c.nn;
            c.ctratt = IdentifyController::CTRATT_NAMESPACE_GRANULARITY.into();
        }
        c.set_keep_alive(self.optional.keep_alive.into());
        if self.optional.sanitize {
            c.set_sanitize_capabilities(
                sanicap::BLOCK_ERASE
                    | sanicap::OVERWRITE
                    | sanicap::NO_DEALLOCATE_INHIBITED
                    | sanicap::MEDIA_NOT_MODIFIED,
            );
        }
        let admin_commands = [
            (self.optional.doorbell_buffer, IdentifyController::OACS_DOORBELL_BUFFER_CONFIG),
            (self.optional.get_lba_status, IdentifyController::OACS_GET_LBA_STATUS),
            (self.optional.format, IdentifyController::OACS_FORMAT),
            (self.optional.namespaces, IdentifyController::OACS_NAMESPACES),
        ];
        let supported = admin_commands.into_iter().filter(|(has, _)| *has);
        c.oacs = supported.fold(0, |oacs, (_, bit)| oacs | bit).into();
        let oncs = IdentifyController::ONCS_DATASET_MANAGEMENT;
        c.oncs = match self.personality {
            PersonalityKind::OpenChannel => oncs,
            _ => oncs | IdentifyController::ONCS_WRITE_ZEROES | self.namespace.block_commands,
        }
        .into();
        // Copy takes descriptors of format 0.
        c.ocfs = u16::from(self.supports_copy()).into();
        // Flush takes the broadcast identifier.
        c.vwc = u8::from(self.volatile_cache) | 0b110;
        c.sgls = (IdentifyController::SGLS_SUPPORTED | IdentifyController::SGLS_BIT_BUCKET).into();
        if self.protected_cmb {
            VendorExtensions::with_flags(VendorExtensions::PROTECTED_CMB).write_to(&mut c.vendor);
        }
        let nqn = format!("nqn.2026-01.io.sluice:{}", self.name);
        // The last byte stays zero, as a terminator.
        for (to, from) in c.subnqn[..223].iter_mut().zip(nqn.bytes()) {
            *to = from;
        }
        c
    }

    /// Returns the globally unique identifier of the namespace, NGUID, which is derived from the name
    /// of the drive and the part of it that is the namespace; of a created one also from the number of
    /// namespaces that were created before. It stays the same over power cycles and processes, and
    /// differs between drives with different names.
    pub(crate) fn nguid(&self) -> [u8; 16] {
        let namespace = &self.namespace;
        let digest = |seed: u64| {
            // FNV-1a, 64 bits.
            let part = [seed, namespace.first_sector, namespace.sectors];
            let created = [namespace.nsid, namespace.generation];
            let created = if created == [1, 0] { None } else { Some(created) };
            let created = created.into_iter().flatten().flat_map(u32::to_le_bytes);
            let part = part.into_iter().flat_map(u64::to_le_bytes);
            let bytes = part.chain(created).chain(self.name.bytes());
            bytes.fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
                (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
        };
        let mut nguid = [0; 16];
        nguid[..8].copy_from_slice(&digest(1).to_be_bytes());
        nguid[8..].copy_from_slice(&digest(2).to_be_bytes());
        // A locally administered identifier in the place of the vendor's.
        nguid[8..11].copy_from_slice(&LOCAL_OUI);
        nguid
    }

    /// Returns the Identify Namespace data structure; `mapped` is the number of mapped sectors.
    pub(crate) fn identify_namespace(&self, mapped: u64) -> IdentifyNamespace {
        let mut n = IdentifyNamespace::zeroed();
        // The address space of an open-channel drive has holes; the size is that of the address
        // space.
        let format = self.geometry.as_ref().and_then(|g| PpaFormat::from_geometry(g).ok());
        n.nsze = match format {
            None => self.namespace.sectors,
            Some(f) => {
                let bits = f.group_bits + f.pu_bits + f.chunk_bits + f.sector_bits;
                1u64.checked_shl(bits.into()).unwrap_or(u64::MAX)
            }
        }
        .into();
        n.ncap = self.namespace.sectors.into();
        n.nuse = mapped.min(self.namespace.sectors).into();
        n.nguid = self.nguid();
        n.nsattr = self.namespace.write_protected.into();
        n.nvmcap =
            (u128::from(self.namespace.sectors) * u128::from(self.namespace.sector_bytes)).into();
        n.lbaf[0] = LbaFormat {
            ms: self.namespace.oob_bytes.into(),
            lbads: self.namespace.sector_bytes.ilog2() as u8,
            rp: 0,
        };
        if self.namespace.oob_bytes > 0 {
            // Out-of-band bytes are transferred as a separate buffer, through the metadata pointer.
            n.mc = 1 << 1;
        }
        if self.namespace.protection == Some(ProtectionType::Type1) {
            // Type 1 is supported and enabled, in the last eight bytes of the metadata.
            (n.dpc, n.dps) = (1 | 1 << 4, 1);
        }
        // The fields for preferred write granularity and size are valid.
        n.nsfeat = 1 << 4;
        let optimal =
            u16::try_from(self.namespace.optimal_sectors.saturating_sub(1)).unwrap_or(u16::MAX);
        (n.npwg, n.nows) = (optimal.into(), optimal.into());
        let AtomicUnit { sectors, boundary } = self.namespace.atomic;
        if sectors > 1 {
            n.set_atomic_write(sectors, boundary);
            // Of a part of a drive, boundaries are those of the drive.
            let past = self.namespace.first_sector.checked_rem(boundary.into()).unwrap_or(0);
            if past > 0 {
                n.nabo = ((u64::from(boundary) - past) as u16).into();
            }
        }
        if self.namespace.unit_sectors > 1 {
            // Writes and deallocations of whole units need no read, and only these deallocate.
            let unit = u16::try_from(self.namespace.unit_sectors - 1).unwrap_or(u16::MAX);
            (n.npwg, n.npwa) = (unit.into(), unit.into());
            (n.npdg, n.npda) = (unit.into(), unit.into());
        }
        if self.supports_copy() {
            let limits = CopyLimits::for_blocks_of(self.namespace.sector_bytes);
            n.mssrl = (limits.range_blocks as u16).into();
            n.mcl = limits.blocks.into();
            n.msrc = (limits.ranges - 1) as u8;
        }
        if self.personality == PersonalityKind::OpenChannel {
            n.vendor[0] = IdentifyNamespace::VENDOR_OPEN_CHANNEL;
        } else {
            // Deallocated sectors read as zeros, and Write Zeroes may deallocate.
            n.dlfeat = 1 | 1 << 3;
        }
        n
    }
}
