//! Windows of programs whose instructions between an I/O and its use are known.

use speculation_profile::{IoProfile, ProfileOptions};

use crate::TestPrograms;

const LOOPS: u64 = 12_345;

fn compiled() -> Option<TestPrograms> {
    TestPrograms::compile("windows.c", &[])
}

fn only(of: &speculation_profile::RuleProfile) -> (u64, u64, Vec<String>) {
    assert_eq!(of.min, of.max, "one length");
    (of.windows, of.min, of.stops.keys().cloned().collect())
}

fn one(windows: u64, length: u64, reason: &str) -> (u64, u64, Vec<String>) {
    (windows, length, vec![reason.to_owned()])
}

/// guarantee: V-21
#[test]
fn a_read_ends_at_the_first_load_from_its_buffer() {
    let Some(programs) = compiled() else { return };
    for mode in ["read", "store", "threads"] {
        for loops in [1, 2, LOOPS] {
            let [read, ..] = programs.profile(mode, loops).profile.io(Some("program"));
            assert!(read.calls >= 1, "{mode}");
            check_longest(&read, loops, mode);
        }
    }
}

fn check_longest(read: &IoProfile, loops: u64, mode: &str) {
    // The dynamic loader reads ELF headers and uses them at once; its windows are short.
    let known = 2 * loops + 1;
    for of in [&read.paper, &read.sluice] {
        assert!(of.stops.contains_key("buffer"), "{mode}: {of:?}");
        if loops > 1_000 {
            assert_eq!(of.max, known, "{mode}: {of:?}");
        } else {
            assert!(of.min <= known, "{mode}: {of:?}");
        }
    }
}

/// A statically linked program reads nothing at its start, so that every window is known.
///
/// guarantee: V-21
#[test]
fn windows_of_a_static_program_are_exact() {
    let Some(programs) = TestPrograms::compile("windows.c", &["-static"]) else { return };
    for loops in [1, 7, LOOPS] {
        let [read, write, sync] = programs.profile("read", loops).profile.io(None);
        assert_eq!(only(&read.paper), one(1, 2 * loops + 1, "buffer"));
        assert_eq!(only(&read.sluice), one(1, 2 * loops + 1, "buffer"));
        assert_eq!((read.calls, read.bytes, write.calls, sync.calls), (1, 4096, 0, 0));
        let [read, ..] = programs.profile("store", loops).profile.io(None);
        assert_eq!(only(&read.sluice), one(1, 2 * loops + 1, "buffer"));
        let [read, ..] = programs.profile("copy", loops).profile.io(None);
        assert_eq!(only(&read.paper), one(1, 2 * loops + 3, "write"));
        assert_eq!(only(&read.sluice), one(1, 2 * loops + 3, "buffer (write)"));
        let [read, ..] = programs.profile("fork", loops).profile.io(None);
        assert_eq!(only(&read.sluice), one(1, 2 * loops + 1, "buffer"));
        let run = programs.profile("exec", loops).profile;
        let [read, ..] = run.io(None);
        assert_eq!(only(&read.sluice), one(1, 2 * loops + 1, "buffer"));
    }
}

/// guarantee: V-21
#[test]
fn a_call_on_the_volume_stops_the_papers_rule_and_not_that_of_sluice() {
    let Some(programs) = TestPrograms::compile("windows.c", &["-static"]) else { return };
    for (mode, kind, name) in [("write", 1, "write"), ("sync", 2, "fsync")] {
        let io = programs.profile(mode, LOOPS).profile.io(None);
        let of = &io[kind];
        assert_eq!(of.paper.windows, 2);
        assert_eq!(of.paper.max, 2 * LOOPS + 3, "{mode}");
        assert_eq!(of.paper.stops[name], 1);
        // The process ends: that may be observed.
        assert_eq!(of.sluice.stops.keys().collect::<Vec<_>>(), ["exit_group"]);
        assert_eq!(of.sluice.stops["exit_group"], 2);
        assert_eq!(of.sluice.max - of.sluice.min, 2 * LOOPS + 3);
    }
}

