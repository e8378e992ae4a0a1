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
    let two_blocks = if max < 8192 { "EINVAL" } else { "written" };
    format!(
        "f 107ff: mask 1 attribute 1 of 1 min 4096 max {max} segments 1\n\
         f 7ff: mask 0 attribute 0 of 0 min 0 max 0 segments 0\n\
         . 107ff: mask 0 attribute 0 of 0 min 0 max 0 segments 0\n\
         smallest: written\nlongest: written\nabove the limit: EINVAL\nfar above the limit: EINVAL\n\
         below a block: EINVAL\nnot a power of two: EINVAL\nunaligned: EINVAL\n\
         unaligned for its length: EINVAL\nnegative offset: EINVAL\nwithout O_DIRECT: EOPNOTSUPP\n\
         O_APPEND: EINVAL\nread-only: EBADF\nnothing: written\ntwo buffers: EINVAL\n\
         too many buffers: EINVAL\nanother flag: EOPNOTSUPP\na read: EOPNOTSUPP\nat the offset: written\n\
         offset 12288\nat an unaligned offset: EINVAL\nsize {size}\n\
         two blocks: {two_blocks}\nthe second block: written\n"
    )
}

#[test]
fn a_program_sees_the_limits_and_writes_within_them() {
    let stage = Fixture::on_scenario(&scenario(true));
    assert_eq!(run(&stage), expected(16384));
}

/// A volume with units of a block has the format of those from before units.
#[test]
fn a_volume_with_units_of_a_block_keeps_blocks_whole_and_refuses_writes_across_extents() {
    let stage = Fixture::unformatted(&scenario(true));
    let out = stage.sluice(&["volume", "format", "--unit", "4K", &stage.path("drive.toml")]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(run(&stage), expected(4096));
    let info = stage.sluice(&["volume", "info", &stage.path("drive.toml")]);
    let said = text(&info.stdout);
    // One of `f`, and one of each block of `g`.
    assert!(
        said.contains("unit         4096 bytes") && said.contains("extents      3\n"),
        "{said}"
    );
}

/// The errors come in Linux's order: those of any vectored write, then that of a file without atomic
/// writes, so that no length and no offset is checked.
#[test]
fn on_a_device_without_atomic_writes_each_is_refused() {
    let expected = "\
f 107ff: mask 1 attribute 0 of 1 min 0 max 0 segments 0
f 7ff: mask 0 attribute 0 of 0 min 0 max 0 segments 0
. 107ff: mask 0 attribute 0 of 0 min 0 max 0 segments 0
smallest: EOPNOTSUPP
longest: EOPNOTSUPP
above the limit: EOPNOTSUPP
far above the limit: EOPNOTSUPP
below a block: EOPNOTSUPP
not a power of two: EOPNOTSUPP
unaligned: EOPNOTSUPP
unaligned for its length: EOPNOTSUPP
negative offset: EINVAL
without O_DIRECT: EOPNOTSUPP
O_APPEND: EOPNOTSUPP
read-only: EBADF
nothing: written
two buffers: EOPNOTSUPP
too many buffers: EINVAL
another flag: EOPNOTSUPP
a read: EOPNOTSUPP
at the offset: EOPNOTSUPP
offset 8192
at an unaligned offset: EOPNOTSUPP
size 0
two blocks: EOPNOTSUPP
the second block: EOPNOTSUPP
";
    for stage in [Fixture::on_scenario(&scenario(false)), Fixture::new(16 << 20)] {
        assert_eq!(run(&stage), expected);
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

#[test]
fn statistics_count_the_writes_that_were_journaled_to_be_whole() {
    let stage = Fixture::on_scenario(&scenario(true));
    // A write to the last block of a file, which is on the volume, and to the next one.
    let file = format!("{}/f", stage.path("at"));
    let dd = |kib: u32| format!("dd if=/dev/zero of={file} bs={kib}k count=1 conv=notrunc && sync");
    for (script, journaled) in [(dd(4), 0), (format!("{} && {}", dd(4), dd(8)), 1)] {
        let out = stage.command_with(&["--stats"], &["sh", "-c", &script]).output().unwrap();
        let said = text(&out.stderr);
        assert!(out.status.success(), "{said}");
        let count = format!(", {journaled} parts of writes to keep them whole;");
        assert!(said.contains(&count), "{said}");
    }
}
