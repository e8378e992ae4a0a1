//! Jobs on parallel units: what vector commands write is there, a chunk is reset before it is
//! written again, and neighbours on the drive are not touched.

// guarantee: B-31

use std::path::Path;

use scenario::Scenario;
use sluice_sim::{PathOutcome, SimError, SimOptions, SimOutcome, simulate, to_json};
use workload::{Direction, ErrorCause, RunError};

/// An open-channel drive with eight parallel units on four channels; each unit has 48 chunks of
/// 1 MiB.
const DRIVE: &str = "[[drive]]\nname = \"oc\"\npreset = \"femu-default\"\n\
    personality = \"open-channel\"\ndata = \"memory\"\ncell = \"mlc\"\npaired_page_distance = 2\n\
    geometry = { channels = 4, pus = 2, chunks = 48, pages = 64, page_bytes = 16384 }\n";

/// A `pblk` and physical addresses, each on half of the drive, with a path over each.
const HALVES: &str = "[[target]]\nname = \"left\"\ndrive = \"oc\"\nkind = \"pblk\"\npus = \"0-3\"\n\
    [[target]]\nname = \"right\"\ndrive = \"oc\"\nkind = \"ppa\"\npus = \"4-7\"\n\
    [[path]]\nname = \"b\"\nover = \"left\"\n[[path]]\nname = \"u\"\nover = \"right\"\n";

fn parse(text: &str) -> Scenario {
    Scenario::parse(Path::new("s.toml"), text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn try_run(text: &str) -> Result<SimOutcome, SimError> {
    simulate(&parse(text), SimOptions::default())
}

fn run(text: &str) -> SimOutcome {
    let outcome = try_run(text).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(outcome.failures(), [""; 0]);
    outcome
}

fn path<'a>(outcome: &'a SimOutcome, name: &str) -> &'a PathOutcome {
    outcome.paths.iter().find(|path| path.name == name).expect("the path")
}

fn job(path: &str, rest: &str) -> String {
    format!("[[job]]\npath = \"{path}\"\n{rest}")
}

/// Bytes and requests of the jobs of a path in a direction.
fn sums(path: &PathOutcome, direction: Direction) -> (u64, u64) {
    let parts = path.run.jobs.iter().map(|job| &job.directions[direction as usize]);
    parts.fold((0, 0), |(bytes, ios), part| (bytes + part.bytes, ios + part.ios))
}

/// Two jobs on units of their own, which write their chunks more than once, beside a pblk.
fn neighbours() -> String {
    let blocks = "rw = \"randrw\"\nbs = \"4k\"\niodepth = 8\nsize = \"8m\"\nio_size = \"12m\"\n\
        verify = \"crc32c\"\n";
    let mix = "name = \"mix\"\npus = \"4-5\"\nrw = \"randrw\"\nbs = \"16k,64k\"\niodepth = 8\n\
        size = \"4m\"\nio_size = \"24m\"\nverify = \"crc32c\"\n";
    let log = "name = \"log\"\npus = \"6,7\"\nrw = \"write\"\nbs = \"128k\"\niodepth = 4\n\
        size = \"4m\"\nio_size = \"16m\"\nverify = \"crc32c\"\n";
    DRIVE.to_owned() + HALVES + &job("b", blocks) + &job("u", mix) + &job("u", log)
}

#[test]
fn jobs_on_units_of_their_own_verify_beside_a_pblk() {
    let outcome = run(&neighbours());
    let (blocks, units) = (path(&outcome, "b"), path(&outcome, "u"));
    let [mix, log] = &units.run.jobs[..] else { panic!("two jobs") };
    for job in [mix, log] {
        assert!(job.requests.verified > 100, "{}: {:?}", job.spec.name, job.requests);
        assert_eq!(job.requests.mismatches, 0);
        assert_eq!(job.requests.issued, job.requests.completed);
        let resets = &job.directions[Direction::Trim as usize];
        assert!(resets.ios >= 4, "chunks were used again: {}", resets.ios);
        assert!(resets.clat.mean() > 1e6, "an erase: {}", resets.clat.mean());
    }
    assert_eq!(log.directions[Direction::Write as usize].bytes, 16 << 20);
    // The drive counts what the vector commands of both paths transfer and erase.
    let ftl = blocks.ftl.expect("an FTL on the host");
    let media = outcome.drives[0].drive.media.as_ref().expect("NAND");
    let page = 4096 * 4;
    let of_units = sums(units, Direction::Write).0 / page;
    let (all, known) = (media.programs, ftl.programs + of_units);
    assert!((known..known + known / 20).contains(&all), "{all}, {known} without journals");
    let resets = sums(units, Direction::Trim).1;
    assert!(media.erases >= resets + ftl.erases, "{} of {resets}", media.erases);
}

#[test]
fn a_repeat_is_identical() {
    let scenario = parse(&neighbours());
    let [a, b] = [(); 2].map(|()| {
        let outcome = simulate(&scenario, SimOptions::default()).unwrap();
        to_json(&outcome).to_string()
    });
    assert!(a == b, "two runs of one scenario differ");
}

