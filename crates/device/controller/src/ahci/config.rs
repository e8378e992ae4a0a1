//! [`AhciConfig`]: the description of an AHCI controller and its drives.

use std::io;
use std::sync::Arc;

use ahci::{COMMAND_SLOTS_MAX, PORTS_MAX, hba};
use time::Nanos;
use transport::PciFunction;

/// An AHCI controller, its drives, and the resources that they share.
#[derive(Clone, Debug, PartialEq)]
pub struct AhciConfig {
    /// The drive of each of the 1 to 32 ports; `None` for an empty bay.
    pub drives: Vec<Option<SataDriveConfig>>,
    /// Bandwidth of the uplink in bytes per second; 0 for no limit. It is shared by all drives and
    /// both directions, first come first served.
    ///
    /// 1.5 GB/s is the bandwidth at which [HIOPS14 fig. 7] converges; [HIOPS14 §4] attributes it to
    /// the chipset's uplink and internal interconnects.
    pub uplink_bytes_per_sec: u64,
    /// Time from the end of a reset until the link is up.
    pub link_up: Nanos,
}

impl AhciConfig {
    /// Returns the configuration of [HIOPS14 §4]: six drives of the Samsung 840 Pro 256 GB class.
    pub fn hiops() -> AhciConfig {
        AhciConfig::uniform(6, &SataDriveConfig::default())
    }

    /// Returns a configuration of `ports` equal drives with different serial numbers.
    pub fn uniform(ports: usize, drive: &SataDriveConfig) -> AhciConfig {
        let drives = (0..ports)
            .map(|i| {
                let serial = format!("{}{i:02}", drive.serial);
                Some(SataDriveConfig { serial, ..drive.clone() })
            })
            .collect();
        AhciConfig { drives, uplink_bytes_per_sec: 1_500_000_000, link_up: Nanos::from_millis(1) }
    }

    /// Creates a PCI function with the registers that the controller needs.
    ///
    /// # Errors
    /// The error that `mmap(2)` returns.
    pub fn function(&self) -> io::Result<Arc<PciFunction>> {
        PciFunction::new(hba::bytes(self.drives.len()))
    }

    pub(super) fn check(&self) -> Result<(), AhciConfigError> {
        let refuse = |what: &'static str| Err(AhciConfigError::Invalid { what });
        if self.drives.is_empty() || self.drives.len() > PORTS_MAX {
            return refuse("a controller has 1 to 32 ports");
        }
        for drive in self.drives.iter().flatten() {
            if !drive.sector_bytes.is_power_of_two()
                || !(512..=65_536).contains(&drive.sector_bytes)
            {
                return refuse("a sector is a power of two of 512 to 65,536 bytes");
            }
            if drive.sectors == 0 || drive.sectors >> 48 != 0 {
                return refuse("a drive has 1 to 2^48 - 1 sectors");
            }
            if drive.sectors.checked_mul(drive.sector_bytes.into()).is_none_or(|b| b > 1 << 46) {
                return refuse("a drive has 64 TiB at most");
            }
            if drive.queue_depth == 0 || drive.queue_depth as usize > COMMAND_SLOTS_MAX {
                return refuse("a SATA drive has 1 to 32 tags");
            }
            if drive.units == 0 || drive.units > 4096 || drive.unit_bytes == 0 {
                return refuse("a drive has 1 to 4,096 units, which are not empty");
            }
        }
        Ok(())
    }
}

/// The reason for which a controller cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum AhciConfigError {
    /// The configuration is invalid.
    #[error("{what}")]
    Invalid {
        /// The allowed values.
        what: &'static str,
    },
    /// The PCI function has fewer registers than the controller needs for its ports.
    #[error("{bytes} bytes of registers are too few for {ports} ports")]
    Registers {
        /// Register bytes of the function.
        bytes: usize,
        /// Number of ports.
        ports: usize,
    },
    /// Out of memory for the sectors of a drive.
    #[error("memory for the sectors of a drive: {0}")]
    Memory(#[from] io::Error),
}

/// How a drive stores data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SataData {
    /// In memory.
    #[default]
    Memory,
    /// Not at all; reads return a pattern of the sector number ([`media::fill_pattern`]).
    Pattern,
    /// Not at all, and no data is copied: transfers only take time.
    Untouched,
}

