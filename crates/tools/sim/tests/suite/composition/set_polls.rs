//! A step of a path over a set polls the members' devices that have work: the polls of an I/O do not
//! depend on the number of drives.

// guarantee: B-67

use std::fmt::Write;
use std::path::Path;

use scenario::Scenario;
use sluice_sim::{SimOptions, simulate};

const READS: u64 = 4_000;

/// Polls of paths and devices per read, with `drives` drives of one set. All have equal shapes, and
/// the requests are on all of them, one at a time, so that no poll serves several.
fn polls_per_read(drives: u32, target: &str, path: &str) -> f64 {
    let mut text = String::new();
    let mut members = Vec::new();
    for i in 0..drives {
        write!(
            text,
            "[[drive]]\nname = \"d{i}\"\npreset = \"femu-default\"\n\
             geometry = {{ channels = 2, pus = 2, chunks = 32, pages = 16 }}\n"
        )
        .unwrap();
        if target.is_empty() {
            members.push(format!("\"d{i}\""));
        } else {
            writeln!(text, "personality = \"open-channel\"").unwrap();
            write!(text, "[[target]]\nname = \"t{i}\"\ndrive = \"d{i}\"\n{target}\n").unwrap();
            members.push(format!("\"t{i}\""));
        }
    }
    write!(
        text,
        "[[set]]\nname = \"s\"\nmembers = [{}]\n[[path]]\nname = \"p\"\nover = \"s\"\n{path}\n\
         [precondition]\nfill = \"sequential\"\n\
         [[job]]\npath = \"p\"\nrw = \"randread\"\nbs = \"4k\"\niodepth = 1\nnumber_ios = {READS}\n",
        members.join(", ")
    )
    .unwrap();
    let scenario = Scenario::parse(Path::new("s.toml"), &text).unwrap();
    let outcome = simulate(&scenario, SimOptions::default()).unwrap();
    assert_eq!(outcome.paths[0].run.jobs[0].requests.completed, READS);
    let used = outcome.drives.iter().filter(|drive| drive.drive.reads > 0).count();
    assert_eq!(used, drives as usize, "the reads are on all drives");
    outcome.diagnostics.polls as f64 / READS as f64
}

#[test]
fn the_polls_of_a_read_do_not_depend_on_the_number_of_drives() {
    for (target, path) in [
        ("", ""),
        ("", "queue_model = \"mq\"\ncores = 2"),
        ("", "completion = \"interrupt\""),
        ("kind = \"pblk\"\npus = \"0-3\"", ""),
    ] {
        let few = polls_per_read(4, target, path);
        let many = polls_per_read(48, target, path);
        let ratio = many / few;
        assert!((0.8..1.25).contains(&ratio), "{target} {path}: {many} polls, of 4 drives {few}");
    }
}
