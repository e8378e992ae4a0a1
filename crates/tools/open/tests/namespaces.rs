//! `sluice::open`: paths to the namespaces of a drive with an image.

// guarantee: B-89

use sluice_open::OpenOptions;
use user_io::{DeviceKind, Handle, QueueConfig};

/// Writes the first and the last sector of a namespace, or checks that they have the value.
fn touch(what: &str, kind: DeviceKind, value: u8, writes: bool) -> u64 {
    let device = sluice_open::open(what, &OpenOptions::default())
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(device.kind(), kind);
    let queue = device.create_queue(QueueConfig::default()).unwrap();
    let mut handle = Handle::new(&device, queue).unwrap();
    let (sectors, bytes) = (device.limits().sectors, device.limits().sector_bytes as usize);
    let data = device.buffer(bytes).unwrap();
    for lba in [0, sectors - 1] {
        data.fill(0, bytes, if writes { value } else { 0xee });
        if writes {
            handle.write(lba, &data, false).unwrap();
            continue;
        }
        handle.read(lba, &data).unwrap();
        let mut found = vec![0; bytes];
        data.read(0, &mut found);
        assert!(found.iter().all(|byte| *byte == value), "{what}, sector {lba}: {}", found[0]);
    }
    sectors
}

#[test]
fn namespaces_are_opened_by_their_paths_and_keep_their_data() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("drive.toml");
    let path = |name: &str, nsid: u32, keys: &str| {
        format!("[[path]]\nname = \"{name}\"\nover = \"d0\"\nnamespace = {nsid}\n{keys}")
    };
    let text = format!(
        "[drive]\nname = \"d0\"\npreset = \"femu-default\"\n\
         geometry = {{ channels = 2, pus = 4, chunks = 40, pages = 16 }}\n\
         namespaces = [\"2M\", \"rest\", \"1M\"]\ndata = \"file\"\npath = \"drive.img\"\n{}{}{}{}",
        path("a", 1, ""),
        path("b", 2, ""),
        path("c", 3, "queue_model = \"mq\"\ncores = 2\n"),
        path("d", 4, ""),
    );
    std::fs::write(&file, text).unwrap();
    let what = |name: &str| format!("{}#{name}", file.display());
    let paths =
        [("a", 11, DeviceKind::Drive), ("b", 12, DeviceKind::Drive), ("c", 13, DeviceKind::Target)];
    for (name, value, kind) in paths {
        touch(&what(name), kind, value, true);
    }
    let sizes = paths.map(|(name, value, kind)| touch(&what(name), kind, value, false));
    assert_eq!((sizes[0], sizes[2]), (512, 256));
    assert!(sizes[1] > 1000, "{sizes:?}");
    assert!(folder.path().join("drive.img.nvm").exists());
    // A namespace that no host has created.
    let error = sluice_open::open(&what("d"), &OpenOptions::default()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("no active namespace 4"), "{error}");
}