/// A SATA drive.
///
/// A read passes the drive's processor (one command at a time), its flash units (each page of the
/// command on its own unit, in parallel), the link, and the controller's uplink. A write passes
/// uplink, link and processor, and completes when the cache has space for it; the cache drains at
/// the drive's sustained rate. With enough commands in flight, a drive executes `min(1 / (command +
/// size / processor rate), link rate / size)` commands per second.
///
/// Not modeled: garbage collection, reads that wait for programs, power states.
#[derive(Clone, Debug, PartialEq)]
pub struct SataDriveConfig {
    /// Model number, at most 40 characters.
    pub model: String,
    /// Serial number, at most 20 characters.
    pub serial: String,
    /// Firmware revision, at most 8 characters.
    pub firmware: String,
    /// Capacity in sectors. Default 500,118,192, as drives sold as 256 GB have.
    pub sectors: u64,
    /// Sector size in bytes. Default 512.
    pub sector_bytes: u32,
    /// NCQ tags, 1 to 32. Default 32 ([HIOPS14 §4]: AHCI).
    pub queue_depth: u32,
    /// The processor's time per read command. Default 7.1 µs. With [`processor_bytes_per_sec`] this
    /// gives 134,000 reads of 512 bytes per second (\[HIOPS14\]: five drives at 671,000). It also
    /// gives 100,000 reads of 4 KB per second (the manufacturer's "up to 100K IOPS" for the 840 Pro
    /// 256 GB at queue depth 32).
    ///
    /// [`processor_bytes_per_sec`]: SataDriveConfig::processor_bytes_per_sec
    pub read_command: Nanos,
    /// The processor's time per write command. Default 8.2 µs: 90,000 writes of 4 KB per second,
    /// the manufacturer's number.
    pub write_command: Nanos,
    /// The processor's data rate in bytes per second, in addition to the time per command. Default
    /// 1.41 GB/s.
    pub processor_bytes_per_sec: u64,
    /// Flash units that read in parallel. Default 16.
    pub units: u32,
    /// Contiguous bytes that one unit reads at once. Default 8 KB, a page.
    pub unit_bytes: u32,
    /// Array read time of a page. Default 65 µs: 85 µs in total for a single 4 KB read.
    pub array_read: Nanos,
    /// Link bandwidth. Default 540 MB/s, the manufacturer's sequential read rate, on a 6 Gb/s link.
    pub link_bytes_per_sec: u64,
    /// The link's time per command, for its FISes. Default 0.3 µs.
    pub link_command: Nanos,
    /// Size of the write cache in bytes. Default 64 MiB of the drive's 512 MB of DRAM.
    pub cache_bytes: u64,
    /// Drain rate of the cache to flash. Default 520 MB/s, the manufacturer's sequential write
    /// rate.
    pub drain_bytes_per_sec: u64,
    /// Time of a flush after the cache has drained. Default 100 µs.
    pub flush_time: Nanos,
    /// Time of a trim. Default 150 µs.
    pub trim_time: Nanos,
    /// Time of IDENTIFY DEVICE and READ LOG EXT. Default 50 µs.
    pub inquiry_time: Nanos,
    /// How the drive stores data.
    pub data: SataData,
}

impl Default for SataDriveConfig {
    /// Returns a drive of the Samsung 840 Pro 256 GB class.
    fn default() -> SataDriveConfig {
        SataDriveConfig {
            model: "Sluice SATA SSD 256GB".into(),
            serial: "SLUICESATA".into(),
            firmware: "1.0".into(),
            sectors: 500_118_192,
            sector_bytes: 512,
            queue_depth: 32,
            read_command: Nanos(7_100),
            write_command: Nanos(8_200),
            processor_bytes_per_sec: 1_410_000_000,
            units: 16,
            unit_bytes: 8192,
            array_read: Nanos::from_micros(65),
            link_bytes_per_sec: 540_000_000,
            link_command: Nanos(300),
            cache_bytes: 64 << 20,
            drain_bytes_per_sec: 520_000_000,
            flush_time: Nanos::from_micros(100),
            trim_time: Nanos::from_micros(150),
            inquiry_time: Nanos::from_micros(50),
            data: SataData::Memory,
        }
    }
}
