//! Atomic writes of programs on a volume: `statx` and `pwritev2` with `RWF_ATOMIC`.

// guarantee: B-103

use super::fixture::{Fixture, text};

/// A drive with or without atomic writes.
fn scenario(atomic: bool) -> String {
    format!(
        "[drive]\npreset = \"femu-default\"\ndata = \"file\"\npath = \"drive.img\"\natomic = {atomic}\n\
         geometry = {{ channels = 2, pus = 4, planes = 4, chunks = 64, pages = 64 }}\n\
         timing = {{ read = \"10us\", program = \"50us\", erase = \"100us\" }}\n"
    )
}

fn run(stage: &Fixture) -> String {
    let program = stage.compile("whole");
    let out = stage.exec(&[&program, &stage.path("at")]);
    assert!(out.status.success(), "{out:?}");
    assert_eq!(text(&out.stderr), "");
    stage.is_clean();
    text(&out.stdout).to_owned()
}

/// The results on a volume that keeps writes of `max` bytes whole.
fn expected(max: u32) -> String {
    let size = 2 * max.max(6144);
    format!(
        "f 107ff: mask 1 attribute 1 of 1 min 4096 max {max} segments 1\n\
         f 7ff: mask 0 attribute 0 of 0 min 0 max 0 segments 0\n\
         . 107ff: mask 0 attribute 0 of 0 min 0 max 0 segments 0\n\
         smallest: written\nlongest: written\nabove the limit: EINVAL\nfar above the limit: EINVAL\n\
         below a block: EINVAL\nnot a power of two: EINVAL\nunaligned: EINVAL\n\
         unaligned for its length: EINVAL\nnegative offset: EINVAL\nwithout O_DIRECT: ENOTSUP\n\
         O_APPEND: EINVAL\nread-only: EBADF\nnothing: written\ntwo buffers: EINVAL\n\
         too many buffers: EINVAL\nanother flag: ENOTSUP\na read: ENOTSUP\nat the offset: written\n\
         offset 12288\nat an unaligned offset: EINVAL\nsize {size}\n"
    )
}

#[test]
fn a_program_sees_the_limits_and_writes_within_them() {
    let stage = Fixture::on_scenario(&scenario(true));
    assert_eq!(run(&stage), expected(16384));
}

#[test]
fn a_volume_with_units_of_a_block_keeps_blocks_whole() {
    let stage = Fixture::unformatted(&scenario(true));
    let out = stage.sluice(&["volume", "format", "--unit", "4K", &stage.path("drive.toml")]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(run(&stage), expected(4096));
}

#[test]
fn on_a_device_without_atomic_writes_each_is_refused() {
    for stage in [Fixture::on_scenario(&scenario(false)), Fixture::new(16 << 20)] {
        let got = run(&stage);
        let mut lines = got.lines();
        let first = "f 107ff: mask 1 attribute 0 of 1 min 0 max 0 segments 0";
        assert_eq!(lines.next(), Some(first));
        let refused = ["EBADF", "EINVAL", "ENOTSUP", "written"].map(|result| {
            let has = |line: &&str| line.ends_with(&format!(": {result}"));
            lines.clone().filter(has).map(|line| line.split(':').next().unwrap()).collect()
        });
        let [read_only, invalid, _, written]: [Vec<&str>; 4] = refused;
        assert_eq!(read_only, ["read-only"], "{got}");
        assert_eq!(invalid, ["negative offset", "too many buffers"], "{got}");
        assert_eq!(written, ["nothing"], "{got}");
    }
}

#[test]
fn a_unit_that_cannot_be_is_refused() {
    let stage = Fixture::unformatted(&scenario(true));
    for unit in ["2K", "12K", "128K", "8G"] {
        let device = stage.path("drive.toml");
        let out = stage.sluice(&["volume", "format", "--unit", unit, &device]);
        let said = text(&out.stderr);
        assert!(!out.status.success() && said.contains("they have 4096 to 65536"), "{said}");
    }
}
