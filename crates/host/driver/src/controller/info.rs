//! [`ControllerInfo`]: the checked description of a drive.

use nvme::{
    Geometry, GeometryPage, IdentifyController, IdentifyNamespace, MediaTiming, MetadataFormat,
    MetadataTransfer, PpaFormat, VendorExtensions,
};

use crate::data::{METADATA_BYTES_MAX, PRP_TRANSFER_MAX};
use crate::{AtomicLimits, DataPointers, DriverError, Features};

/// The model of a drive and its firmware.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProductIdentity {
    /// Model number.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
}

/// The properties of a drive that a host needs. The driver has checked their consistency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Serial number: the drive's name in results.
    pub serial: String,
    /// Model and firmware.
    pub product: ProductIdentity,
    /// The namespace in use; by default the drive's first.
    pub nsid: u32,
    /// Sector size in bytes.
    pub sector_bytes: u32,
    /// Out-of-band bytes per sector.
    pub oob_bytes: u32,
    /// Format of the out-of-band bytes as metadata of block requests, which do not carry them.
    pub metadata: Option<MetadataFormat>,
    /// Sectors of the namespace; on an open-channel drive, sectors of the media.
    pub sectors: u64,
    /// Maximum number of sectors per transfer, 1 to 65,536.
    pub max_sectors: u32,
    /// Number of sectors that the media programs at once.
    pub optimal_sectors: u32,
    /// Whether completed writes need a Flush to be durable.
    pub volatile_cache: bool,
    /// Number of I/O queue pairs that the drive granted.
    pub io_queues: u16,
    /// Maximum number of outstanding commands per queue; 0 if the drive does not report one.
    pub max_outstanding: u16,
    /// Kind of the commands' data pointers.
    pub data: DataPointers,
    /// Features besides contiguous reads and writes.
    pub features: Features,
    /// Geometry and address format of an open-channel drive.
    pub open_channel: Option<OpenChannelInfo>,
}

/// The media of an open-channel drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenChannelInfo {
    /// Geometry.
    pub geometry: Geometry,
    /// Positions of the fields of an address.
    pub format: PpaFormat,
    /// Latencies of the media, in nanoseconds.
    pub timing: MediaTiming,
    /// Whether the drive supports Vector Chunk Copy.
    pub can_copy: bool,
    /// Maximum number of open chunks; 0 for no limit.
    pub max_open_chunks: u32,
    /// Extensions to the specification: supported hints, device L2P.
    pub extensions: VendorExtensions,
}

/// Maximum number of segments of a scattered payload: a page of them.
const SEGMENTS_MAX: u16 = 256;

fn implausible(what: String) -> DriverError {
    DriverError::Implausible { what }
}

fn needs_prp_lists(data: DataPointers, metadata: Option<MetadataFormat>) -> bool {
    data != DataPointers::Sgl || metadata.is_some()
}

/// The commands that a drive supports, as far as Identify does not say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandSupport {
    /// Format of data pointers.
    pub(crate) data_pointers: DataPointers,
    /// Whether the drive supports the extensions of Sluice's drives.
    pub(crate) own_commands: bool,
}

