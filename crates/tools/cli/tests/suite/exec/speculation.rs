//! `sluice exec --speculate wait` and `buffer`: programs see what they see without it, and nothing of an unsynced
//! state leaves them.

// guarantee: B-126, B-127

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::fixture::{Fixture, text};
use super::library::SLUICE;

const SPECULATES: [&str; 2] = ["--speculate", "wait"];
const BUFFERS: [&str; 2] = ["--speculate", "buffer"];
const BOTH: [[&str; 2]; 2] = [SPECULATES, BUFFERS];

#[test]
fn every_call_is_as_on_the_host_when_syncs_return_at_once() {
    let stage = Fixture::new(64 << 20);
    let program = stage.compile("files");
    let host = stage.path("host");
    std::fs::create_dir(&host).unwrap();
    let wanted = stage.run(&program, &[&host]);
    for mode in BOTH {
        let stage = Fixture::new(64 << 20);
        let at = stage.path("at");
        let got = stage.command_with(&mode, &[&program, &at]).output().unwrap();
        assert!(got.status.success(), "{mode:?}: {}", text(&got.stderr));
        assert_eq!(text(&got.stdout), text(&wanted.stdout), "{mode:?}");
        stage.is_clean();
    }
}

/// Pipelines, a statically linked program among them, and a program that is executed by another.
#[test]
fn pipelines_and_static_programs_are_stopped_and_end() {
    BOTH.iter().for_each(|mode| pipelines_end(mode));
}

fn pipelines_end(mode: &[&str]) {
    let stage = Fixture::new(16 << 20);
    let (at, source, fixed) = (stage.path("at"), stage.path("fixed.c"), stage.path("fixed"));
    std::fs::write(
        &source,
        "#include <stdio.h>\nint main(void) { int c; while ((c = getchar()) != EOF) putchar(c); }\n",
    )
    .unwrap();
    let out = Command::new("cc").args(["-static", "-o", &fixed, &source]).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let script = format!(
        "for i in 1 2 3; do echo line $i >> {at}/f; sync {at}/f; echo said $i; done; \
         cat {at}/f | {fixed} | tr a-z A-Z; (echo in the background; sync {at}/f) & wait; exec cat {at}/f"
    );
    let options = [mode, &["--stats"]].concat();
    let out = stage.command_with(&options, &["sh", "-c", &script]).output().unwrap();
    let lines = "said 1\nsaid 2\nsaid 3\nLINE 1\nLINE 2\nLINE 3\nin the background\nline 1\nline 2\nline 3\n";
    let said = text(&out.stderr);
    assert_eq!((text(&out.stdout).as_str(), out.status.code()), (lines, Some(0)), "{said}");
    let counted = said.lines().find_map(|line| line.strip_prefix("speculation: "));
    let counted = counted.unwrap_or_else(|| panic!("{said}"));
    assert!(
        counted.starts_with("4 syncs, 4 barriers; ") && counted.ends_with(" 0 failed"),
        "{said}"
    );
    stage.is_clean();
}

#[test]
fn sqlite_commits_without_waiting() {
    let stage = Fixture::new(64 << 20);
    let db = stage.path("at") + "/a.db";
    let inserts = "INSERT INTO t(b) VALUES(hex(randomblob(50)));\n".repeat(200);
    for pragma in ["PRAGMA journal_mode = WAL;", "PRAGMA journal_mode = DELETE;"] {
        let script = format!(
            "{pragma} PRAGMA synchronous = FULL; DROP TABLE IF EXISTS t;\n\
             CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);\n{inserts}\
             SELECT count(*) FROM t; PRAGMA integrity_check;"
        );
        let options = [&SPECULATES[..], &["--stats"]].concat();
        let mut command = stage.command_with(&options, &["sqlite3", &db, &script]);
        let out = command.output().unwrap();
        let said = text(&out.stderr);
        assert!(text(&out.stdout).ends_with("\n200\nok\n"), "{}{said}", text(&out.stdout));
        let counted = said.lines().find_map(|line| line.strip_prefix("speculation: "));
        let syncs = counted.and_then(|line| line.split_once(" syncs"));
        let syncs: u32 = syncs.unwrap_or_else(|| panic!("{said}")).0.parse().unwrap();
        assert!(syncs >= 200 && !said.contains("ended"), "{said}");
        stage.is_clean();
    }
}

