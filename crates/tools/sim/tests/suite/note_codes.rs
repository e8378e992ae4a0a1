//! The notes of `sluice sim`: each code occurs once in a scenario that provokes it, and not in
//! others.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use scenario::Scenario;
use sluice_sim::{Note, NoteCode, SimError, SimOptions, SimStage, simulate};

const DRIVE: &str = "[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, chunks = 16, pages = 32 }\n";
const FILL: &str = "[precondition]\nfill = \"sequential\"\n";
const READER: &str =
    "[[job]]\nname = \"r\"\nrw = \"randread\"\nbs = \"4k\"\nsize = \"2m\"\niodepth = 4\n";
const WRITER: &str =
    "[[job]]\nname = \"w\"\nrw = \"randwrite\"\nbs = \"4k\"\nsize = \"4m\"\niodepth = 4\n";

fn notes(text: &str) -> Vec<Note> {
    let scenario = Scenario::parse(Path::new("s.toml"), text).unwrap_or_else(|e| panic!("{e}"));
    simulate(&scenario, SimOptions::default()).unwrap_or_else(|e| panic!("{e}")).notes
}

fn codes(text: &str) -> Vec<NoteCode> {
    notes(text).iter().map(|note| note.code).collect()
}

/// Returns the number `name` of the only note with this code.
fn number(text: &str, code: NoteCode, name: &str) -> f64 {
    let notes = notes(text);
    let found: Vec<&Note> = notes.iter().filter(|note| note.code == code).collect();
    assert_eq!(found.len(), 1, "{notes:?}");
    assert!(!found[0].text.contains('\n'), "{}", found[0].text);
    let value = found[0].numbers.iter().find(|(key, _)| *key == name).map(|(_, value)| value);
    value.and_then(|value| value.as_f64()).unwrap_or_else(|| panic!("{name}: {notes:?}"))
}

#[test]
fn a_plain_run_has_nothing_to_note() {
    assert_eq!(codes(&format!("{DRIVE}{FILL}{READER}")), []);
}

#[test]
fn reads_of_unwritten_sectors_are_counted_with_either_ftl() {
    let open = "personality = \"open-channel\"\n";
    let map = "device_l2p = true\n";
    for target in [
        String::new(),
        format!("{open}[target]\nkind = \"pblk\"\n"),
        format!("{open}[target]\nkind = \"pblk\"\nshards = 2\n"),
        format!("{open}{map}[target]\nkind = \"rrpc\"\n"),
    ] {
        let text = format!("{DRIVE}{target}{READER}");
        let code = NoteCode::UnwrittenReads;
        assert_eq!(number(&text, code, "unwritten_sectors"), 512.0, "{target}");
        assert_eq!(number(&text, code, "share"), 1.0);
        assert_eq!(codes(&format!("{DRIVE}{target}{FILL}{READER}")), [], "{target}");
    }
}

#[test]
fn a_drive_that_was_not_gone_over_once_is_not_in_steady_state() {
    let code = NoteCode::NotSteady;
    let text = format!("{DRIVE}{FILL}{WRITER}");
    let (reclaimed, lines) = (number(&text, code, "lines_reclaimed"), number(&text, code, "lines"));
    assert!(reclaimed < lines, "{reclaimed} of {lines}");
    assert!(
        !codes(&format!("{DRIVE}{FILL}{READER}")).contains(&code),
        "a job without writes must not give this note"
    );
    let longer = WRITER.replace("4m\"", "4m\"\nio_size = \"100m\"");
    assert!(!codes(&format!("{DRIVE}{FILL}{longer}")).contains(&code));
    // With `until`, its own rule decides.
    let until = |rounds: u32| {
        let rule = format!("until = {{ kind = \"steady\", rounds = {rounds} }}\n");
        format!("{DRIVE}[precondition]\nfill = \"sequential\"\n{rule}{WRITER}")
    };
    assert_eq!(number(&until(5), code, "rounds"), 5.0);
    assert!(!codes(&until(60)).contains(&code));
}

#[test]
fn a_scheduler_or_a_limit_without_a_choice_is_named() {
    let code = NoteCode::NothingToOrder;
    let path = "[path]\nqueue_model = \"mq\"\ncores = 1\nscheduler = \"deadline\"\n";
    let shallow = READER.replace("iodepth = 4", "iodepth = 1");
    let text = format!("{DRIVE}{path}{FILL}{shallow}");
    assert!(number(&text, code, "staged_max") <= 1.0);
    let deep = READER.replace("iodepth = 4", "iodepth = 64");
    let narrow = DRIVE.replace("[drive]\n", "[drive]\ncontroller = { queue_depth = 8 }\n");
    assert!(!codes(&format!("{narrow}{path}{FILL}{deep}")).contains(&code));
}

#[test]
fn a_block_layer_that_costs_nothing_says_so() {
    let code = NoteCode::CostsNothing;
    for block in ["sq", "mq"] {
        let path = format!("[path]\nqueue_model = \"{block}\"\n");
        assert_eq!(codes(&format!("{DRIVE}{path}{FILL}{READER}")), [code]);
    }
    assert_eq!(codes(&format!("{DRIVE}[path]\nqueue_model = \"raw\"\n{FILL}{READER}")), []);
}

