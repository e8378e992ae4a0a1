//! Traces of the block layer, read with blkparse, btt and blkrawverify, and as Perfetto would read
//! them.

// guarantee: B-14

mod layer;
mod reference;
use crate::served;
mod source;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use block::trace::blktrace::{
    BlktraceReader, BlktraceWriter, DeviceNumber, RecordBody, TraceProcess, TracedDevice,
};
use block::trace::{TraceEvent, merge_by_time};
use block::{QueueModel, StagingScope, Submitter};
use reference::{Amount, Summary};
use report::trace_file::{BlockTracks, NamedSubmitter, TraceFile};
use served::{program, succeed};
use source::{CORES, events};

const NAME: &str = "sluice0";
const SECTOR_BYTES: u32 = 4096;

/// Writes the events as blktrace's files, in chunks as a run does.
fn write(dir: &Path, events: &[(u16, Vec<TraceEvent>)]) {
    let process = |n: u16| TraceProcess {
        submitter: Submitter(n),
        pid: 4000 + u32::from(n),
        comm: format!("submitter-{n}"),
    };
    let traced = TracedDevice {
        name: NAME.into(),
        number: DeviceNumber { major: 259, minor: 1 },
        sector_bytes: SECTOR_BYTES,
        cores: CORES,
        processes: (0..CORES).map(process).collect(),
        started: (1_700_000_000, 0),
    };
    let mut writer = BlktraceWriter::create(dir, &traced).unwrap();
    for (core, events) in events {
        events.chunks(100).for_each(|chunk| writer.write(*core, chunk).unwrap());
    }
    let written = writer.finish().unwrap();
    assert_eq!(written.events, events.iter().map(|e| e.1.len() as u64).sum::<u64>());
    assert_eq!(written.clamped, 0);
}

/// Runs a program of blktrace, which writes into its folder, and returns its output. Its standard
/// error may only list the files that it reads.
fn run(dir: &Path, name: &str, arguments: &[&str]) -> String {
    let output = succeed(program(name, "blktrace").args(arguments).current_dir(dir));
    let complaints = String::from_utf8(output.stderr).unwrap();
    for line in complaints.lines() {
        assert!(line.starts_with("Input file ") && line.ends_with(" added"), "{name}: {line}");
    }
    String::from_utf8(output.stdout).unwrap()
}

/// Parses `label: 12,  345KiB`, in which a comma without a following space groups thousands.
fn amount(text: &str) -> Option<(&str, Amount)> {
    let (label, numbers) = text.trim().split_once(':')?;
    let number = |text: &str| {
        let digits = text.trim().trim_end_matches("KiB").replace(',', "");
        digits.trim().parse::<i64>().ok()
    };
    Some(match numbers.split_once(", ") {
        Some((n, kib)) => (label, (number(n)?, number(kib)?)),
        None => (label, (number(numbers)?, 0)),
    })
}

/// Returns blkparse's summary of one core, or of all: from its heading to an empty line or the next
/// heading.
fn summary_of(output: &str, heading: &str) -> BTreeMap<String, Amount> {
    let start = output.find(heading).unwrap_or_else(|| panic!("{heading} in {output}"));
    let lines = output[start..].lines().skip(1).take_while(|line| line.starts_with(' '));
    let amounts = lines.flat_map(|line| line.split('\t')).filter_map(amount);
    amounts.map(|(label, amount)| (label.to_owned(), amount)).collect()
}

fn assert_summary(found: &BTreeMap<String, Amount>, expected: &Summary, of: &str) {
    for (label, amount) in expected {
        assert_eq!(found.get(*label), Some(amount), "{label} of {of}: {found:#?}");
    }
    for (label, amount) in found.iter().filter(|(label, _)| !label.ends_with("depth")) {
        assert!(expected.contains_key(&label[..]) || *amount == (0, 0), "{label} of {of}");
    }
}