/// guarantee: V-21
#[test]
fn pure_calls_stop_neither_rule_and_output_stops_both() {
    let Some(programs) = TestPrograms::compile("windows.c", &["-static"]) else { return };
    let [_, write, _] = programs.profile("pure", LOOPS).profile.io(None);
    assert!(write.paper.min > 2 * LOOPS + 3);
    assert_eq!(write.paper.stops.keys().collect::<Vec<_>>(), ["exit_group"]);
    let [_, write, _] = programs.profile("pipe", 1).profile.io(None);
    for of in [&write.paper, &write.sluice] {
        assert_eq!((of.windows, of.stops.get("write")), (1, Some(&1)), "{of:?}");
    }
    let run = programs.profile("io_uring", 1).profile;
    let [_, write, _] = run.io(None);
    // The emulator does not have the call; the program would wait if it had.
    assert_eq!(write.sluice.windows, 1);
}

/// guarantee: V-21
#[test]
fn stores_to_shared_memory_stop_a_speculation_if_others_can_map_it() {
    let Some(programs) = TestPrograms::compile("windows.c", &["-static"]) else { return };
    let [_, write, _] = programs.profile("shared", 1).profile.io(None);
    assert_eq!(write.paper.stops.keys().collect::<Vec<_>>(), ["shared memory"]);
    assert_eq!(write.sluice.stops.keys().collect::<Vec<_>>(), ["exit_group"]);
    let folder = programs.folder.path();
    let volume = folder.join("volume");
    std::fs::create_dir(&volume).expect("created");
    let data = volume.join("data");
    for file in [&data, &folder.join("outside")] {
        std::fs::write(file, vec![0; 8192]).expect("written");
    }
    let program = programs.program();
    let words = [program.into(), "mapped".into(), data.into(), "1".into()];
    let options = ProfileOptions {
        directories: vec![volume],
        current_dir: Some(folder.to_path_buf()),
        ..ProfileOptions::default()
    };
    let run = speculation_profile::run(&words, &options).expect("profiled");
    assert!(run.status.success());
    let [_, write, _] = run.profile.io(None);
    for of in [&write.paper, &write.sluice] {
        assert_eq!(of.stops.keys().collect::<Vec<_>>(), ["shared memory"]);
    }
}

#[test]
fn a_buffer_that_another_read_fills_ends_the_window() {
    let Some(programs) = TestPrograms::compile("windows.c", &["-static"]) else { return };
    let [read, ..] = programs.profile("twice", LOOPS).profile.io(None);
    assert_eq!(read.calls, 2);
    assert_eq!(read.sluice.stops["overwritten"], 1);
    assert_eq!(read.sluice.stops["exit_group"], 1);
    assert_eq!(read.sluice.max.max(2 * LOOPS + 3), read.sluice.max);
}

#[test]
fn windows_of_a_killed_process_are_unfinished() {
    let Some(programs) = TestPrograms::compile("windows.c", &["-static"]) else { return };
    let run = programs.profile("killed", 1);
    assert!(!run.status.success());
    assert_eq!(run.profile.killed_processes(), 1);
    let [_, write, _] = run.profile.io(None);
    assert_eq!((write.sluice.windows, write.sluice.unfinished), (0, 1));
    assert!(run.profile.instructions() > 1000);
}

/// guarantee: V-21
#[test]
fn with_directories_other_files_are_outside_of_the_volume() {
    let Some(programs) = TestPrograms::compile("windows.c", &["-static"]) else { return };
    let elsewhere = tempfile::TempDir::new().expect("a folder");
    let with = |directory: &std::path::Path| ProfileOptions {
        directories: vec![directory.to_path_buf()],
        ..ProfileOptions::default()
    };
    let [_, write, _] = programs.profile_with("write", 1, &with(elsewhere.path())).profile.io(None);
    assert_eq!(write.calls, 0);
    let [_, write, _] =
        programs.profile_with("write", 1, &with(programs.folder.path())).profile.io(None);
    assert_eq!(write.calls, 2);
}