#[test]
fn a_job_that_issued_nothing_is_named() {
    // The second job starts later than the stop of the run.
    let long =
        READER.replace("size = \"2m\"", "size = \"2m\"\ntime_based = true\nruntime = \"5s\"");
    let late = READER.replace("\"r\"", "\"late\"\nstartdelay = \"10s\"");
    let text = format!("{DRIVE}{FILL}{long}{late}");
    let scenario = Scenario::parse(Path::new("s.toml"), &text).unwrap();
    let stop = AtomicBool::new(false);
    let mut progress = |stage| {
        stop.fetch_or(matches!(stage, SimStage::Running { .. }), Ordering::Relaxed);
    };
    let options =
        SimOptions { stop: Some(&stop), progress: Some(&mut progress), ..SimOptions::default() };
    let outcome = simulate(&scenario, options).unwrap();
    let found: Vec<_> = outcome.notes.iter().map(|n| (n.code, n.job.as_deref())).collect();
    assert!(found.contains(&(NoteCode::NothingIssued, Some("late"))), "{found:?}");
    assert!(found.contains(&(NoteCode::Partial, None)), "{found:?}");
    assert!(outcome.partial);
}

#[test]
fn a_host_that_is_the_bottleneck_is_named() {
    let code = NoteCode::HostBound;
    let host = "[host]\nsubmit_cost = \"50us\"\ncomplete_cost = \"50us\"\n";
    let deep = READER.replace("iodepth = 4", "iodepth = 32");
    let text = format!("{DRIVE}{host}{FILL}{deep}");
    assert!(number(&text, code, "cpu_busy_share") >= 0.99);
    assert!(number(&text, code, "drive_busy_share") < 0.9);
    let fast = host.replace("50us", "100ns");
    assert!(!codes(&format!("{DRIVE}{fast}{FILL}{READER}")).contains(&code));
}

#[test]
fn requests_of_a_trace_that_were_changed_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let trace =
        |bytes: u32| format!("fio version 2 iolog\n/d add\n/d open\n/d read 0 {bytes}\n/d close\n");
    write("odd.log", &trace(1000));
    write("even.log", &trace(4096));
    let code = NoteCode::RequestsRounded;
    for (log, changed) in [("odd.log", true), ("even.log", false)] {
        let job = format!("[[job]]\nname = \"t\"\nread_iolog = \"{log}\"\nreplay_align = \"4k\"\n");
        let path: PathBuf = write("s.toml", &format!("{DRIVE}{FILL}{job}"));
        let scenario = Scenario::load(&path).unwrap();
        let outcome = simulate(&scenario, SimOptions::default()).unwrap();
        assert_eq!(outcome.notes.iter().any(|note| note.code == code), changed, "{log}");
    }
}

#[test]
fn verifying_what_is_not_kept_is_refused_before_anything_is_run() {
    let job = WRITER.replace("bs =", "verify = \"crc32c\"\nbs =");
    let drive = DRIVE.replace("[drive]\n", "[drive]\ndata = \"none\"\n");
    let text = format!("{drive}{FILL}{job}");
    let scenario = Scenario::parse(Path::new("s.toml"), &text).unwrap();
    let ran = AtomicBool::new(false);
    let mut progress = |_: SimStage| ran.store(true, Ordering::Relaxed);
    let options = SimOptions { progress: Some(&mut progress), ..SimOptions::default() };
    let error = simulate(&scenario, options).unwrap_err();
    assert!(matches!(error, SimError::Scenario(_)) && error.is_usage(), "{error:?}");
    let line = 1 + text[..text.find("verify").unwrap()].matches('\n').count();
    assert!(error.to_string().starts_with(&format!("s.toml:{line}:1: ")), "{error}");
    assert!(!ran.load(Ordering::Relaxed));
    // The simulator refuses the option in a job file as well.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[w]\nrw=write\nbs=4k\nsize=1m\nverify=crc32c\n").unwrap();
    let scenario = Scenario::parse(Path::new("s.toml"), &drive).unwrap();
    let job_files = vec![file.path().to_path_buf()];
    let error = simulate(&scenario, SimOptions { job_files, ..SimOptions::default() }).unwrap_err();
    assert!(matches!(error, SimError::VerifyWithoutData { .. }) && error.is_usage(), "{error}");
    assert!(!codes(&format!("{DRIVE}{FILL}{job}")).contains(&NoteCode::UnwrittenReads));
}

#[test]
fn the_demo_has_only_what_is_said_of_it() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../demo");
    for (name, expected) in [
        // Ten seconds of writes do not overwrite a preconditioned drive once.
        ("drive-managed", &[NoteCode::NotSteady][..]),
        ("pblk-4-pus", &[NoteCode::NotSteady]),
        ("pblk-128-pus", &[NoteCode::NotSteady]),
        ("fairness", &[]),
    ] {
        let scenario = Scenario::load(&demo.join(format!("{name}.toml"))).unwrap();
        let outcome = simulate(&scenario, SimOptions::default()).unwrap();
        let found: Vec<NoteCode> = outcome.notes.iter().map(|n| n.code).collect();
        assert_eq!(found, expected, "{name}: {:?}", outcome.notes);
    }
}

#[test]
fn the_documentation_lists_every_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/report.md");
    let text = std::fs::read_to_string(path).unwrap();
    for code in NoteCode::ALL {
        assert!(text.contains(&format!("| `{}` |", code.as_str())), "{}", code.as_str());
    }
}
