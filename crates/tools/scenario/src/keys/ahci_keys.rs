//! The keys of a SATA drive at an AHCI controller: `kind = "ahci"`, `[drive.sata]` and `[ahci]`.

use controller::{AhciConfig, SataData, SataDriveConfig};
use time::Nanos;

use super::drive_kind::{DriveKind, check_no_target, read_name, refuse_keys};
use crate::choice::Impossible;
use crate::error::ProblemKind;
use crate::ranges::{MEDIA_TIME, STEP_TIME};
use crate::section::{Keyword, Result, Section, Value};
use crate::target::TargetBuilder;
use crate::{DriveSpec, Scenario};

/// Number of ports of an AHCI controller.
pub(crate) const PORTS_MAX: usize = 32;

/// Maximum capacity of a SATA drive in bytes.
const BYTES_MAX: u64 = 64 << 40;

/// The controller that the SATA drives of a scenario share: `[ahci]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AhciUplink {
    /// Bandwidth of the controller's uplink in bytes per second; 0 for no limit.
    pub bytes_per_sec: u64,
    /// Time from the end of a reset until the drives' links are up.
    pub link_up: Nanos,
}

impl Default for AhciUplink {
    fn default() -> AhciUplink {
        let AhciConfig { uplink_bytes_per_sec, link_up, .. } = AhciConfig::hiops();
        AhciUplink { bytes_per_sec: uplink_bytes_per_sec, link_up }
    }
}

impl AhciUplink {
    pub(crate) fn read(mut s: Section<'_>) -> Result<AhciUplink> {
        let mut shared = AhciUplink::default();
        s.set("uplink_bandwidth", &mut shared.bytes_per_sec, |v| v.rate_or_none())?;
        s.set("link_up", &mut shared.link_up, |v| v.duration_in(&STEP_TIME))?;
        s.finish()?;
        Ok(shared)
    }
}

/// Reads the section of a SATA drive. `target` is that of the scenario, `index` the index of the
/// drive.
pub(crate) fn read(
    mut s: Section<'_>,
    index: usize,
    target: Option<&TargetBuilder>,
) -> Result<DriveSpec> {
    refuse_keys(&s, "ahci", &["capacity", "data"])?;
    let name = read_name(&mut s)?.map_or_else(|| format!("drive{index}"), |(name, _)| name);
    check_no_target(target)?;
    let mut sata = SataDriveConfig { serial: name.clone(), ..SataDriveConfig::default() };
    let stores = [Keyword("memory", SataData::Memory), Keyword("none", SataData::Pattern)];
    s.set("data", &mut sata.data, |v| v.choice(&stores))?;
    let capacity = s.get("capacity");
    if let Some(value) = s.get("sata") {
        read_sata(value.section()?, &mut sata)?;
    }
    let sector = u64::from(sata.sector_bytes);
    if let Some(value) = capacity {
        let bytes = value.size()?;
        if bytes == 0 || bytes > BYTES_MAX || !bytes.is_multiple_of(sector) {
            return Err(value.refuse(format!("sectors of {sector} bytes, one to 64 TiB of them")));
        }
        sata.sectors = bytes / sector;
    } else {
        // A drive sold as 256 GB, whatever its sectors are.
        sata.sectors = sata.sectors * 512 / sector;
    }
    s.finish()?;
    let (bytes, sector_bytes) = (sata.sectors * sector, sata.sector_bytes);
    Ok(DriveSpec::without_flash(name, DriveKind::Ahci(Box::new(sata)), bytes, sector_bytes))
}

/// Reads `[drive.sata]`: the model of a SATA drive.
fn read_sata(mut s: Section<'_>, sata: &mut SataDriveConfig) -> Result<()> {
    s.set("sector_bytes", &mut sata.sector_bytes, |v| match v.size_u32()? {
        bytes if bytes.is_power_of_two() && (512..=65_536).contains(&bytes) => Ok(bytes),
        _ => Err(v.refuse("powers of two from 512 to 65536")),
    })?;
    s.set("queue_depth", &mut sata.queue_depth, |v| within(v, 1, 32))?;
    s.set("read_command", &mut sata.read_command, |v| v.duration_in(&STEP_TIME))?;
    s.set("write_command", &mut sata.write_command, |v| v.duration_in(&STEP_TIME))?;
    s.set("processor_bandwidth", &mut sata.processor_bytes_per_sec, |v| v.rate_or_none())?;
    s.set("units", &mut sata.units, |v| within(v, 1, 4096))?;
    s.set("unit_bytes", &mut sata.unit_bytes, |v| match v.size_u32()? {
        0 => Err(v.refuse("1 byte and more")),
        bytes => Ok(bytes),
    })?;
    s.set("array_read", &mut sata.array_read, |v| v.duration_in(&MEDIA_TIME))?;
    s.set("link_bandwidth", &mut sata.link_bytes_per_sec, |v| v.rate_or_none())?;
    s.set("link_command", &mut sata.link_command, |v| v.duration_in(&STEP_TIME))?;
    s.set("cache", &mut sata.cache_bytes, |v| v.size())?;
    s.set("drain_bandwidth", &mut sata.drain_bytes_per_sec, |v| v.rate_or_none())?;
    s.set("flush", &mut sata.flush_time, |v| v.duration_in(&STEP_TIME))?;
    s.set("trim", &mut sata.trim_time, |v| v.duration_in(&STEP_TIME))?;
    s.finish()
}

fn within(v: &Value<'_>, least: u32, most: u32) -> Result<u32> {
    let n = v.u32()?;
    if (least..=most).contains(&n) {
        return Ok(n);
    }
    Err(v.refuse(format!("whole numbers from {least} to {most}")))
}

impl Scenario {
    /// Returns the indices of the SATA drives, by port of the AHCI controller.
    pub fn sata_drives(&self) -> impl Iterator<Item = usize> {
        (0..self.drives.len()).filter(|drive| self.drives[*drive].sata().is_some())
    }

    /// Returns the AHCI controller that has the SATA drives of the scenario; `None` without any.
    pub fn ahci(&self) -> Option<AhciConfig> {
        let drives: Vec<_> =
            self.drives.iter().filter_map(DriveSpec::sata).cloned().map(Some).collect();
        let AhciUplink { bytes_per_sec: uplink_bytes_per_sec, link_up } = self.host.ahci;
        (!drives.is_empty()).then_some(AhciConfig { drives, uplink_bytes_per_sec, link_up })
    }

    /// Checks that a SATA drive fits the controller of the drives before it.
    pub(crate) fn check_ahci_port(&self, plan: &DriveSpec) -> std::result::Result<(), ProblemKind> {
        let Some(sata) = plan.sata() else { return Ok(()) };
        let mut others = self.drives.iter().filter_map(DriveSpec::sata);
        if others.clone().count() == PORTS_MAX {
            return Err(Impossible::NoPort { drive: plan.config.name.clone() }.into());
        }
        match others.next() {
            Some(first) if first.sector_bytes != sata.sector_bytes => Err(ProblemKind::Conflict {
                message: format!(
                    "drive {} has sectors of {} bytes, and the AHCI drive before it of {}",
                    plan.config.name, sata.sector_bytes, first.sector_bytes
                ),
                help: "give the drives of the AHCI controller equal sectors".into(),
            }),
            _ => Ok(()),
        }
    }
}
