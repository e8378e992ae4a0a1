//! fio's options in `sluice sim`: errors with their location, traces, logs, searches, and jobs that
//! are too large.

use crate::sim_folder;

use std::io::Write;
use std::path::Path;

use flate2::write::GzEncoder;
use serde_json::Value;

use sim_folder::Folder;

const DRIVE: &str = "[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, chunks = 16, pages = 32 }\n[precondition]\nfill = \"sequential\"\n";

/// Returns a folder with a drive and other files.
fn with_drive(files: &[(&str, &str)]) -> Folder {
    Folder::new(&[&[("drive.toml", DRIVE)], files].concat())
}

/// Returns standard output of a run that must succeed.
fn ran(folder: &Folder, args: &[&str]) -> String {
    folder.run_to_end(args, 0).0
}

/// Returns standard error of a run that must be refused.
fn refused(folder: &Folder, args: &[&str]) -> String {
    folder.run_to_end(args, 2).1
}

/// Returns the only result of a file.
fn json(folder: &Folder, name: &str) -> Value {
    let mut ways: Vec<Value> = serde_json::from_str(&folder.read(name)).unwrap();
    assert_eq!(ways.len(), 1, "one scenario");
    ways.remove(0)
}

#[test]
fn a_mistake_in_a_job_file_or_a_job_of_a_scenario_is_shown_with_a_caret() {
    let scenario = format!("{DRIVE}[[job]]\nname = \"a\"\nrw = \"randred\"\n");
    let late = format!("{DRIVE}[[job]]\nname = \"a\"\ntime_based = true\n");
    let folder = with_drive(&[
        ("value.fio", "[a]\nrw=randred\n"),
        ("key.fio", "[a]\niodepht=4\n"),
        ("size.fio", "[a]\nsize=0\n"),
        ("refused.fio", "[a]\nzonemode=zbd\n"),
        ("outer.fio", "[a]\ninclude inner.inc\n"),
        ("inner.inc", "bs=4k\nbs=4q\n"),
        ("scenario.toml", &scenario),
        ("late.toml", &late),
    ]);
    for (args, says) in [
        (
            &["drive.toml", "value.fio"][..],
            &[
                "value.fio:2:4",
                "rw=randred",
                "╰── here",
                "did you mean `randread`?",
                "randtrimwrite",
            ][..],
        ),
        (
            &["drive.toml", "key.fio"],
            &[
                "key.fio:2:1",
                "option `iodepht`",
                "╰── here",
                "did you mean `iodepth`?",
                "allowed: blocksize",
            ],
        ),
        (&["drive.toml", "size.fio"], &["size.fio:2:6", "a size above zero"]),
        (
            &["drive.toml", "refused.fio"],
            &["refused.fio:2:1", "drives have no zones", "docs/fio.md"],
        ),
        (&["drive.toml", "outer.fio"], &["inner.inc:2:4", "bs=4q", "block sizes of 1 byte"]),
        (
            &["scenario.toml"],
            &["scenario.toml:8:6", "rw = \"randred\"", "did you mean `randread`?"],
        ),
        (&["late.toml"], &["late.toml:6:1", "`time_based` needs a `runtime`", "╰── here"]),
    ] {
        let told = refused(&folder, args);
        for part in says {
            assert!(told.contains(part), "{args:?}: `{part}` is not in\n{told}");
        }
    }
}

#[test]
fn trims_that_take_no_time_have_no_rate_and_the_result_says_why() {
    let folder = with_drive(&[
        ("trim.fio", "[trims]\nrw=randtrim\nsize=1m\n"),
        (
            "slow.toml",
            &DRIVE.replace(
                "[precondition]",
                "[drive.controller]\nfetch_latency = \"2us\"\n[precondition]",
            ),
        ),
    ]);
    let table = ran(&folder, &["drive.toml", "trim.fio"]);
    let row = table.lines().find(|line| line.contains(" trim ")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[3..5], ["-", "-"], "{table}");
    assert!(table.contains("job trims: 256 trims took no time"), "{table}");
    assert!(table.contains("set [drive.controller] fetch"), "{table}");
    // With a cost of 2 us each, serial trims have a rate.
    let table = ran(&folder, &["slow.toml", "trim.fio"]);
    assert!(table.contains("500,000") && !table.contains("took no time"), "{table}");
}

