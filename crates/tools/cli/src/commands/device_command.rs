//! `sluice device list`, `bind`, `unbind` and `info`: NVMe controllers of this machine, and targets
//! that can be opened.

use driver::pci::{PciDeviceEntry, PciDriver, PciError, SysfsPci};
use open::{OpenOptions, Target, TargetOpenError, UNSAFE};
use serde_json::json;

use crate::args::{DeviceArgs, DeviceInfoArgs};
use crate::{CliError, device_table, print};

/// Runs `sluice device …`.
///
/// # Errors
/// [`CliError`] if the controller does not exist, is in use, or if the kernel refuses the
/// operation.
pub fn run(args: &DeviceArgs) -> Result<(), CliError> {
    run_on(&SysfsPci::default(), args)
}

fn run_on(system: &SysfsPci, args: &DeviceArgs) -> Result<(), CliError> {
    match args {
        DeviceArgs::List(args) => {
            let slots = system.controllers().map_err(failure)?;
            print(&if args.json { list_json(system, &slots) } else { list(system, &slots) })
        }
        DeviceArgs::Bind(args) => print_result(system.bind(args.address, args.driver)),
        DeviceArgs::Unbind(args) => print_result(system.unbind(args.address)),
        DeviceArgs::Info(args) => info(args),
    }
}

fn info(args: &DeviceInfoArgs) -> Result<(), CliError> {
    let failure = |error: TargetOpenError| match error.is_usage() {
        true => CliError::Usage(error.to_string()),
        false => CliError::Other(error.to_string()),
    };
    let target: Target = args.device.parse().map_err(failure)?;
    // Other processes may use a file or block device at the same time.
    let read_only = matches!(target, Target::File(_));
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    let device = open::open_target(&target, &options).map_err(failure)?;
    let said = device_table::describe(&args.device, &device)
        .map_err(|error| CliError::Other(error.to_string()))?;
    print(&if args.json { format!("{said}\n") } else { device_table::to_text(&said) })
}

fn failure(error: PciError) -> CliError {
    match error.is_usage_error() {
        true => CliError::Usage(error.to_string()),
        false => CliError::Other(error.to_string()),
    }
}

fn print_result(slot: Result<PciDeviceEntry, PciError>) -> Result<(), CliError> {
    let slot = slot.map_err(failure)?;
    let address = slot.address;
    let opened = match slot.bound_to() {
        None => String::new(),
        Some(PciDriver::VfioPci) => format!("; open it as vfio:{address}"),
        Some(PciDriver::UioPciGeneric) => {
            format!("; open it as uio:{address}?unsafe=1 ({UNSAFE})")
        }
    };
    print(&format!("{address} has driver {}{opened}\n", driver_of(&slot)))
}

fn driver_of(slot: &PciDeviceEntry) -> &str {
    slot.driver.as_deref().unwrap_or("none")
}

/// Formats one line per controller, followed by its users.
fn list(system: &SysfsPci, slots: &[PciDeviceEntry]) -> String {
    if slots.is_empty() {
        return "no NVMe controllers\n".into();
    }
    let names = slots.iter().map(|slot| driver_of(slot).len());
    let wide = names.max().unwrap_or(0).max(10);
    let mut out =
        format!("{:<14} {:<10} {:<wide$} {:<6} namespaces\n", "address", "id", "driver", "group");
    for slot in slots {
        let id = format!("{:04x}:{:04x}", slot.vendor, slot.device);
        let group = slot.group.map_or("none".into(), |g| g.to_string());
        let devices = system.block_devices(slot.address).join(" ");
        let line = format!(
            "{:<14} {id:<10} {:<wide$} {group:<6} {devices}",
            slot.address.to_string(),
            driver_of(slot)
        );
        out += line.trim_end();
        out += "\n";
        if slot.bound_to() == Some(PciDriver::UioPciGeneric) {
            out += &format!("  {UNSAFE}\n");
        }
        for user in system.users(slot.address) {
            out += &format!("  {user}\n");
        }
    }
    out
}