#[test]
fn a_drive_without_a_target_has_jobs_on_all_of_its_units() {
    let write = "pus = \"0-7\"\nrw = \"write\"\nbs = \"64k\"\niodepth = 16\nsize = \"16m\"\n";
    let read =
        |rest: &str| format!("stonewall = true\npus = \"0-7\"\nbs = \"16k\"\niodepth = 8\n{rest}");
    let text = DRIVE.to_owned()
        + "[[job]]\n"
        + write
        + "[[job]]\n"
        + &read("rw = \"read\"\n")
        + "[[job]]\n"
        + &read("rw = \"randread\"\ntime_based = true\nruntime = \"10ms\"\n");
    let outcome = run(&text);
    let jobs = &outcome.paths[0].run.jobs;
    assert_eq!(jobs[0].directions[Direction::Write as usize].bytes, 16 << 20);
    assert_eq!(jobs[0].directions[Direction::Trim as usize].ios, 0, "fresh chunks");
    // Sectors whose paired pages are not written cannot be read.
    let read = jobs[1].directions[Direction::Read as usize].bytes;
    assert!((12 << 20..=16 << 20).contains(&read), "{read}");
    assert!(jobs[2].directions[Direction::Read as usize].ios > 100);
    assert_eq!(jobs[2].directions[Direction::Read as usize].bytes % (16 << 10), 0);
}

#[test]
fn a_failed_program_ends_the_job_or_costs_a_chunk() {
    let drive = DRIVE.to_owned() + "errors = { program_failure_rate = 0.002 }\n";
    let write = "pus = \"0-7\"\nrw = \"write\"\nbs = \"64k\"\niodepth = 8\nverify = \"crc32c\"\n\
        size = \"32m\"\nio_size = \"128m\"\n";
    let ends = try_run(&format!("{drive}[[job]]\n{write}")).unwrap();
    let job = &ends.paths[0].run.jobs[0];
    assert!(job.aborted && !job.failures.is_empty(), "{:?}", job.failures);
    assert!(matches!(job.failures[0].cause, ErrorCause::Status(_)));
    let on = try_run(&format!("{drive}[[job]]\n{write}continue_on_error = \"write\"\n")).unwrap();
    let job = &on.paths[0].run.jobs[0];
    assert!(!job.aborted && job.requests.failed > 0, "{:?}", job.requests);
    assert!(job.requests.verified > 1000, "{:?}", job.requests);
    assert_eq!(job.requests.mismatches, 0, "{:?}", job.failures);
    let [written, failed] = [job.directions[1].bytes, job.requests.failed * (64 << 10)];
    assert!(written + failed >= 128 << 20, "{written} written, {failed} failed");
}

#[test]
fn jobs_that_do_not_fit_are_refused() {
    let halves = |rest: &str| try_run(&(DRIVE.to_owned() + HALVES + rest)).unwrap_err();
    let refused = |rest: &str, says: &[&str]| {
        let error = halves(rest).to_string();
        for part in says {
            assert!(error.contains(part), "{error} without {part}");
        }
    };
    let write = |pus: &str, rest: &str| {
        job("u", &format!("pus = \"{pus}\"\nrw = \"write\"\nbs = \"64k\"\nsize = \"1m\"\n{rest}"))
    };
    refused(&write("3-4", ""), &["the parallel units 3", "the path has 4-7"]);
    refused(&write("4,9", ""), &["the parallel units 9"]);
    refused(&write("4-6x", ""), &["s.toml:27: `pus=4-6x`", "0,4,8-11"]);
    refused(
        &(write("4-5", "name = \"a\"\n") + &write("5-6", "name = \"b\"\n")),
        &["`b`", "`a`", "units 5:"],
    );
    refused(&write("4", "numjobs = 2\n"), &["a write pointer has one owner"]);
    let small = write("4", "").replace("64k", "4k");
    refused(&small, &["a write block of 4096 bytes", "whole write units of"]);
    let odd = write("4", "").replace("64k", "6k").replace("\"write\"", "\"read\"");
    refused(&odd, &["a read block of 6144 bytes", "whole sectors of 4096"]);
    refused(&write("4", "").replace("64k", "4m"), &["larger than a chunk"]);
    refused(&write("4", "").replace("\"write\"", "\"randwrite\""), &["s.toml:", "not at random"]);
    refused(&write("4", "").replace("\"write\"", "\"trim\""), &["s.toml:", "resets its chunks"]);
    for option in ["offset = \"1m\"", "fsync = 1", "bssplit = \"64k/100\"", "recordcount = 5"] {
        refused(&write("4", &format!("{option}\n")), &["s.toml:", "does not go with `pus`"]);
    }
    let read = write("4", "").replace("\"write\"", "\"read\"");
    refused(&read, &["job `job1` stops", "can be read yet"]);
    // Units are not blocks.
    let on_blocks = write("4", "").replace("\"u\"", "\"b\"");
    let SimError::Host(RunError::WrongAddressing { .. }) = halves(&on_blocks) else {
        panic!("{}", halves(&on_blocks));
    };
    refused(&on_blocks, &["parallel units", "blocks"]);
    let raw = try_run(&format!("{DRIVE}[[job]]\nrw = \"write\"\n")).unwrap_err().to_string();
    assert!(raw.contains("no logical blocks for block requests") && raw.contains("`pus`"), "{raw}");
}
