//! `sluice volume`: files are copied in and out of a volume on a file; refused commands.

use std::process::{Command, Output};

fn sluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(args).output().expect("the command runs")
}

fn works(args: &[&str]) -> String {
    let out = sluice(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("UTF-8")
}

#[test]
fn format_makes_a_file_of_a_size() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let device = path("new.img");
    works(&["volume", "format", &device, "--size", "32M"]);
    assert_eq!(std::fs::metadata(&device).unwrap().len(), 32 << 20);
    assert_eq!(works(&["volume", "fsck", &device]), "clean\n");
    // An existing file is not changed, even with --force.
    let before = std::fs::read(&device).unwrap();
    for force in [&[][..], &["--force"]] {
        let out = sluice(&[&["volume", "format", &device, "--size", "64M"][..], force].concat());
        assert_eq!(out.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&out.stderr).contains("is there already"), "{out:?}");
        assert!(std::fs::read(&device).unwrap() == before);
    }
    // A file that cannot be formatted is removed.
    let small = path("small.img");
    assert_eq!(sluice(&["volume", "format", &small, "--size", "4k"]).status.code(), Some(1));
    assert!(!std::path::Path::new(&small).exists());
    for (device, size) in [("drive.toml", "1G"), ("vfio:0000:01:00.0", "1G"), (&*small, "much")] {
        let out = sluice(&["volume", "format", device, "--size", size]);
        assert_eq!(out.status.code(), Some(2), "{out:?}");
    }
}

#[test]
fn a_file_goes_in_and_comes_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (device, file, back) = (path("disk.img"), path("in"), path("out"));
    std::fs::File::create(&device).unwrap().set_len(32 << 20).unwrap();
    let bytes: Vec<u8> = (0..3_000_001u32).map(|i| (i * 7 / 3) as u8).collect();
    std::fs::write(&file, &bytes).unwrap();
    let none = sluice(&["volume", "info", &device]);
    assert_eq!(none.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&none.stderr).contains("not a volume"));
    works(&["volume", "format", &device, "--label", "test"]);
    assert_eq!(
        sluice(&["volume", "format", &device]).status.code(),
        Some(1),
        "the device already has a volume"
    );
    works(&["volume", "put", &device, &file, "/in"]);
    assert!(works(&["volume", "ls", &device]).contains("3000001 in"));
    works(&["volume", "get", &device, "in", &back]);
    assert!(std::fs::read(&back).unwrap() == bytes);
    assert_eq!(sluice(&["volume", "get", &device, "other", &back]).status.code(), Some(1));
    let info = works(&["volume", "info", &device]);
    assert!(info.contains("label        test") && info.contains("files        1"), "{info}");
    assert_eq!(works(&["volume", "fsck", &device]), "clean\n");
}