impl ControllerInfo {
    /// Converts the data of Identify and, for an open-channel drive, of Geometry.
    ///
    /// # Errors
    /// [`DriverError::Implausible`], [`DriverError::Geometry`].
    pub(crate) fn new(
        controller: &IdentifyController,
        nsid: u32,
        namespace: &IdentifyNamespace,
        geometry: Option<&GeometryPage>,
        io_queues: u16,
        support: CommandSupport,
    ) -> Result<ControllerInfo, DriverError> {
        let CommandSupport { data_pointers: data, own_commands } = support;
        let sector_bytes = namespace.block_bytes().ok_or_else(|| {
            implausible(format!("that a sector has 2^{} bytes", namespace.format().lbads))
        })?;
        let oob_bytes = u32::from(namespace.format().ms.get());
        let open_channel = match geometry {
            None => None,
            Some(page) => {
                let (geometry, format) = page.geometry(sector_bytes, oob_bytes)?;
                Some(OpenChannelInfo {
                    geometry,
                    format,
                    timing: page.timing(),
                    can_copy: page.mccap.get() & GeometryPage::MCCAP_COPY != 0,
                    max_open_chunks: page.maxoc.get(),
                    extensions: VendorExtensions::from_vendor_bytes(&page.vendor),
                })
            }
        };
        // The namespace of an open-channel drive spans its address format, including holes.
        let sectors = open_channel.map_or(namespace.nsze.get(), |o| o.geometry.total_sectors());
        if sectors == 0 || sectors.checked_mul(sector_bytes.into()).is_none() {
            return Err(implausible(format!("that it has {sectors} sectors of {sector_bytes} B")));
        }
        let sqes = controller.sqes;
        if sqes & 0xf > 6 || sqes >> 4 < 6 {
            return Err(implausible(format!("that its submission entries have sizes {sqes:#04x}")));
        }
        let page = mem::PAGE_BYTES as u32;
        let max_bytes = controller.max_transfer(page).unwrap_or(u64::MAX);
        let metadata = match geometry {
            // Vector commands carry metadata themselves.
            Some(_) => None,
            None => MetadataFormat::from_namespace(namespace),
        };
        let max_bytes = match needs_prp_lists(data, metadata) {
            false => max_bytes,
            true => max_bytes.min(PRP_TRANSFER_MAX),
        };
        let inline = metadata.map_or(0, |m| m.extended_lba_bytes());
        let most = max_bytes / u64::from(sector_bytes + inline);
        let apart = metadata.filter(|m| m.transfer == MetadataTransfer::SeparateBuffer);
        let most = most.min(apart.map_or(u64::MAX, |m| METADATA_BYTES_MAX / u64::from(m.bytes)));
        let max_sectors = most.min(nvme::MAX_BLOCKS.into()) as u32;
        if max_sectors == 0 {
            return Err(implausible(format!(
                "that it transfers at most {max_bytes} B at a time, but its sectors have \
                 {sector_bytes} B"
            )));
        }
        let optimal = open_channel.map_or(namespace.optimal_write(), |o| o.geometry.ws_opt);
        let (atomic_sectors, boundary_sectors) = match open_channel {
            // Vector commands address write units.
            Some(_) => (0, 0),
            None => namespace.atomic_write(controller.awupf.get()),
        };
        Ok(ControllerInfo {
            serial: controller.serial(),
            product: ProductIdentity { model: controller.model(), firmware: controller.firmware() },
            nsid,
            sector_bytes,
            oob_bytes,
            metadata,
            sectors,
            max_sectors,
            optimal_sectors: optimal,
            volatile_cache: controller.has_volatile_cache(),
            io_queues,
            max_outstanding: controller.maxcmd.get(),
            data,
            features: Features {
                segments: SEGMENTS_MAX,
                fua: true,
                discard: controller.supports(IdentifyController::ONCS_DATASET_MANAGEMENT),
                write_zeroes: controller.supports(IdentifyController::ONCS_WRITE_ZEROES),
                extents: own_commands,
                atomic: AtomicLimits { sectors: atomic_sectors, boundary_sectors },
            },
            open_channel,
        })
    }

    /// Returns the maximum number of bytes per transfer.
    pub fn max_transfer_bytes(&self) -> u64 {
        u64::from(self.max_sectors) * u64::from(self.sector_bytes)
    }

    /// Returns the maximum number of bytes per transfer, including interleaved metadata.
    pub(crate) fn max_wire_bytes(&self) -> u64 {
        let inline = self.metadata.map_or(0, |m| m.extended_lba_bytes());
        u64::from(self.max_sectors) * u64::from(self.sector_bytes + inline)
    }

    /// Returns whether data pointers need memory for PRP lists.
    pub(crate) fn needs_prp_lists(&self) -> bool {
        needs_prp_lists(self.data, self.metadata)
    }

    /// Returns the capacity in bytes.
    pub fn bytes(&self) -> u64 {
        self.sectors * u64::from(self.sector_bytes)
    }
}
