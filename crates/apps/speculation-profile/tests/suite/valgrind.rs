//! Instruction counts of the plugin and of valgrind.

use std::process::Command;

use speculation_profile::{ProfileOptions, run};

use crate::{TestPrograms, has_program, words};

/// Runs a program under callgrind in the folder; returns its instructions.
fn valgrind(programs: &TestPrograms, command: &[&str]) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(command)
        .env("GLIBC_TUNABLES", BASELINE)
        .current_dir(programs.folder.path())
        .output()
        .expect("valgrind runs");
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find_map(|line| line.split_once("Collected : "));
    line.expect("a count").1.trim().parse().expect("a number")
}

/// The C library selects functions by the processor. Both tools emulate different processors.
const BASELINE: &str =
    "glibc.cpu.hwcaps=-AVX2,-AVX,-BMI2,-ERMS,-FSRM,-SSE4_2,-AVX512F,-XSAVEC,-XSAVE";

/// guarantee: V-23
#[test]
fn counts_are_within_a_thousandth_of_valgrind() {
    let Some(programs) = TestPrograms::compile("windows.c", &["-static"]) else { return };
    if !has_program("valgrind") {
        testkit::skip!("no valgrind (`scripts/apt-install valgrind`)");
        return;
    }
    let folder = programs.folder.path();
    let numbers: String = (0..90_000).map(|i| format!("{}\n", (i * 7919) % 90_001)).collect();
    std::fs::write(folder.join("numbers"), numbers).expect("written");
    let program = programs.program();
    let program = program.to_str().expect("UTF-8");
    let cases: [&[&str]; 5] = [
        &[program, "read", "data", "25000000"],
        &["bzip2", "-k", "-f", "numbers"],
        &["sort", "-n", "--parallel=1", "-o", "sorted", "numbers"],
        &["sha256sum", "numbers", "numbers", "numbers"],
        &["gzip", "-k", "-f", "numbers"],
    ];
    let options = ProfileOptions {
        current_dir: Some(folder.to_path_buf()),
        environment: vec![("GLIBC_TUNABLES".into(), BASELINE.into())],
        ..ProfileOptions::default()
    };
    for case in cases {
        let of_valgrind = valgrind(&programs, case);
        let counted = run(&words(case), &options).expect("profiled").profile.instructions();
        let ratio = counted as f64 / of_valgrind as f64;
        println!("{}: {counted} of {of_valgrind}: {ratio:.6}", case[0]);
        assert!((ratio - 1.0).abs() <= 0.001, "{}: {counted} of {of_valgrind}", case[0]);
    }
}