#[test]
fn a_trace_is_replayed_at_its_depth_and_refused_where_it_does_not_fit() {
    let reads: String = (0..100).map(|i| format!("dev read {} 4096\n", i * 8192)).collect();
    let folder = with_drive(&[
        ("v2.log", &format!("fio version 2 iolog\ndev add\ndev open\n{reads}dev close\n")),
        ("replay.fio", "[t]\nread_iolog=v2.log\nbs=64k\n"),
        ("odd.csv", "0,h,0,Read,4096,4096,1\n10,h,0,Write,512,512,1\n"),
        ("odd.fio", "[t]\nread_iolog=odd.csv\n"),
        ("fitted.fio", "[t]\nread_iolog=odd.csv\nreplay_align=4k\n"),
        ("late.fio", "[t]\nread_iolog=odd.csv\nreplay_align=4k\niodepth=1\n"),
        ("gone.fio", "[t]\nread_iolog=gone.csv\n"),
    ]);
    ran(&folder, &["drive.toml", "replay.fio", "--json", "o.json"]);
    let result = json(&folder, "o.json");
    let read = &result["jobs"][0]["read"];
    // A read takes 40 us in the array, and the reads are serial.
    assert_eq!(
        (read["total_ios"].as_u64(), read["lat_ns"]["max"].as_u64()),
        (Some(100), Some(40_000))
    );
    assert_eq!(read["iops"], 25_000.0);
    assert_eq!(result["jobs"][0]["iodepth_level"]["1"], 100.0);
    assert_eq!(result["sluice"]["ignored_options"], serde_json::json!(["bs"]));
    let told = refused(&folder, &["drive.toml", "odd.fio"]);
    assert!(
        told.contains("odd.csv:2: bytes 512..+512") && told.contains("`replay_align=4096`"),
        "{told}"
    );
    ran(&folder, &["drive.toml", "fitted.fio", "--json", "fitted.json"]);
    let expected = serde_json::json!([{ "jobname": "t", "replay": {
        "iodepth": 1024, "delayed": 0,
        "trace_fit": {
            "aligned_requests": 1, "bytes_requested": 4608, "bytes_issued": 8192, "wrapped": 0, "skipped": 0,
        },
    }}]);
    assert_eq!(json(&folder, "fitted.json")["sluice"]["drives"][0]["jobs"], expected);
    let table = ran(&folder, &["drive.toml", "late.fio"]);
    let remark = "job t: 1 of 2 requests were issued later than the trace says: all 1 places";
    assert!(table.contains(remark), "{table}");
    assert!(refused(&folder, &["drive.toml", "gone.fio"]).contains("gone.csv: No such file"));
}

#[test]
fn a_compressed_trace_gives_the_results_of_the_plain_one_and_a_damaged_one_is_refused() {
    let lines: String =
        (0..3_000).map(|i| format!("{} 0 {} 8 1\n", i * 100, i % 997 * 8)).collect();
    let plain = with_drive(&[("t", &lines), ("replay.fio", "[t]\nread_iolog=t\n")]);
    let expected = ran(&plain, &["drive.toml", "replay.fio", "--json", "o.json"]);
    let folder = with_drive(&[("replay.fio", "[t]\nread_iolog=t\n")]);
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(lines.as_bytes()).unwrap();
    let compressed = encoder.finish().unwrap();
    std::fs::write(folder.path("t"), &compressed).unwrap();
    assert_eq!(ran(&folder, &["drive.toml", "replay.fio", "--json", "o.json"]), expected);
    assert_eq!(folder.read("o.json"), plain.read("o.json"));
    std::fs::write(folder.path("t"), &compressed[..compressed.len() / 2]).unwrap();
    let told = refused(&folder, &["drive.toml", "replay.fio"]);
    assert!(told.contains("t:1") && told.contains("gzip data is damaged or incomplete"), "{told}");
}

#[test]
fn logs_of_several_runs_are_numbered_on() {
    let jobs = "[global]\nrw=read\nsize=64k\nwrite_lat_log=L\n[a]\n[b]\nnumjobs=2\n";
    let folder = with_drive(&[
        ("other.toml", DRIVE),
        ("logs.fio", jobs),
        ("nowhere.fio", "[a]\nwrite_bw_log=no/such/L\n"),
    ]);
    ran(&folder, &["drive.toml", "other.toml", "logs.fio"]);
    for number in 1..=6 {
        for kind in ["slat", "clat", "lat"] {
            let name = format!("L_{kind}.{number}.log");
            let text = std::fs::read_to_string(folder.path(&name)).unwrap();
            assert_eq!(text.lines().count(), 16, "{name}");
            assert!(text.lines().all(|line| line.ends_with(", 0, 4096, 0")), "{name}: {text}");
        }
    }
    assert!(!Path::new(&folder.path("L_lat.7.log")).exists());
    let out = folder.sim(&["drive.toml", "nowhere.fio"]);
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(1) && told.contains("cannot write no/such"), "{told}");
}

#[test]
fn a_search_for_a_depth_says_what_it_found() {
    let job = "[j]\nrw=randread\niodepth=64\ntime_based\nruntime=10\nlatency_window=5ms\n\
               latency_percentile=90\nlatency_target=";
    let folder = with_drive(&[
        ("some.fio", &format!("{job}130us\n")),
        ("none.fio", &format!("{job}39us\nruntime=20ms\n")),
    ]);
    let table = ran(&folder, &["drive.toml", "some.fio", "--json", "o.json"]);
    let result = json(&folder, "o.json");
    let depth = result["jobs"][0]["latency_depth"].as_u64().unwrap();
    assert!((2..64).contains(&depth), "{depth}");
    let found = &result["sluice"]["drives"][0]["jobs"][0]["latency_target"];
    assert_eq!(*found, serde_json::json!({ "depth": depth, "met": true, "converged": true }));
    let remark = format!("iodepth {depth} keeps 90 % of its requests within 130 us");
    assert!(table.contains(&remark), "{table}");
    let percentile = &result["jobs"][0]["read"]["clat_ns"]["percentile"]["90.000000"];
    assert!(percentile.as_u64().unwrap() <= 130_500, "{percentile}");
    let table = ran(&folder, &["drive.toml", "none.fio"]);
    assert!(table.contains("not even iodepth 1 keeps 90 %"), "{table}");
}

#[test]
fn jobs_too_large_for_this_machine_are_refused_with_numbers() {
    let folder = with_drive(&[(
        "large.fio",
        "[many]\nrw=randwrite\nverify=crc32c\nbs=64k\nnumjobs=4096\niodepth=65536\n",
    )]);
    let told = refused(&folder, &["drive.toml", "large.fio"]);
    for part in [
        "the jobs need 16",
        "TiB of memory",
        "job `many` (4096 x iodepth 65536)",
        "lower `numjobs`",
    ] {
        assert!(told.contains(part), "`{part}` is not in {told}");
    }
}
