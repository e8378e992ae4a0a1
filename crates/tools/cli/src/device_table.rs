//! `sluice device info`: the opened target, its access path and its features.

use driver::DataPointers;
use driver::pci::PciDriver;
use nvme::{FeatureSelect, HealthLog, MetadataFormat, MetadataTransfer, ProtectionType, feature};
use open::UNSAFE;
use serde_json::{Value, json};
use user_io::{DeviceKind, DirectError, IoDevice};

/// Returns the access path of I/O to the device.
fn access_path(device: &IoDevice) -> &'static str {
    match device.kind() {
        DeviceKind::Null => "nowhere: everything is acknowledged at once",
        DeviceKind::File => "the kernel's files and block devices, by io_uring",
        DeviceKind::Passthrough => {
            "NVMe commands beside the kernel's driver, by io_uring passthrough"
        }
        DeviceKind::Drive => "queue pairs of a drive in this process",
        DeviceKind::Target => "a target in this process",
        DeviceKind::Remote => "queue pairs of a drive in another process",
        DeviceKind::Controller => match device.bound_driver() {
            Some(PciDriver::UioPciGeneric) => {
                "queue pairs of a real controller, by UIO, without an IOMMU"
            }
            _ => "queue pairs of a real controller, by VFIO",
        },
    }
}

fn kind(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Null => "null",
        DeviceKind::File => "file",
        DeviceKind::Passthrough => "passthrough",
        DeviceKind::Drive => "drive",
        DeviceKind::Target => "target",
        DeviceKind::Remote => "served",
        DeviceKind::Controller => "controller",
    }
}

fn pointers(data: DataPointers) -> &'static str {
    match data {
        DataPointers::Sgl => "sgl",
        DataPointers::SglAndPrp => "sgl-and-prp",
        DataPointers::Prp => "prp",
    }
}

fn health(log: &HealthLog) -> Value {
    // Counts have 128 bits; those that JSON numbers cannot represent are saturated.
    let count = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    json!({
        "critical_warning": log.critical_warning,
        "temperature_kelvin": log.temperature.get(),
        "available_spare_percent": log.available_spare,
        "used_percent": log.percentage_used,
        "reads": count(log.host_reads.get()),
        "writes": count(log.host_writes.get()),
        "power_cycles": count(log.power_cycles.get()),
        "unsafe_shutdowns": count(log.unsafe_shutdowns.get()),
        "media_errors": count(log.media_errors.get()),
        "error_entries": count(log.error_entries.get()),
    })
}

/// Returns the settings of features that the drive supports.
fn setup_features(device: &IoDevice) -> Value {
    let features = [
        ("volatile_write_cache", feature::VOLATILE_WRITE_CACHE),
        ("temperature_threshold_kelvin", feature::TEMPERATURE_THRESHOLD),
        ("events", feature::ASYNC_EVENT),
    ];
    let value = |fid| device.get_feature(fid, FeatureSelect::Current).ok();
    let found =
        features.into_iter().filter_map(|(name, fid)| Some((name.into(), value(fid)?.into())));
    Value::Object(found.collect())
}

/// Returns the metadata of a namespace's sectors.
fn metadata(MetadataFormat { bytes, transfer: place, protection }: MetadataFormat) -> String {
    let place = match place {
        MetadataTransfer::ControllerOnly => "kept by the controller",
        MetadataTransfer::SeparateBuffer => "in a buffer of its own",
        MetadataTransfer::ExtendedLba => "behind it",
    };
    let protection = match protection {
        None => "",
        Some(ProtectionType::Type1) => ", protection type 1",
        Some(ProtectionType::Type2) => ", protection type 2",
        Some(ProtectionType::Type3) => ", protection type 3",
    };
    format!("{bytes} bytes per sector, {place}{protection}")
}

