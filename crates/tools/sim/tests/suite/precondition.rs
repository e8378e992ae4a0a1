//! `[precondition]`: any job, rounds until steady state, and progress reports.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use scenario::Scenario;
use sluice_sim::{RunNeeds, SimError, SimOptions, SimOutcome, SimStage, simulate, to_json};
use stack::steady_state::SteadyResult;

/// About 48 MiB over 4 parallel units, in 46 lines.
const DRIVE: &str = "[drive]\npreset = \"mqsim-default-small\"\ndata = \"none\"\n\
    geometry = { channels = 2, pus = 2, chunks = 48, pages = 32 }\nwrite_buffer.size = \"1M\"\n\
    ftl.over_provisioning = 0.2\n";
const JOB: &str = "[[job]]\nrw = \"randwrite\"\nbs = \"4k\"\niodepth = 32\nnorandommap = true\n\
    io_size = \"50%\"\n";

fn try_run(text: &str, progress: &mut dyn FnMut(SimStage)) -> Result<SimOutcome, SimError> {
    let scenario = Scenario::parse(Path::new("t.toml"), text).unwrap_or_else(|e| panic!("{e}"));
    simulate(&scenario, SimOptions { progress: Some(progress), ..SimOptions::default() })
}

fn run(text: &str) -> SimOutcome {
    try_run(text, &mut |_| {}).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn steady(text: &str) -> SteadyResult {
    run(text).paths.remove(0).steady.expect("rounds were asked for")
}

fn amplification(outcome: &SimOutcome) -> f64 {
    outcome.paths[0].ftl.unwrap().write_amplification().unwrap()
}

#[test]
fn rounds_repeat_until_both_measures_are_steady() {
    let text = format!(
        "{DRIVE}[precondition]\nfill = \"sequential\"\nuntil = {{ round = \"0.25x\" }}\n{JOB}"
    );
    let outcome = run(&text);
    let found = outcome.paths[0].steady.as_ref().unwrap();
    assert!(found.reached && found.missing().is_empty(), "{:?}", found.missing());
    // The first writes to a filled drive need no garbage collection, which is not a steady state.
    assert!(found.rounds.len() > 5, "{} rounds", found.rounds.len());
    let first = &found.rounds[0];
    let last = found.rounds.last().unwrap();
    assert!(first.write_amplification < last.write_amplification, "{first:?} {last:?}");
    assert!(first.bytes_per_sec() > last.bytes_per_sec(), "{first:?} {last:?}");
    let factors = found.write_amplification.unwrap();
    assert!(factors.range <= 0.2 && factors.slope.abs() <= 0.1, "{factors:?}");
    // The jobs must start with the write amplification of the last rounds.
    let during = amplification(&outcome);
    assert!((during / factors.average - 1.0).abs() < 0.1, "{during} {}", factors.average);
    let json = to_json(&outcome);
    let said = &json["sluice"]["drives"][0]["steady"];
    assert_eq!(said["reached"], true, "{said}");
    assert_eq!(said["rounds"].as_array().unwrap().len(), found.rounds.len());
    assert_eq!(json, to_json(&run(&text)), "a second run must give the same result");
}

#[test]
fn what_is_missing_is_said() {
    let rounds = |keys: &str| {
        steady(&format!("{DRIVE}[precondition]\nfill = \"sequential\"\n{keys}\n{JOB}"))
    };
    // Ten rounds of a hundredth of the drive: they end before the spare space has been used once.
    let early = rounds("until = { round = \"0.01x\", rounds = 10 }");
    assert!(!early.reached && early.rounds.len() == 10, "{early:?}");
    assert_eq!(early.missing(), ["garbage collection in every round"]);
    // After that, write amplification rises.
    let rising = rounds("overwrite = \"random 0.15x\"\nuntil = { round = \"0.1x\", rounds = 5 }");
    assert!(!rising.reached, "{rising:?}");
    assert!(rising.missing().iter().any(|m| m.contains("write amplification")), "{rising:?}");
}

#[test]
fn every_kind_of_drive_has_a_steady_state() {
    let pblk = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\ndata = \"none\"\n\
        geometry = { channels = 2, pus = 2, pages = 64, chunks = 64 }\n[target]\nkind = \"pblk\"\n";
    let rrpc = pblk
        .replace("data = \"none\"", "data = \"memory\"\ndevice_l2p = true")
        .replace("\"pblk\"", "\"rrpc\"");
    let pcm = "[drive]\npreset = \"pcm\"\ndata = \"none\"\ncapacity = \"16M\"\n";
    let null = "[drive]\npreset = \"nvme-null\"\ncapacity = \"16M\"\n";
    let layered = format!("{DRIVE}[path]\nqueue_model = \"mq\"\ncores = 2\n");
    for (drive, layer) in [
        (pblk.to_owned(), true),
        (format!("{pblk}shards = 2\n"), true),
        (rrpc, true),
        (layered, true),
        (pcm.to_owned(), false),
        (null.to_owned(), false),
    ] {
        let found = steady(&format!(
            "{drive}[precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\nuntil = \"steady\"\n{JOB}"
        ));
        assert!(found.reached, "{drive}: {:?}", found.missing());
        assert_eq!(found.write_amplification.is_some(), layer, "{drive}");
        assert!(found.throughput.unwrap().average > 0.0, "{drive}");
    }
}

#[test]
fn jobs_in_fios_words_leave_another_state() {
    let after = |overwrite: &str| {
        run(&format!(
            "{DRIVE}[precondition]\nfill = \"sequential\"\noverwrite = {overwrite}\n{JOB}"
        ))
    };
    let random = after("\"random 3x\"");
    // The short form equals a table with defaults.
    assert_eq!(to_json(&random)["jobs"], to_json(&after("{ amount = \"3x\" }"))["jobs"]);
    let zipf = after("{ rw = \"randwrite\", random_distribution = \"zipf:1.1\", amount = \"3x\" }");
    let sequential = after("{ rw = \"write\", bs = \"64k\", amount = \"3x\" }");
    let several = after("[\"random 3x\", { rw = \"write\", bs = \"64k\", amount = \"3x\" }]");
    let found: Vec<f64> = [&random, &zipf, &sequential].into_iter().map(amplification).collect();
    assert!(found[0] != found[1], "uniform and skewed: {found:?}");
    assert!(
        found[0].min(found[1]) > found[2] + 0.2,
        "sequential writes leave no valid sectors to move: {found:?}"
    );
    assert!(
        (amplification(&several) - found[2]).abs() < 0.1,
        "the last job determines the result: {several:?}"
    );
    // Trimmed sectors are not relocated.
    let trimmed = after(
        "[\"random 3x\", { rw = \"randtrim\", size = \"50%\", norandommap = false, amount = \"0.5x\" }]",
    );
    assert!(amplification(&trimmed) < found[0], "{} {}", amplification(&trimmed), found[0]);
}

#[test]
fn progress_grows_in_many_steps_to_the_end() {
    for precondition in [
        "fill = \"sequential\"\noverwrite = \"random 4x\"\n",
        "fill = \"sequential\"\nuntil = \"steady\"\n",
    ] {
        let mut parts = Vec::new();
        let text = format!("{DRIVE}[precondition]\n{precondition}{JOB}");
        try_run(&text, &mut |stage| {
            if let SimStage::Preconditioning(part) = stage {
                parts.push(part);
            }
        })
        .unwrap();
        assert!(parts.len() > 10, "{precondition}: {parts:?}");
        assert!(parts.windows(2).all(|w| w[0] <= w[1]), "{precondition}: {parts:?}");
        assert!(parts[0] < 0.3 && parts.last() == Some(&1.0), "{precondition}: {parts:?}");
    }
}

#[test]
fn jobs_that_do_not_fit_say_which_section_and_why() {
    for (keys, says) in [
        ("overwrite = { bs = \"6k\", amount = \"1x\" }", "6144"),
        ("overwrite = { size = \"1T\", amount = \"1x\" }", "drive"),
        ("overwrite = { offset = \"1T\", amount = \"1x\" }", "drive"),
    ] {
        let text = format!("{DRIVE}[precondition]\n{keys}\n{JOB}");
        let error = try_run(&text, &mut |_| {}).unwrap_err();
        assert!(error.is_usage(), "{error}");
        let message = error.to_string();
        assert!(message.contains("[precondition]") && message.contains(says), "{message}");
    }
}

#[test]
fn a_drive_that_wears_out_meanwhile_says_so() {
    let text = format!(
        "{DRIVE}errors.program_failure_rate = 0.01\n[precondition]\nfill = \"sequential\"\n\
         overwrite = \"random 20x\"\n{JOB}"
    );
    let error = try_run(&text, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("capacity exceeded"), "{error}");
    assert!(error.contains("programs and") && error.contains("chunks are retired"), "{error}");
}

#[test]
fn a_run_can_be_stopped_while_it_is_preconditioned() {
    for precondition in ["overwrite = \"random 50x\"\n", "until = \"steady\"\n"] {
        let text = format!("{DRIVE}[precondition]\nfill = \"sequential\"\n{precondition}{JOB}");
        let scenario = Scenario::parse(Path::new("t.toml"), &text).unwrap();
        let stop = AtomicBool::new(false);
        let mut last = SimStage::Preconditioning(0.0);
        let mut progress = |stage| {
            last = stage;
            let begun = matches!(stage, SimStage::Preconditioning(part) if part > 0.1);
            stop.fetch_or(begun, Ordering::Relaxed);
        };
        let (stop, progress) = (Some(&stop), Some(&mut progress as &mut dyn FnMut(SimStage)));
        let options = SimOptions { stop, progress, ..SimOptions::default() };
        let error = simulate(&scenario, options).unwrap_err();
        assert!(error.is_stopped() && !error.is_usage(), "{error}");
        let SimStage::Preconditioning(part) = last else { panic!("{last:?}") };
        assert!((0.1..0.5).contains(&part), "it went on to {part}");
    }
}

#[test]
fn the_needs_of_a_run_are_known_before_it() {
    let needs = |text: &str, write_image| {
        let scenario = Scenario::parse(Path::new("t.toml"), text).unwrap();
        RunNeeds::of_run(&scenario, &[], write_image).unwrap()
    };
    let clones = format!("{DRIVE}{JOB}numjobs = 3\n{JOB}");
    let of_clones = needs(&clones, true);
    assert_eq!((of_clones.jobs, of_clones.writes_files), (4, false));
    assert_eq!(run(&clones).paths[0].run.jobs.len(), 4);
    // 96 MiB of flash with its spare bytes, half as much again, and tables.
    let with_data = needs(&format!("{DRIVE}{JOB}").replace("\"none\"", "\"memory\""), false);
    assert!((96 << 20..160 << 20).contains(&with_data.memory_bytes), "{with_data:?}");
    assert!(of_clones.memory_bytes < 4 << 20, "{of_clones:?}");
    assert!(needs(&format!("{DRIVE}{JOB}write_bw_log = \"x\"\n"), false).writes_files);
    let image = format!("{DRIVE}{JOB}").replace("\"none\"", "\"file\"\npath = \"x.img\"");
    assert!(needs(&image, true).writes_files && !needs(&image, false).writes_files);
}

#[test]
fn a_drawn_steady_state_is_steady_from_the_first_write() {
    let text = format!("{DRIVE}[precondition]\nsteady = \"sampled\"\n{JOB}");
    let outcome = run(&text);
    let json = to_json(&outcome);
    assert_eq!(json["sluice"]["parameters"]["precondition"]["steady"], "sampled");
    assert_eq!(json, to_json(&run(&text)), "a second run must give the same result");
    let codes: Vec<&str> = outcome.notes.iter().map(|note| note.code.as_str()).collect();
    assert!(!codes.contains(&"not-steady"), "{codes:?}");
}
