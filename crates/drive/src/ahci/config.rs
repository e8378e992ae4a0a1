//! [`AhciConfig`]: what describes a controller and its drives.

use std::io;
use std::sync::Arc;

use clock::Nanos;
use ring::PciFunction;
use sata::{COMMAND_SLOTS_MAX, PORTS_MAX, hba};

/// A controller, its drives, and what they share.
#[derive(Clone, Debug, PartialEq)]
pub struct AhciConfig {
    /// Per port, 1 to 32 of them: its drive, or an empty bay.
    pub drives: Vec<Option<SataDriveConfig>>,
    /// What all drives' data passes, first come first served, in either direction; 0 for no limit.
    ///
    /// 1.5 GB/s: where the bandwidth of HIOPS figure 7 converges, which its section 4 puts down to
    /// the chipset's uplink and its internal interconnects.
    pub uplink_bytes_per_sec: u64,
    /// From the end of a reset to a link that is up.
    pub link_up: Nanos,
}

impl AhciConfig {
    /// HIOPS section 4: six drives of the Samsung 840 Pro 256 GB class.
    pub fn hiops() -> AhciConfig {
        AhciConfig::uniform(6, &SataDriveConfig::default())
    }

    /// `ports` ports with the same drive, but for its serial number, at each.
    pub fn uniform(ports: usize, drive: &SataDriveConfig) -> AhciConfig {
        let drives = (0..ports)
            .map(|i| {
                let serial = format!("{}{i:02}", drive.serial);
                Some(SataDriveConfig { serial, ..drive.clone() })
            })
            .collect();
        AhciConfig { drives, uplink_bytes_per_sec: 1_500_000_000, link_up: Nanos::from_millis(1) }
    }

    /// A connection with as many registers as such a controller has.
    ///
    /// # Errors
    /// What `mmap(2)` returns.
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

/// Why a controller cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum AhciConfigError {
    /// The description makes no sense.
    #[error("{what}")]
    Invalid {
        /// What is allowed.
        what: &'static str,
    },
    /// The connection has fewer registers than the controller has ports.
    #[error("{bytes} bytes of registers are too few for {ports} ports")]
    Registers {
        /// Bytes that there are.
        bytes: usize,
        /// Ports.
        ports: usize,
    },
    /// No memory for the sectors of a drive.
    #[error("memory for the sectors of a drive: {0}")]
    Memory(#[from] io::Error),
}

/// What a drive keeps of the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SataData {
    /// Everything, in memory, as it is written.
    #[default]
    Memory,
    /// Nothing; sectors read as a pattern of their number ([`media::fill_pattern`]).
    Pattern,
    /// Nothing, and nothing is copied: transfers take their time only.
    Untouched,
}

/// A SATA drive.
///
/// A read passes the drive's processor (one command at a time), its flash units (each page of the
/// command on its unit, all at once), the link, and the controller's uplink. A write passes uplink,
/// link and processor, and has ended when the cache has room for it; the cache drains at the
/// drive's sustained rate. With enough commands outstanding a drive so does
/// `min(1 / (command + size / processor rate), link rate / size)`.
///
/// Not modelled: garbage collection, reads that wait for programs, power states.
#[derive(Clone, Debug, PartialEq)]
pub struct SataDriveConfig {
    /// Model number, 40 characters at most.
    pub model: String,
    /// Serial number, 20 characters at most.
    pub serial: String,
    /// Firmware revision, 8 characters at most.
    pub firmware: String,
    /// Sectors. 500,118,192, what drives sold as 256 GB have.
    pub sectors: u64,
    /// Bytes of a sector. 512.
    pub sector_bytes: u32,
    /// NCQ tags, 1 to 32. 32 (HIOPS section 4: AHCI).
    pub queue_depth: u32,
    /// The processor's time per read command. 7.1 µs: with [`processor_bytes_per_sec`] 134,000 reads
    /// of 512 bytes per second (HIOPS: five drives at 671,000) and 100,000 of 4 KB (the maker's
    /// "up to 100K IOPS" for the 840 Pro 256 GB at queue depth 32).
    ///
    /// [`processor_bytes_per_sec`]: SataDriveConfig::processor_bytes_per_sec
    pub read_command: Nanos,
    /// The processor's time per write command. 8.2 µs: 90,000 writes of 4 KB per second, as the
    /// maker says.
    pub write_command: Nanos,
    /// The rate at which the processor handles data, on top of the time per command. 1.41 GB/s.
    pub processor_bytes_per_sec: u64,
    /// Flash units that read at the same time. 16.
    pub units: u32,
    /// Bytes that one unit reads at once, and that are side by side on it. 8 KB, a page.
    pub unit_bytes: u32,
    /// From a page's cells to the processor. 65 µs: with the rest 85 µs for a 4 KB read alone.
    pub array_read: Nanos,
    /// The link's rate for data. 540 MB/s, the maker's sequential read, on a link of 6 Gb/s.
    pub link_bytes_per_sec: u64,
    /// The link's time per command, for its FISes. 0.3 µs.
    pub link_command: Nanos,
    /// Bytes of the write cache. 64 MiB of the drive's 512 MB of DRAM.
    pub cache_bytes: u64,
    /// The rate at which the cache drains to flash. 520 MB/s, the maker's sequential write.
    pub drain_bytes_per_sec: u64,
    /// A flush, on top of draining the cache. 100 µs.
    pub flush_time: Nanos,
    /// A trim. 150 µs.
    pub trim_time: Nanos,
    /// IDENTIFY DEVICE and READ LOG EXT. 50 µs.
    pub inquiry_time: Nanos,
    /// What is kept of the data.
    pub data: SataData,
}

impl Default for SataDriveConfig {
    /// A drive of the Samsung 840 Pro 256 GB class.
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