/// Returns the description of a device that was opened as `what`.
///
/// # Errors
/// [`DirectError`] if a drive does not return its health log.
pub(super) fn describe(what: &str, device: &IoDevice) -> Result<Value, DirectError> {
    let (limits, features) = (device.limits(), device.features());
    let mut said = json!({
        "device": what,
        "kind": kind(device.kind()),
        "path": access_path(device),
        "bytes": limits.bytes(),
        "sector_bytes": limits.sector_bytes,
        "sectors": limits.sectors,
        "transfer_bytes_max": u64::from(limits.max_sectors) * u64::from(limits.sector_bytes),
        "queue_depth": limits.queue_depth,
        "volatile_cache": limits.volatile_cache,
        "memory_alignment": device.memory_alignment(),
        "segments": features.segments,
        "fua": features.fua,
        "discard": features.discard,
        "write_zeroes": features.write_zeroes,
        "extents": features.extents,
    });
    if device.bound_driver() == Some(PciDriver::UioPciGeneric) {
        said["unsafe"] = json!(UNSAFE.trim_start_matches("unsafe: "));
    }
    if let Some(info) = device.drive_info() {
        said["drive"] = json!({
            "serial": info.serial,
            "model": info.product.model,
            "firmware": info.product.firmware,
            "namespace": info.nsid,
            "io_queues": info.io_queues,
            "interrupts": device.has_interrupts(),
            "doorbells": match device.has_shadow_doorbells() {
                None => "the kernel's",
                Some(true) => "memory",
                Some(false) => "registers",
            },
            "data_pointers": match device.kind() {
                DeviceKind::Passthrough => "the kernel's",
                _ => pointers(info.data),
            },
        });
        if let Some(kept) = info.metadata {
            said["drive"]["metadata"] = json!(metadata(kept));
        }
        said["health"] = health(&device.health()?);
        said["features"] = setup_features(device);
    }
    Ok(said)
}

/// Formats a description as lines of text, each with a name and a value.
pub(super) fn to_text(said: &Value) -> String {
    let mut out = String::new();
    lines(said, "", &mut out);
    out
}

fn lines(said: &Value, indent: &str, out: &mut String) {
    let Some(fields) = said.as_object() else { return };
    for (name, value) in fields {
        let name = name.replace('_', " ");
        match value {
            Value::Object(_) => {
                *out += &format!("{indent}{name}\n");
                lines(value, "  ", out);
            }
            Value::String(text) => *out += &format!("{indent}{name}: {text}\n"),
            Value::Bool(yes) => {
                *out += &format!("{indent}{name}: {}\n", if *yes { "yes" } else { "no" });
            }
            value => *out += &format!("{indent}{name}: {value}\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use open::OpenOptions;

    use super::*;

    #[test]
    fn every_kind_says_which_way_it_goes() {
        let null = open::open("null:1G", &OpenOptions::default()).unwrap();
        let said = describe("null:1G", &null).unwrap();
        assert_eq!((&said["kind"], &said["bytes"]), (&json!("null"), &json!(1u64 << 30)));
        assert!(said.get("health").is_none() && said.get("drive").is_none());
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let path = file.path().to_str().unwrap();
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let said = describe(path, &open::open(path, &options).unwrap()).unwrap();
        assert_eq!((&said["kind"], &said["discard"]), (&json!("file"), &json!(false)));
        let text = to_text(&said);
        assert!(
            text.contains("path: the kernel's files and block devices, by io_uring\n"),
            "{text}"
        );
        assert!(text.contains("bytes: 1048576\n") && text.contains("fua: no\n"), "{text}");
    }

    #[test]
    fn a_drive_tells_its_name_its_health_and_its_features() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("drive.toml");
        std::fs::write(&file, "[drive]\npreset = \"femu-default\"\ngeometry = { channels = 2, pus = 4, chunks = 40, pages = 16 }\n").unwrap();
        let what = file.to_str().unwrap();
        let device = open::open(what, &OpenOptions::default()).unwrap();
        let said = describe(what, &device).unwrap();
        assert_eq!(said["kind"], json!("drive"));
        assert_eq!(said["drive"]["namespace"], json!(1));
        assert!(said["health"]["temperature_kelvin"].as_u64().unwrap() > 200);
        assert!(said["features"]["temperature_threshold_kelvin"].is_u64(), "{said}");
        let text = to_text(&said);
        assert!(text.contains("\n  data pointers: sgl\n"), "{text}");
        // Events and features through this device.
        assert!(device.poll_event().is_err(), "none is awaited");
        device.arm_event().unwrap();
        assert_eq!(device.poll_event().unwrap(), None);
        let threshold = feature::TEMPERATURE_THRESHOLD;
        device.set_feature(threshold, 300).unwrap();
        assert_eq!(device.get_feature(threshold, FeatureSelect::Current).unwrap(), 300);
        let null = open::open("null", &OpenOptions::default()).unwrap();
        assert!(null.get_feature(threshold, FeatureSelect::Current).is_err());
        assert!(null.set_feature(threshold, 1).is_err() && null.arm_event().is_err());
        assert!(null.poll_event().is_err());
    }
}