#[test]
fn blkparse_counts_what_we_counted() {
    let dir = tempfile::tempdir().unwrap();
    let events = events();
    write(dir.path(), &events);
    let output = run(dir.path(), "blkparse", &["-i", NAME, "-d", "merged.bin"]);

    let mut all = Vec::new();
    for (core, events) in &events {
        let heading = format!("CPU{core} ({NAME}):");
        let expected = reference::summary(events, SECTOR_BYTES);
        assert_summary(&summary_of(&output, &heading), &expected, &heading);
        all.extend_from_slice(events);
    }
    let expected = reference::summary(&all, SECTOR_BYTES);
    assert_summary(&summary_of(&output, "Total (sluice0):"), &expected, "all");
    assert!(expected["Reads Completed"].0 > 300 && expected["Writes Completed"].0 > 200);
    assert!(expected["Reads Requeued"].0 > 0 && expected["PC Reads Compl."].0 > 0);
    assert!(output.contains(&format!("Events ({NAME}): {} entries", all.len())), "{output}");
    assert!(output.contains("Skips: 0 forward (0 -   0.0%)"), "{output}");

    // Every event has a line with its letter: `259,1 CPU SEQUENCE TIME PID LETTER KIND …`.
    let mut lines = vec![BTreeMap::new(); usize::from(CORES)];
    for line in output.lines().filter(|line| line.starts_with("259,1 ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let core: usize = words[1].parse().unwrap();
        *lines[core].entry(words[5].chars().next().unwrap()).or_insert(0) += 1;
        let own =
            if "MFQGIDS".contains(words[5]) && words[6] != "FWS" { "[submitter-" } else { "" };
        assert!(line.contains(own), "{line}");
    }
    for (core, events) in &events {
        let expected = reference::letters(events);
        assert_eq!(lines[usize::from(*core)], expected, "core {core}");
        assert!("QGSPUMFIDRC".chars().all(|letter| expected[&letter] > 0), "{expected:?}");
    }
    // Failed reads have Linux's error, -ENODATA as blkparse prints it.
    let failed = all.iter().filter(|e| !e.status.is_success()).count();
    assert!(failed > 0);
    assert_eq!(output.lines().filter(|l| l.ends_with("[65475]")).count(), failed);

    // The file that blkparse has merged is a trace as well, in order of time from the first event.
    let merged = BlktraceReader::open(&dir.path().join("merged.bin")).unwrap();
    let merged: Vec<_> = merged.map(|record| record.unwrap()).collect();
    let notes = usize::from(CORES) + 1;
    assert!(merged[..notes].iter().all(|r| {
        matches!(
            r.body,
            RecordBody::Process(_) | RecordBody::Timestamp { seconds: 1_700_000_000, .. }
        )
    }));
    let each: Vec<&[TraceEvent]> = events.iter().map(|e| &e.1[..]).collect();
    let ordered = merge_by_time(&each);
    assert_eq!(merged.len() - notes, ordered.len());
    for (record, event) in merged[notes..].iter().zip(&ordered) {
        assert_eq!(record.time, event.at.since(ordered[0].at));
        assert_eq!((record.cpu, record.pid), (event.core.into(), pid(event)));
    }
}

fn pid(event: &TraceEvent) -> u32 {
    4000 + u32::from(event.submitter.0)
}

#[test]
fn sequences_have_no_gaps_and_times_do_not_go_back() {
    let dir = tempfile::tempdir().unwrap();
    let events = events();
    write(dir.path(), &events);
    // When it reads from a pipe, blkparse checks the sequence of each core.
    let path = |core| dir.path().join(format!("{NAME}.blktrace.{core}"));
    let mut all = Vec::new();
    (0..CORES).for_each(|core| all.extend(std::fs::read(path(core)).unwrap()));
    std::fs::write(dir.path().join("all"), all).unwrap();
    let mut blkparse = program("blkparse", "blktrace");
    blkparse.args(["-i", "-"]).stdin(File::open(dir.path().join("all")).unwrap());
    let output = String::from_utf8(succeed(&mut blkparse).stdout).unwrap();
    let count: usize = events.iter().map(|e| e.1.len()).sum();
    assert!(output.contains(&format!("Events (259,1): {count} entries")), "{output}");
    assert!(output.contains("Skips: 0 forward"), "{output}");

    let output = run(dir.path(), "blkrawverify", &[NAME]);
    assert!(!output.contains("bad"), "{output}");
    let verified = std::fs::read_to_string(dir.path().join("sluice0.verify.out")).unwrap();
    for (core, events) in &events {
        // blkrawverify does not count the records that contain only names.
        let valid = events.len();
        let valid = format!("cpu {core}:\n    {valid:10} valid + {:10} invalid", 0);
        assert!(verified.contains(&valid), "{valid} in {verified}");
    }
}

/// Parses btt's line for an interval: minimum, average and maximum in seconds, and the count.
fn distance(output: &str, name: &str) -> (f64, f64, f64, usize) {
    let line = output.lines().find(|line| line.starts_with(&format!("{name} ")));
    let words: Vec<&str> =
        line.unwrap_or_else(|| panic!("{name}: {output}")).split_whitespace().collect();
    let seconds = |i: usize| words[i].parse::<f64>().unwrap();
    (seconds(1), seconds(2), seconds(3), words[4].parse().unwrap())
}

fn average(nanos: &[u64]) -> f64 {
    nanos.iter().sum::<u64>() as f64 / nanos.len() as f64 / 1e9
}

/// Returns the second column of a file of btt, sorted.
fn column(path: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(path).unwrap();
    let second = |line: &str| line.split_whitespace().nth(1)?.parse().ok();
    let mut values: Vec<f64> = text.lines().filter_map(second).collect();
    values.sort_by(f64::total_cmp);
    values
}

#[test]
fn btt_measures_what_we_measured() {
    let dir = tempfile::tempdir().unwrap();
    btt(dir.path(), &events());
}

/// Runs btt on the events, and compares its results.
fn btt(dir: &Path, events: &[(u16, Vec<TraceEvent>)]) {
    write(dir, events);
    run(dir, "blkparse", &["-i", NAME, "-d", "merged.bin", "-O"]);
    let each = ["-q", "q2c", "-l", "d2c", "-z", "q2d"];
    let output = run(dir, "btt", &[&["-i", "merged.bin"], &each[..]].concat());

    let timings = reference::timings(events, SECTOR_BYTES);
    assert!(timings.q2c.len() > 900, "{}", timings.q2c.len());
    // btt prints these intervals with nanoseconds.
    for (name, nanos) in
        [("Q2C", &timings.q2c), ("D2C", &timings.d2c), ("Q2G", &timings.q2g), ("Q2M", &timings.q2m)]
    {
        let (least, avg, most, n) = distance(&output, name);
        // btt counts an interval of zero as a nanosecond.
        let nanos: Vec<u64> = nanos.iter().map(|n| *n.max(&1)).collect();
        assert_eq!(n, nanos.len(), "{name}");
        assert!((avg - average(&nanos)).abs() < 1e-9, "{name}: {avg} and {}", average(&nanos));
        assert_eq!((least * 1e9).round() as u64, *nanos.iter().min().unwrap(), "{name}");
        assert_eq!((most * 1e9).round() as u64, *nanos.iter().max().unwrap(), "{name}");
    }
    // It prints those of each request with microseconds.
    for (name, nanos) in [("q2c", timings.q2c), ("d2c", timings.d2c), ("q2d", timings.q2d)] {
        let found = column(&dir.join(format!("{name}_259,1_{name}.dat")));
        let mut seconds: Vec<f64> = nanos.iter().map(|n| *n as f64 / 1e9).collect();
        seconds.sort_by(f64::total_cmp);
        assert_eq!(found.len(), seconds.len(), "{name}");
        for (found, seconds) in found.iter().zip(&seconds) {
            assert!((found - seconds).abs() < 0.6e-6, "{name}: {found} and {seconds}");
        }
        let mean = found.iter().sum::<f64>() / found.len() as f64;
        assert!((mean - average(&nanos)).abs() < 1e-7, "{name}: {mean}");
    }

    // `(259,  1) | #Q #D ratio | min average max total`, in sectors of 512 bytes.
    let at = output.find("Device Merge Information").unwrap();
    let line = output[at..].lines().find(|line| line.contains("(259,")).unwrap();
    let parts: Vec<Vec<f64>> = line
        .split('|')
        .map(|part| part.split_whitespace().filter_map(|word| word.parse().ok()).collect())
        .collect();
    let ratio = timings.queued as f64 / timings.issued as f64;
    assert_eq!(parts[1][..2], [timings.queued as f64, timings.issued as f64], "{line}");
    assert!((parts[1][2] - ratio).abs() <= 0.05 && ratio > 1.1, "{line}");
    assert_eq!(parts[2][3], timings.blocks as f64, "{line}");
}

/// Layouts of the block layer, and their schedulers.
fn layers() -> [(QueueModel, &'static str); 4] {
    let multi = |staging| QueueModel::MultiQueue { staging };
    [
        (QueueModel::SingleQueue, "none"),
        (multi(StagingScope::Core), "none"),
        (multi(StagingScope::Core), "deadline"),
        (multi(StagingScope::Device), "none"),
    ]
}

#[test]
fn blkparse_counts_what_the_block_layer_did() {
    for (layout, scheduler) in layers() {
        for longest in [1024, 16] {
            let dir = tempfile::tempdir().unwrap();
            let events = layer::events(layout, scheduler, longest);
            write(dir.path(), &events);
            let output = run(dir.path(), "blkparse", &["-i", NAME]);
            let of = format!("{layout:?}, {scheduler}, {longest}");
            let mut all = Vec::new();
            for (core, events) in &events {
                let heading = format!("CPU{core} ({NAME}):");
                let expected = reference::summary(events, SECTOR_BYTES);
                assert_summary(&summary_of(&output, &heading), &expected, &of);
                all.extend_from_slice(events);
            }
            let expected = reference::summary(&all, SECTOR_BYTES);
            assert_summary(&summary_of(&output, "Total (sluice0):"), &expected, &of);
            assert!(output.contains("Skips: 0 forward (0 -   0.0%)"), "{of}: {output}");
            let letters = reference::letters(&all);
            let count = |letter| letters.get(&letter).copied().unwrap_or(0);
            assert!("QGPUMDC".chars().all(|letter| count(letter) > 100), "{of}: {letters:?}");
            assert_eq!(count('X') > 0, longest == 16, "{of}: {letters:?}");
        }
    }
}

#[test]
fn btt_measures_what_the_block_layer_did() {
    for (layout, scheduler) in layers() {
        let dir = tempfile::tempdir().unwrap();
        btt(dir.path(), &layer::events(layout, scheduler, 1024));
    }
}

#[test]
fn perfetto_sees_the_same_requests() {
    let events = events();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.json");
    let mut file = TraceFile::create(&path).unwrap();
    let names = ["first", "second", "third"];
    let submitters: Vec<NamedSubmitter<'_>> = (0..)
        .map(Submitter)
        .zip(names)
        .map(|(submitter, name)| NamedSubmitter { submitter, name })
        .collect();
    let mut tracks = BlockTracks::new(&mut file, 1, "block layer", &submitters);
    let each: Vec<&[TraceEvent]> = events.iter().map(|e| &e.1[..]).collect();
    tracks.draw(&mut file, &merge_by_time(&each));
    assert_eq!((tracks.open(), tracks.unmatched()), (0, 0));
    file.finish().unwrap();

    let json: Vec<serde_json::Value> = serde_json::from_reader(File::open(&path).unwrap()).unwrap();
    let nanos = |e: &serde_json::Value| (e["ts"].as_f64().unwrap() * 1000.0).round() as u64;
    let mut begun = BTreeMap::new();
    let mut spans = BTreeMap::<&str, Vec<u64>>::new();
    for e in &json {
        let key = (e["id"].as_str(), e["name"].as_str().unwrap());
        match e["ph"].as_str().unwrap() {
            "b" => assert!(begun.insert(key, nanos(e)).is_none()),
            "e" => spans.entry(key.1).or_default().push(nanos(e) - begun.remove(&key).unwrap()),
            "i" => spans.entry(key.1).or_default().push(0),
            _ => {}
        }
    }
    assert!(begun.is_empty());
    let timings = reference::timings(&events, SECTOR_BYTES);
    let of = |names: &[&str]| names.iter().flat_map(|n| spans[n].clone()).collect::<Vec<u64>>();
    let requests = of(&["read", "write", "discard", "write zeroes"]);
    assert_eq!(requests.len(), timings.q2c.len());
    assert_eq!(requests.iter().sum::<u64>(), timings.q2c.iter().sum::<u64>());
    let count = |letter| events.iter().map(|e| reference::letters(&e.1)[&letter]).sum::<u64>();
    let without_sectors = spans["flush"].len() + spans["extents"].len();
    assert_eq!((requests.len() + without_sectors) as u64, count('Q'));
    let instants =
        [("merge behind", 'M'), ("merge before", 'F'), ("no place", 'S'), ("requeue", 'R')];
    for (name, letter) in instants {
        assert_eq!(spans[name].len() as u64, count(letter), "{name}");
    }
}