fn list_json(system: &SysfsPci, slots: &[PciDeviceEntry]) -> String {
    let controllers = slots.iter().map(|slot| {
        let users = system.users(slot.address).iter().map(|u| u.to_string()).collect::<Vec<_>>();
        json!({
            "address": slot.address.to_string(),
            "vendor": slot.vendor,
            "device": slot.device,
            "driver": slot.driver,
            "group": slot.group,
            "unsafe": slot.bound_to() == Some(PciDriver::UioPciGeneric),
            "namespaces": system.block_devices(slot.address),
            "users": users,
        })
    });
    format!("{}\n", json!({ "controllers": controllers.collect::<Vec<_>>() }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;
    use crate::args::{DeviceBindArgs, DeviceUnbindArgs};

    /// Returns a machine with a controller that the system swaps to.
    fn sample(root: &Path) -> SysfsPci {
        let system =
            SysfsPci { sys: root.join("sys"), proc: root.join("proc"), dev: root.join("dev") };
        let folder = system.sys.join("bus/pci/devices/0000:01:00.0");
        for below in ["nvme/nvme0/nvme0n1", "iommu_group_3"] {
            fs::create_dir_all(folder.join(below)).unwrap();
        }
        for (name, text) in [("class", "0x010802"), ("vendor", "0x144d"), ("device", "0xa80a")] {
            fs::write(folder.join(name), text).unwrap();
        }
        for driver in ["nvme", "vfio-pci"] {
            fs::create_dir_all(system.sys.join("bus/pci/drivers").join(driver)).unwrap();
        }
        symlink(system.sys.join("bus/pci/drivers/nvme"), folder.join("driver")).unwrap();
        fs::create_dir_all(root.join("groups/3")).unwrap();
        symlink(root.join("groups/3"), folder.join("iommu_group")).unwrap();
        fs::create_dir_all(system.sys.join("class/block/nvme0n1")).unwrap();
        fs::create_dir_all(&system.proc).unwrap();
        fs::write(system.proc.join("swaps"), "Filename\n/dev/nvme0n1 partition\n").unwrap();
        system
    }

    #[test]
    fn the_list_says_who_has_what_and_what_uses_it() {
        let root = tempfile::tempdir().unwrap();
        let system = sample(root.path());
        let slots = system.controllers().unwrap();
        let text = list(&system, &slots);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "0000:01:00.0   144d:a80a  nvme       3      nvme0n1");
        assert_eq!(lines[2], "  nvme0n1 is swapped to");
        assert_eq!(lines.len(), 3);
        let json: serde_json::Value = serde_json::from_str(&list_json(&system, &slots)).unwrap();
        let one = &json["controllers"][0];
        assert_eq!((&one["driver"], &one["group"]), (&json!("nvme"), &json!(3)));
        assert_eq!(one["users"], json!(["nvme0n1 is swapped to"]));
        assert_eq!(list(&system, &[]), "no NVMe controllers\n");
    }

    #[test]
    fn what_the_system_uses_is_not_bound() {
        let root = tempfile::tempdir().unwrap();
        let system = sample(root.path());
        let address = "0000:01:00.0".parse().unwrap();
        let bind = |system: &SysfsPci, driver| {
            run_on(system, &DeviceArgs::Bind(DeviceBindArgs { address, driver }))
        };
        let vfio = PciDriver::VfioPci;
        let Err(CliError::Usage(said)) = bind(&system, vfio) else { panic!("bound") };
        assert_eq!(said, "0000:01:00.0 is in use: nvme0n1 is swapped to");
        let Err(CliError::Usage(said)) = bind(&system, PciDriver::UioPciGeneric) else {
            panic!("bound")
        };
        assert!(said.contains("behind an IOMMU (group 3)"), "{said}");
        // A machine without such a controller.
        let folder = system.sys.join("bus/pci/devices/0000:01:00.0");
        fs::remove_file(folder.join("iommu_group")).unwrap();
        let Err(CliError::Usage(said)) = bind(&system, PciDriver::UioPciGeneric) else {
            panic!("bound")
        };
        assert!(said.contains("modprobe uio_pci_generic"), "{said}");
        let driver = system.sys.join("bus/pci/drivers/uio_pci_generic");
        fs::create_dir_all(&driver).unwrap();
        let Err(CliError::Usage(said)) = bind(&system, PciDriver::UioPciGeneric) else {
            panic!("bound")
        };
        assert_eq!(said, "0000:01:00.0 is in use: nvme0n1 is swapped to");
        fs::remove_file(folder.join("driver")).unwrap();
        symlink(&driver, folder.join("driver")).unwrap();
        let text = list(&system, &system.controllers().unwrap());
        assert!(
            text.contains("uio_pci_generic none   nvme0n1\n  unsafe: there is no IOMMU"),
            "{text}"
        );
        let nowhere = SysfsPci { sys: root.path().join("none"), ..system };
        let Err(CliError::Usage(said)) = bind(&nowhere, vfio) else { panic!("bound") };
        assert!(said.contains("no such PCI function"), "{said}");
        let unbind = run_on(&nowhere, &DeviceArgs::Unbind(DeviceUnbindArgs { address }));
        assert!(matches!(unbind, Err(CliError::Usage(_))));
    }
}
