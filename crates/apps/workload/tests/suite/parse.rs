//! Tests of valid and invalid job files: every error has file, line, option and remedy.

use std::path::Path;

use proptest::prelude::*;
use sluice_workload::{
    Distribution, JobError, JobSpec, Rate, parse_job_file, parse_jobs, units::Size,
};
use time::Nanos;

fn parse(text: &str) -> Result<sluice_workload::JobFile, JobError> {
    parse_jobs(Path::new("dir/jobs.fio"), text)
}

fn message(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn the_example_of_the_manual() {
    let jobs =
        parse("[global]\nrw=randread\nsize=128m\n\n[job1]\n\n[job2]\nsize=10%\n").unwrap().jobs;
    assert_eq!(jobs.len(), 2);
    assert_eq!((jobs[0].name.as_str(), jobs[0].range.size), ("job1", Some(Size::Bytes(128 << 20))));
    assert_eq!(jobs[1].range.size, Some(Size::Percent(10.0)));
    assert!(jobs.iter().all(|j| j.pattern.access.random && j.report.globals.len() == 2));
    assert_eq!(jobs[1].report.options, [("size".to_owned(), "10%".to_owned())]);
}

#[test]
fn globals_add_up_and_hold_for_what_follows() {
    let text = "[global]\nbs=8k\n[a]\n[global]\niodepth=4\nbs=16k\n[b]\nbs=64k";
    let jobs = parse(text).unwrap().jobs;
    let seen: Vec<(u64, u32)> =
        jobs.iter().map(|j| (j.pattern.block_sizes[0][0].0, j.depth())).collect();
    assert_eq!(seen, [(8192, 1), (65536, 4)]);
}

#[test]
fn every_option_means_what_fio_means() {
    let text = "[j]\nrw=randrw\nrwmixwrite=30\nbs=4k,8k,16k\nio_size=200%\noffset=1m\niodepth=32\nnumjobs=4\n\
        runtime=30s\ntime_based\nramp_time=1.5\nrate=1m,500k\nrandom_distribution=pareto:0.2\nnorandommap=1\n\
        randseed=99\nverify=crc32c\ndo_verify=0\nfdatasync=32\nend_fsync=1\nthinktime=50\nthinktime_blocks=2\n\
        stonewall\nnew_group\ngroup_reporting\npercentile_list=99.9:50:99\nstartdelay=2\ndescription=what it is for\n\
        continue_on_error=io\nnumber_ios=1000\noffset_increment=1g\nrate_process=poisson\nthread\nuri=nbd://x";
    let parsed = parse(text).unwrap();
    let j = &parsed.jobs[0];
    assert_eq!(
        (j.pattern.read_percent, j.range.io_size, j.range.offset),
        (70.0, Some(Size::Percent(200.0)), Size::Bytes(1 << 20))
    );
    assert_eq!((j.depth(), j.numjobs, j.schedule.runtime), (32, 4, Some(Nanos::from_secs(30))));
    assert_eq!(
        (j.schedule.ramp_time, j.schedule.startdelay, j.pace.thinktime),
        (Nanos::from_millis(1500), Nanos::from_secs(2), Nanos::from_micros(50))
    );
    assert_eq!(j.pace.rate, [Rate::Bytes(1 << 20), Rate::Bytes(500 << 10), Rate::Bytes(500 << 10)]);
    assert_eq!(j.pattern.distribution, Distribution::Pareto(0.2));
    assert_eq!(
        (j.pattern.randseed, j.integrity.fsync, j.pace.thinktime_blocks, j.range.number_ios),
        (Some(99), 32, 2, Some(1000))
    );
    assert!(
        j.schedule.time_based
            && j.pattern.norandommap
            && j.integrity.verify
            && !j.integrity.do_verify
            && j.integrity.end_fsync
            && j.pace.rate_poisson
    );
    assert!(
        j.schedule.stonewall
            && j.report.new_group
            && j.report.group_reporting
            && j.integrity.continue_on_error.read
    );
    assert_eq!(j.report.percentiles, [50.0, 99.0, 99.9]);
    assert_eq!(j.description.as_deref(), Some("what it is for"));
    assert_eq!(parsed.ignored, ["thread", "uri"]);
}

#[test]
fn what_is_not_supported_is_an_error_with_its_line() {
    assert_eq!(
        message("[j]\nrw=read\niodepht=4\n"),
        "dir/jobs.fio:3: option `iodepht` is not supported; did you mean `iodepth`?"
    );
    assert_eq!(
        message("[global]\nrandom_generator=lfsr\n[j]\n"),
        "dir/jobs.fio:2: option `random_generator` is not supported: a permutation covers every \
         block once, without memory"
    );
    for (text, part) in [
        ("[j]\nrw=sideways", ":2: `rw=sideways`: expected read, write, trim, randread"),
        ("[j]\nrw=randread:8", "expected read, write"),
        ("[j]\nbs=0", "block sizes of 1 byte to 1g"),
        ("[j]\nbs=4q", "block sizes"),
        ("[j]\nbssplit=4k/60:8k/60", "add up to 100"),
        ("[j]\nsize=150%", "1% to 100%"),
        ("[j]\nsize=-1", "a size in bytes"),
        ("[j]\niodepth=0", "a number from 1 to 65536"),
        ("[j]\nnumjobs=many", "a number from 1"),
        ("[j]\nruntime=soon", "a time in seconds"),
        ("[j]\nrwmixread=101", "a percentage"),
        ("[j]\nverify=md5", "expected crc32c"),
        ("[j]\nrandom_distribution=zipf", "zipf:THETA"),
        ("[j]\nrandom_distribution=normal:5", "zipf:THETA"),
        ("[j]\nrandom_distribution=zoned:60/10", "each add up to 100"),
        ("[j]\npercentile_list=50:101", "percentiles above 0"),
        ("[j]\ntime_based=maybe", "expected 0 or 1"),
        ("[j]\ntime_based", "dir/jobs.fio:1: job `j`: `time_based` needs a `runtime`"),
        ("[j]\nrandom_distribution=zipf:1.1", "needs a random `rw`"),
        ("[j]\nreplay_no_stall=1", "without `read_iolog=FILE`"),
        ("[j]\nread_iolog=x\nverify=crc32c", "a trace has no data"),
        ("[j]\ntrace_format=blktrace\nread_iolog=x", "auto, iolog, msr or mqsim"),
        ("rw=read\n", ":1: an option before the first section"),
        ("[j\n", ":1: a section is a name in brackets"),
        ("[]\n", "a section is a name"),
        ("[j]\n=4\n", ":2: an option is `name=value`"),
        ("[j]\nrw read\n", ":2: an option is `name=value`"),
        ("", "no jobs"),
        ("[global]\nbs=4k\n", "dir/jobs.fio: no jobs"),
    ] {
        let message = message(text);
        assert!(message.contains(part), "{message:?} should contain {part:?}");
    }
    assert!(matches!(
        parse_job_file(Path::new("/nonexistent.fio")),
        Err(JobError::Unreadable { .. })
    ));
}

#[test]
fn pairs_of_a_scenario_use_the_same_words() {
    let path = Path::new("dir/scenario.toml");
    let pairs = [("rw", "randread", 7), ("bs", "4k", 8), ("direct", "1", 9)];
    let (spec, ignored) = JobSpec::from_pairs("readers", path, pairs).unwrap();
    assert_eq!((spec.name.as_str(), ignored), ("readers", vec!["direct".to_owned()]));
    let error = JobSpec::from_pairs("x", path, [("rww", "read", 12)]).unwrap_err().to_string();
    assert_eq!(error, "dir/scenario.toml:12: option `rww` is not supported; did you mean `rw`?");
    let (spec, _) = JobSpec::from_pairs("x", path, [("read_iolog", "t.csv", 1)]).unwrap();
    assert_eq!(spec.replay.unwrap().path, Path::new("dir/t.csv"));
}

proptest! {
    #[test]
    fn no_text_panics(text in "(\\[[a-z]{0,6}\\]?\n|(rw|bs|bsrange|size|bssplit|rate|random_distribution|percentile_list|runtime|verify|loops|log_avg_msec|latency_target|replay_align|include)=[0-9a-z:/,.%$-]{0,12}\n|[ -~]{0,20}\n){0,12}") {
        let _ = parse(&text);
    }
}

fn invalid(text: &str) -> sluice_workload::InvalidJob {
    match parse(text).unwrap_err() {
        JobError::Invalid(invalid) => *invalid,
        other => panic!("{other}"),
    }
}

/// Returns the bytes that an error marks.
fn marked(text: &str) -> String {
    let at = invalid(text).location;
    assert_eq!(&*at.text, text);
    text[at.span].to_owned()
}

#[test]
fn errors_mark_the_word_they_are_about_and_say_what_is_allowed() {
    assert_eq!(marked("[j]\nrw = randred  # oh\n"), "randred");
    assert_eq!(marked("[j]\n  iodepht=4\n"), "iodepht");
    assert_eq!(marked("[j]\nzonesize=4m\n"), "zonesize");
    assert_eq!(marked("[a]\n[j]\ntime_based\n"), "[j]");
    assert_eq!(marked("[j]\nrw read\n"), "rw read");
    let at = invalid("[j]\n\tbs = 4q\n").location;
    assert_eq!((at.line, at.column), (2, 7));
    let help = |text| invalid(text).problem.help().unwrap();
    assert!(help("[j]\nrw=randred\n").starts_with("did you mean `randread`? expected read, write"));
    assert!(help("[j]\nrate_process=poison\n").starts_with("did you mean `poisson`?"));
    assert!(help("[j]\nverify=crc32d\n").starts_with("did you mean `crc32c`?"));
    assert!(help("[j]\nsize=0\n").contains("a size above zero"), "{}", help("[j]\nsize=0\n"));
    let list = help("[j]\nblok=4k\n");
    let words: Vec<&str> = list.split("allowed: ").nth(1).unwrap().split(", ").collect();
    let mut unique = words.clone();
    unique.dedup();
    assert!(words.len() > 60 && unique == words, "{words:?}");
}

#[test]
fn refused_words_say_why_and_values_that_ask_for_nothing_pass() {
    assert!(message("[j]\nzonemode=zbd\n").contains("is not supported: drives have no zones"));
    assert_eq!(
        parse("[j]\nzonemode=none\nbuffered=0\n").unwrap().ignored,
        ["buffered", "zonemode"]
    );
    assert!(message("[j]\nper_job_logs=0\nwrite_lat_log\n").contains("logs of its own"));
    for (text, part) in [
        ("[j]\nlatency_target=5ms\n", "needs a `latency_window`"),
        ("[j]\nlatency_window=5ms\n", "without `latency_target=TIME`"),
        ("[j]\nlatency_target=0\n", "a time above 0"),
        (
            "[j]\nread_iolog=x\nlatency_target=1\nlatency_window=1\n",
            "does not go with `read_iolog`",
        ),
        ("[j]\nread_iolog=x\nreplay_align=3000\n", "a power of two"),
        ("[j]\nread_iolog=x\nreplay_scale=0\n", "a number from 1"),
        ("[j]\nread_iolog=x\nreplay_skip=read,flush\n", "read, write, trim or sync"),
        ("[j]\nloops=0\n", "a number from 1"),
        ("[j]\nbsrange=8k-4k\n", "a range of block sizes"),
    ] {
        let message = message(text);
        assert!(message.contains(part), "{message:?} should contain {part:?}");
    }
    // Log options in [global] apply to the jobs that have logs, and are listed as ignored for the
    // others.
    let parsed = parse("[global]\nlog_avg_msec=100\n[a]\nwrite_lat_log\n[b]\n").unwrap();
    assert_eq!(parsed.ignored, ["log_avg_msec"]);
    assert_eq!(parsed.jobs[0].report.logs.window, Nanos::from_millis(100));
}

#[test]
fn comments_start_anywhere_and_variables_are_the_environments() {
    let path = std::env::var("PATH").unwrap();
    let text =
        "[j] # a job\ndescription=${PATH}${SLUICE_NO_SUCH_VARIABLE} ; fio does so, too\nbs=2k*4\n";
    assert!(parse(text).is_err(), "arithmetic requires a keyword such as $pagesize");
    let text = text.replace("2k*4", "2*$pagesize");
    let job = &parse(&text).unwrap().jobs[0];
    let expected = path.split(['#', ';']).next().unwrap().trim();
    assert!(job.description.as_deref().unwrap().starts_with(expected));
    assert_eq!((job.name.as_str(), job.pattern.block_sizes[0][0].0), ("j", 8192));
    assert!(message("[j]\nbs=${SIZE\n").contains("`${` without `}`"));
    assert!(message("[j]\nbs=${SLUICE_NO_SUCH_VARIABLE}\n").contains("block sizes"));
}

#[test]
fn files_include_files() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    };
    let main =
        write("main.fio", "[global]\ninclude parts/all.inc\n[a]\n[b]\ninclude b.inc\nbs=64k\n");
    write("parts/all.inc", "bs=8k\ninclude deep.inc\n");
    write("parts/deep.inc", "# deeper\niodepth=7\n");
    write("b.inc", "rw=randread\nbs=16k");
    let jobs = parse_job_file(&main).unwrap().jobs;
    let seen: Vec<_> = jobs
        .iter()
        .map(|j| (j.pattern.block_sizes[0][0].0, j.depth(), j.pattern.access.random))
        .collect();
    assert_eq!(seen, [(8192, 7, false), (65536, 7, true)]);
    // An error in an included file is reported with that file's name and line.
    write("b.inc", "\nrww=read");
    let error = parse_job_file(&main).unwrap_err().to_string();
    assert!(error.contains("b.inc:2: option `rww`"), "{error}");
    write("b.inc", "[c]\n");
    let error = parse_job_file(&main).unwrap_err().to_string();
    assert!(error.contains("b.inc:1: an included file has options only"), "{error}");
    write("b.inc", "include b.inc\n");
    let error = parse_job_file(&main).unwrap_err().to_string();
    assert!(error.contains("more than 16 deep"), "{error}");
    write("b.inc", "include nowhere.inc\n");
    let error = parse_job_file(&main).unwrap_err().to_string();
    assert!(error.contains("b.inc:1: cannot include") && error.contains("nowhere.inc"), "{error}");
}
