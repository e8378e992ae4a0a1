//! Drives with logical blocks of 512 bytes, from a scenario to its results.

// guarantee: B-79, B-80

use std::path::Path;

use scenario::Scenario;
use serde_json::Value;
use sluice_sim::{SimOptions, simulate, to_json};

fn run(text: &str) -> Value {
    let scenario =
        Scenario::parse(Path::new("test.toml"), text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let outcome =
        simulate(&scenario, SimOptions::default()).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_eq!(outcome.paths[0].run.failures().count(), 0, "{text}");
    to_json(&outcome)["sluice"].clone()
}

/// Jobs that write and verify single blocks, on every path to a drive with its own FTL.
#[test]
fn jobs_of_single_blocks_verify_their_data_on_every_path() {
    for preset in ["tlc-2020s-small", "qlc-2020s-small", "mqsim-default-small", "femu-default"] {
        for path in ["", "[path]\nqueue_model = \"mq\"\ncores = 2\nscheduler = \"deadline\"\n"] {
            let text = format!(
                "[drive]\npreset = \"{preset}\"\ndata = \"memory\"\nlba_bytes = 512\n\
                 geometry = {{ channels = 2, pus = 2, chunks = 24, pages = 48 }}\n\
                 write_buffer.size = \"1M\"\n{path}\
                 [[job]]\nname = \"blocks\"\nrw = \"randwrite\"\nbs = \"512\"\nsize = \"1m\"\n\
                 iodepth = 16\nverify = \"crc32c\"\n\
                 [[job]]\nname = \"odd\"\nrw = \"randwrite\"\nbs = \"2560\"\noffset = \"2m\"\n\
                 size = \"1m\"\niodepth = 8\nverify = \"crc32c\"\nfsync = 16\n"
            );
            let json = run(&text);
            let partial = &json["drives"][0]["interface"]["read_modify_write"];
            assert!(partial["units"].as_u64().unwrap() > 2048, "{preset}: {partial}");
            assert_eq!(partial["failures"], 0);
            assert_eq!(json["parameters"]["drives"][0]["lba_bytes"], 512, "{preset}");
            assert_eq!(run(&text)["drives"], json["drives"], "{preset}: a run repeats itself");
        }
    }
}

/// Blocks are those of the device for every layer: a stripe of two drives has them, too.
#[test]
fn a_set_of_drives_with_small_blocks_has_them() {
    let drive = |name: &str| {
        format!(
            "[[drive]]\nname = \"{name}\"\npreset = \"femu-default\"\nlba_bytes = 512\n\
             geometry = {{ channels = 2, pus = 2, chunks = 24, pages = 64 }}\n"
        )
    };
    let text = format!(
        "{}{}[[set]]\nname = \"s\"\nmembers = [\"a\", \"b\"]\nstripe = \"1k\"\n[[path]]\nname = \"p\"\n\
         over = \"s\"\n[[job]]\nrw = \"randrw\"\nbs = \"512\"\nsize = \"1m\"\n",
        drive("a"),
        drive("b")
    );
    let json = run(&text);
    for drive in [0, 1] {
        let partial = &json["drives"][drive]["interface"]["read_modify_write"];
        assert!(partial["units"].as_u64().unwrap() > 100, "{json:#}");
    }
}

/// A drive without media has blocks of any size, and no units.
#[test]
fn a_null_drive_has_small_blocks_without_a_cost() {
    let run = |keys: &str| {
        run(&format!(
            "[drive]\npreset = \"nvme-null\"\n{keys}\n[[job]]\nrw = \"randrw\"\nbs = \"4k\"\n\
             io_size = \"4m\"\n"
        ))
    };
    let (small, whole) = (run("lba_bytes = 512"), run(""));
    assert_eq!(small["drives"][0]["commands"], whole["drives"][0]["commands"]);
    assert!(small["drives"][0]["interface"].is_null());
}
