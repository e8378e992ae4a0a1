//! The keys of drives that are devices of this machine: `kind = "file"`, `"kernel"` and `"pci"`.

use std::path::PathBuf;

use controller::{ControllerConfig, PmrConfig, PmrStore};
use driver::pci::PciAddress;

use super::drive_kind::{DriveKind, check_no_target, read_name, refuse_keys};
use crate::DriveSpec;
use crate::choice::Impossible;
use crate::section::{Result, Section};
use crate::target::TargetBuilder;

/// Default number of tags of a queue.
const DEPTH: u16 = 128;

/// A file or block device of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDrive {
    /// Path of the file.
    pub path: PathBuf,
    /// Sector size in bytes; `None` for that of the file or device.
    pub sector_bytes: Option<u32>,
    /// Whether to bypass the page cache.
    pub direct: bool,
    /// Number of tags of each queue.
    pub queue_depth: u16,
}

/// A namespace of a controller that the kernel drives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelDrive {
    /// Its character device, such as `/dev/ng0n1`.
    pub path: PathBuf,
    /// Number of tags of each queue.
    pub queue_depth: u16,
}

/// An NVMe controller of this machine, bound to vfio-pci.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciDrive {
    /// Its address.
    pub address: PciAddress,
    /// Id of the namespace; `None` for the first one.
    pub namespace: Option<u32>,
}

/// Reads the section of a file or block device.
pub(crate) fn read_file(
    mut s: Section<'_>,
    index: usize,
    target: Option<&TargetBuilder>,
) -> Result<DriveSpec> {
    let name = read_common(&mut s, index, target, "file")?;
    let path = read_path(&mut s, "the file or block device, such as \"disk.img\"")?;
    let mut file = FileDrive { path, sector_bytes: None, direct: true, queue_depth: DEPTH };
    s.set("sector_bytes", &mut file.sector_bytes, |v| match v.size_u32()? {
        bytes if bytes.is_power_of_two() && (512..=65_536).contains(&bytes) => Ok(Some(bytes)),
        _ => Err(v.refuse("powers of two from 512 to 65536")),
    })?;
    s.set("direct", &mut file.direct, |v| v.boolean())?;
    read_depth(&mut s, &mut file.queue_depth)?;
    s.finish()?;
    let sector_bytes = file.sector_bytes.unwrap_or(0);
    Ok(real_drive(name, DriveKind::File(file), sector_bytes))
}

/// Reads the section of a namespace under the kernel's driver.
pub(crate) fn read_kernel(
    mut s: Section<'_>,
    index: usize,
    target: Option<&TargetBuilder>,
) -> Result<DriveSpec> {
    let name = read_common(&mut s, index, target, "kernel")?;
    let path = read_path(&mut s, "the character device of a namespace, such as \"/dev/ng0n1\"")?;
    let mut kernel = KernelDrive { path, queue_depth: DEPTH };
    read_depth(&mut s, &mut kernel.queue_depth)?;
    s.finish()?;
    Ok(real_drive(name, DriveKind::Kernel(kernel), 0))
}

/// Reads the section of a controller.
pub(crate) fn read_pci(
    mut s: Section<'_>,
    index: usize,
    target: Option<&TargetBuilder>,
) -> Result<DriveSpec> {
    let name = read_common(&mut s, index, target, "pci")?;
    let Some(value) = s.get("address") else {
        return Err(s.missing("address", "its PCI address, such as \"0000:01:00.0\""));
    };
    let address = value.string()?.parse::<PciAddress>();
    let address = address.map_err(|_| {
        value.refuse("domain:bus:device.function of a controller, such as \"0000:01:00.0\"")
    })?;
    let mut pci = PciDrive { address, namespace: None };
    s.set("namespace", &mut pci.namespace, |v| match v.u32()? {
        0 | u32::MAX => Err(v.refuse("ids of namespaces, from 1 on")),
        nsid => Ok(Some(nsid)),
    })?;
    s.finish()?;
    Ok(real_drive(name, DriveKind::Pci(pci), 0))
}

/// Reads the name, and refuses the keys of emulated drives and the scenario's target.
fn read_common(
    s: &mut Section<'_>,
    index: usize,
    target: Option<&TargetBuilder>,
    kind: &'static str,
) -> Result<String> {
    let except: &[&str] = if kind == "pci" { &[] } else { &["path"] };
    refuse_keys(s, kind, except)?;
    check_no_target(target)?;
    Ok(read_name(s)?.map_or_else(|| format!("drive{index}"), |(name, _)| name))
}

fn read_path(s: &mut Section<'_>, what: &str) -> Result<PathBuf> {
    match s.get("path") {
        Some(value) => Ok(s.source.resolve(value.string()?)),
        None => Err(s.missing("path", what)),
    }
}

fn read_depth(s: &mut Section<'_>, depth: &mut u16) -> Result<()> {
    s.set("queue_depth", depth, |v| match v.u16_from(1)? {
        depth @ 1..=32_768 => Ok(depth),
        _ => Err(v.refuse("whole numbers from 1 to 32768")),
    })?;
    Ok(())
}

/// Returns a drive whose size is unknown until it is opened, and its sectors perhaps as well (0).
fn real_drive(name: String, kind: DriveKind, sector_bytes: u32) -> DriveSpec {
    let mut plan = DriveSpec::without_flash(name, kind, 0, sector_bytes);
    plan.config.controller.max_io_queues = ControllerConfig::default().max_io_queues;
    plan
}

impl Impossible {
    /// Checks that a drive is emulated, for a `user` that runs in virtual time.
    ///
    /// # Errors
    /// [`Impossible::RealDevice`].
    pub fn check_virtual(
        plan: &DriveSpec,
        user: &'static str,
    ) -> std::result::Result<(), Impossible> {
        match plan.is_real() {
            false => Ok(()),
            true => {
                let (drive, kind) = (plan.config.name.clone(), plan.kind.word());
                Err(Impossible::RealDevice { user, drive, kind })
            }
        }
    }

    /// Checks that the persistent memory region of a drive is emulated, for a `user` that runs in
    /// virtual time.
    ///
    /// # Errors
    /// [`Impossible::RealMemory`].
    pub fn check_virtual_memory(
        plan: &DriveSpec,
        user: &'static str,
    ) -> std::result::Result<(), Impossible> {
        match &plan.config.pmr {
            Some(PmrConfig { store: PmrStore::Dax { .. }, .. }) => {
                Err(Impossible::RealMemory { user, drive: plan.config.name.clone() })
            }
            _ => Ok(()),
        }
    }
}