#[test]
fn a_statically_linked_program_is_refused_with_a_line() {
    let stage = Fixture::new(16 << 20);
    let fixed = stage.compile_static();
    let out = stage.command_with(&SPECULATES, &[&fixed]).output().unwrap();
    assert!(text(&out.stderr).contains("is linked statically"), "{}", text(&out.stderr));
    for (options, reason) in [
        (&["--commit-interval", "1s"][..], "--commit-interval needs --speculate"),
        (&["--speculate", "wait", "--commit-interval", "1 day"], "a duration with its unit"),
    ] {
        let out = stage.command_with(options, &["true"]).output().unwrap();
        let said = text(&out.stderr);
        assert!(out.status.code() == Some(2) && said.contains(reason), "{said}");
    }
    let out = stage.command_with(&["--speculate", "maybe"], &["true"]).output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
}

/// A client of a socket that has gone: the program gets the error that it gets without speculation.
#[test]
fn a_peer_that_has_gone_is_an_error_of_the_output() {
    BOTH.iter().for_each(|mode| fails_without_a_peer(mode));
}

fn fails_without_a_peer(mode: &[&str]) {
    let stage = Fixture::new(16 << 20);
    let at = stage.path("at");
    let script = format!(
        "import os, socket\n\
         here, there = socket.socketpair()\n\
         file = os.open('{at}/f', os.O_CREAT | os.O_WRONLY)\n\
         there.close()\n\
         os.write(file, b'synced'); os.fsync(file)\n\
         try:\n    here.send(b'out')\n\
         except BrokenPipeError: print('gone')\n"
    );
    let out = stage.command_with(mode, &["python3", "-c", &script]).output().unwrap();
    assert_eq!(text(&out.stdout), "gone\n", "{}", text(&out.stderr));
    stage.is_clean();
}

/// Returns the processes that have this parent.
fn children(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task");
    let tasks = std::fs::read_dir(path).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<_>>())
        .collect()
}

/// The service is killed while an output waits, with an outbox when it is full: it is never made,
/// and the program ends, although it ignores errors of its output.
#[test]
fn output_that_waits_for_a_killed_service_is_never_made() {
    BOTH.iter().for_each(|mode| is_never_made(mode));
}

fn is_never_made(mode: &[&str]) {
    const DRIVE: &str = "[drive]\npreset = \"femu-default\"\ndata = \"file\"\npath = \"drive.img\"\n\
        geometry = { channels = 2, pus = 4, chunks = 64, pages = 64 }\n\
        write_buffer = { kind = \"volatile\", size = \"1m\" }\n";
    let timing = |program: &str| {
        format!("{DRIVE}timing = {{ read = \"1us\", program = \"{program}\", erase = \"1us\" }}\n")
    };
    let stage = Fixture::on_scenario(&timing("10us"));
    // Every durable write takes long enough for the kill.
    std::fs::write(stage.path("drive.toml"), timing("300ms")).unwrap();
    let (drive, at, source) = (stage.path("drive.toml"), stage.path("at"), stage.path("out.c"));
    let program = stage.path("out");
    std::fs::write(
        &source,
        "#include <fcntl.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
         int main(int argc, char **argv) { int fd = open(argv[1], O_CREAT | O_RDWR, 0600);\n\
         if (fd < 0 || write(fd, \"synced\", 6) != 6 || fsync(fd)) abort();\n\
         for (;;) write(1, \"out\", 3); }\n",
    )
    .unwrap();
    let cc = Command::new("cc").args(["-w", "-o", &program, &source]).output().unwrap();
    assert!(cc.status.success(), "{}", text(&cc.stderr));
    let mut command = Command::new(SLUICE);
    command.args(["exec", "--volume", &drive, "--at", &at]).args(mode);
    command.args(["--", &program, &format!("{at}/f")]).stdout(Stdio::piped());
    let mut service = command.spawn().unwrap();
    let begun = Instant::now();
    // The number of `write` and its first argument.
    let is_writing = |process: u32| {
        let call = std::fs::read_to_string(format!("/proc/{process}/syscall"));
        call.is_ok_and(|call| call.starts_with("1 0x1 "))
    };
    while !children(service.id()).into_iter().any(is_writing) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the output does not wait");
        std::thread::sleep(Duration::from_millis(1));
    }
    service.kill().unwrap();
    // The pipe ends when the program has ended, too.
    let out = service.wait_with_output().unwrap();
    assert_eq!(text(&out.stdout), "");
}
