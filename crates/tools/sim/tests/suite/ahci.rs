//! SATA drives at an AHCI controller in virtual time.

// guarantee: B-26

use std::path::Path;

use scenario::Scenario;
use sluice_sim::{SimError, SimOptions, SimOutcome, TraceOutput, simulate, to_json};
use workload::JobResult;

/// Drives without data: what is measured is time.
fn drives(count: usize, keys: &str) -> String {
    let drive = |i| format!("[[drive]]\nname = \"disk{i}\"\nkind = \"ahci\"\n{keys}");
    (0..count).map(drive).collect()
}

/// A stripe of all drives, with jobs.
fn stripe(count: usize, path: &str, jobs: &str) -> String {
    let names: Vec<String> = (0..count).map(|i| format!("\"disk{i}\"")).collect();
    format!(
        "{}[[set]]\nname = \"s\"\nmembers = [{}]\n[path]\n{path}{jobs}",
        drives(count, "data = \"none\"\n"),
        names.join(", ")
    )
}

fn run(text: &str) -> SimOutcome {
    let scenario = Scenario::parse(Path::new("s.toml"), text).unwrap_or_else(|e| panic!("{e}"));
    let outcome = simulate(&scenario, SimOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(outcome.failures(), [""; 0]);
    outcome
}

fn reads(job: &JobResult) -> f64 {
    job.directions[0].iops()
}

const READS: &str =
    "[[job]]\nrw = \"randread\"\nbs = 512\niodepth = 32\nnumjobs = 6\nnumber_ios = 4000\n";

#[test]
fn a_drive_reads_at_the_rate_of_its_processor() {
    let text = format!(
        "{}[[job]]\nrw = \"randread\"\nbs = 512\niodepth = 32\nnumber_ios = 20000\n",
        drives(1, "data = \"none\"\n")
    );
    let outcome = run(&text);
    // [HIOPS14 §4]: five drives read 671,000 times 512 bytes per second.
    let found = reads(&outcome.paths[0].run.jobs[0]) / 134_000.0;
    assert!((0.97..1.03).contains(&found), "{found}");
    let sata = outcome.drives[0].sata.as_ref().expect("a SATA drive");
    assert_eq!((sata.drive.reads, sata.drive.errors), (20_000, 0));
}

#[test]
fn a_stripe_is_as_fast_as_its_drives_until_the_uplink_is_full() {
    let rate = |text: &str| {
        let outcome = run(text);
        let jobs = outcome.paths[0].run.jobs.iter();
        let ios: u64 = jobs.map(|job| job.directions[0].ios).sum();
        (ios as f64 * 1e9 / outcome.elapsed.0 as f64, outcome)
    };
    let (one, _) = rate(&stripe(1, "queue_model = \"mq\"\ncores = 6\n", READS));
    let (six, outcome) = rate(&stripe(6, "queue_model = \"mq\"\ncores = 6\n", READS));
    assert!(six > 4.5 * one, "{six} of six, {one} of one");
    assert_eq!(outcome.drives.len(), 6);
    // Large reads of all drives share 1.5 GB/s.
    let large = READS.replace("512", "\"128k\"").replace("4000", "400");
    let (large, outcome) = rate(&stripe(6, "", &large));
    let found = large * f64::from(128 << 10) / 1.5e9;
    assert!((0.95..1.01).contains(&found), "{found} of the uplink");
    let json = to_json(&outcome);
    let used = json["sluice"]["drives"][0]["ahci"]["uplink_utilization"].as_f64();
    assert!(used.is_some_and(|used| used > 0.9), "{used:?}");
}

#[test]
fn jobs_verify_through_every_queue_model() {
    let mix = "[[job]]\nrw = \"randrw\"\nbs = \"4k\"\niodepth = 16\nsize = \"8m\"\nverify = \"crc32c\"\n\
               fsync = 32\n";
    for path in [
        "",
        "queue_model = \"sq\"\ncores = 2\n",
        "queue_model = \"mq\"\ncores = 2\n",
        "queue_model = \"mq\"\ncores = 2\nqueues = 1\n",
        "queue_model = \"mq\"\nstaging = \"global\"\ncores = 2\nscheduler = \"fair\"\n",
    ] {
        let trim = "[[job]]\nrw = \"randtrim\"\nbs = \"64k\"\noffset = \"16m\"\nnumber_ios = 50\n";
        let text = format!("{}[path]\n{path}{mix}{trim}", drives(1, "capacity = \"32M\"\n"));
        let outcome = run(&text);
        let verified: u64 = outcome.paths[0].run.jobs.iter().map(|job| job.requests.verified).sum();
        assert!(verified > 500, "{path}: {verified}");
        assert!(outcome.drives[0].drive.others > 50, "flushes and trims");
        assert_eq!(to_json(&outcome), to_json(&run(&text)), "{path}");
    }
}

#[test]
fn preconditioning_takes_no_time_and_is_read() {
    let text = |first: &str| {
        format!(
            "{}{first}[[job]]\nrw = \"read\"\nbs = \"64k\"\nnumber_ios = 100\n",
            drives(2, "capacity = \"16M\"\n[drive.sata]\nlink_up = \"1ms\"\n")
                .replace("[drive.sata]\nlink_up = \"1ms\"\n", "")
        )
    };
    let fresh = run(&text(""));
    let filled = run(&text("[precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n"));
    // The model has no garbage collection.
    assert_eq!(fresh.elapsed, filled.elapsed);
    assert_eq!(filled.drives[0].drive.writes, 0, "counted from the start of the jobs");
}

#[test]
fn requests_are_not_followed_to_flash_that_is_not_shown() {
    let text = format!("{}[[job]]\nrw = \"read\"\nnumber_ios = 1\n", drives(1, ""));
    let scenario = Scenario::parse(Path::new("s.toml"), &text).expect("a scenario");
    let file = tempfile::tempfile().expect("a file");
    let trace = Some(TraceOutput { name: "t".into(), file, truncate: false });
    let refused =
        simulate(&scenario, SimOptions { trace, ..SimOptions::default() }).expect_err("refused");
    assert!(matches!(refused, SimError::NotFollowed { .. }) && refused.is_usage(), "{refused}");
    assert!(refused.to_string().contains("SATA"), "{refused}");
}

#[test]
fn a_device_of_this_machine_does_not_run_in_virtual_time() {
    let text = "[drive]\nname = \"d\"\nkind = \"file\"\npath = \"x\"\n[[job]]\nrw = \"read\"\n";
    let scenario = Scenario::parse(Path::new("s.toml"), text).expect("a scenario");
    let refused = simulate(&scenario, SimOptions::default()).expect_err("refused");
    let text = refused.to_string();
    assert!(refused.is_usage() && text.contains("`sluice sim` runs in virtual time"), "{text}");
    assert!(
        text.contains("drive d (kind = \"file\")") && text.contains("`sluice serve`"),
        "{text}"
    );
}

#[test]
fn drives_of_both_kinds_are_one_set() {
    let text = format!(
        "{}[[drive]]\nname = \"nvme\"\npreset = \"femu-default\"\ndata = \"memory\"\n\
         geometry = {{ channels = 2, pus = 2, chunks = 64, pages = 64 }}\n\
         [[set]]\nname = \"s\"\nmembers = [\"nvme\", \"disk0\"]\n\
         [path]\nqueue_model = \"mq\"\ncores = 2\n\
         [[job]]\nrw = \"randrw\"\nbs = \"4k\"\niodepth = 16\nsize = \"8m\"\nverify = \"crc32c\"\n",
        drives(1, "capacity = \"32M\"\nsata = { sector_bytes = 4096 }\n")
    );
    let outcome = run(&text);
    assert!(outcome.drives.iter().all(|drive| drive.drive.writes > 100));
}
