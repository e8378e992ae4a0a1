//! The properties of drives that show no flash, for a terminal: SATA drives, and devices of this
//! machine.

use controller::{SataData, SataDriveConfig};
use scenario::DriveKind;
use scenario::format::{bytes_binary, count, duration};

use super::summary::{bandwidth, bytes_in_both_units, line, section};

/// Returns all properties of the SATA drive `name`, and its closed-form rates of 4 KB and 128 KB.
pub(super) fn sata_summary(name: &str, sata: &SataDriveConfig) -> String {
    let mut out = format!("drive \"{name}\"\n");
    line(&mut out, "kind", "SATA drive at a port of the AHCI controller");
    line(&mut out, "capacity", &bytes_in_both_units(sata.sectors * u64::from(sata.sector_bytes)));
    line(&mut out, "sector", &format!("{} bytes", count(sata.sector_bytes.into())));
    line(&mut out, "queue", &format!("{} commands (NCQ)", sata.queue_depth));
    line(
        &mut out,
        "data",
        match sata.data {
            SataData::Memory => "kept in memory, sparse",
            SataData::Pattern | SataData::Untouched => {
                "not kept: reads return a pattern of the address"
            }
        },
    );
    section(&mut out, "drive");
    line(&mut out, "read, write command", &times(sata.read_command.0, sata.write_command.0));
    line(&mut out, "processor", &bandwidth(sata.processor_bytes_per_sec));
    let units = format!(
        "{} of {}, each in {}",
        sata.units,
        bytes_binary(sata.unit_bytes.into()),
        duration(sata.array_read.0)
    );
    line(&mut out, "flash units", &units);
    line(&mut out, "link", &bandwidth(sata.link_bytes_per_sec));
    line(&mut out, "write cache", &bytes_binary(sata.cache_bytes));
    line(&mut out, "cache to flash", &bandwidth(sata.drain_bytes_per_sec));
    line(&mut out, "flush, trim", &times(sata.flush_time.0, sata.trim_time.0));
    section(&mut out, "limits");
    for bytes in [4096, 128 << 10] {
        let rate = format!(
            "{} reads of {}",
            count(reads_per_sec(sata, bytes) as u64),
            bytes_binary(bytes)
        );
        line(&mut out, "per second", &rate);
    }
    out
}

/// Returns the properties of a device of this machine that a scenario has.
pub(super) fn real_summary(name: &str, kind: &DriveKind) -> String {
    let mut out = format!("drive \"{name}\"\n");
    let (what, place) = match kind {
        DriveKind::File(file) => ("file or block device", file.path.display().to_string()),
        DriveKind::Kernel(kernel) => {
            ("namespace under the kernel's driver", kernel.path.display().to_string())
        }
        DriveKind::Pci(pci) => ("NVMe controller by vfio-pci", pci.address.to_string()),
        DriveKind::Nvme | DriveKind::Ahci(_) => ("emulated drive", String::new()),
    };
    line(&mut out, "kind", &format!("{what} of this machine"));
    line(&mut out, "device", &place);
    out
}

fn times(one: u64, other: u64) -> String {
    format!("{}, {}", duration(one), duration(other))
}

/// Returns the rate of reads of `bytes` with enough of them in flight: that of the processor or of
/// the link.
fn reads_per_sec(sata: &SataDriveConfig, bytes: u64) -> f64 {
    let transfer = |rate| time::Nanos::transfer(bytes, rate);
    let processor = sata.read_command + transfer(sata.processor_bytes_per_sec);
    let link = sata.link_command + transfer(sata.link_bytes_per_sec);
    1e9 / processor.max(link).0.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_has_the_rates_of_the_paper_s_drive() {
        let sata = SataDriveConfig::default();
        let text = sata_summary("d", &sata);
        assert!(text.contains("32 commands") && text.contains("540 MB/s"), "{text}");
        // The maker's numbers: 100,000 reads of 4 KB, and 540 MB/s.
        let (small, large) = (reads_per_sec(&sata, 4096), reads_per_sec(&sata, 128 << 10));
        assert!((0.95..1.05).contains(&(small / 100_000.0)), "{small}");
        assert!((0.95..1.0).contains(&(large * 131_072.0 / 540e6)), "{large}");
    }
}
