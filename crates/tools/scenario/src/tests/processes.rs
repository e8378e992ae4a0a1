//! `[[process]]`, and paths whose `completion` is `"speculate"`.

// guarantee: V-14

use time::Nanos;

use super::{SMALL, assert_refused, parse, refused};
use crate::choice::Impossible;
use crate::{CompletionMethod, ProcessStrategy, ProgramWork};

const HOST: &str = "[host]\nmachine = \"i7-4770\"\n";

fn with_process(keys: &str) -> String {
    format!("{HOST}[[process]]\nrw = \"randwrite\"\n{keys}\n")
}

#[test]
fn a_process_is_a_job_with_a_program() {
    let keys = "name = \"db\"\ncompute = 10000\nstrategy = \"speculate\"\noutputs = 40\n\
                window = \"1us\"\ncheckpoint = \"fork\"\nmemory = \"1G\"";
    let scenario = parse(&format!("{SMALL}{}", with_process(keys))).unwrap();
    let job = &scenario.jobs[0];
    let process = job.process.unwrap();
    assert_eq!(job.name, "db");
    assert_eq!(process.strategy, ProcessStrategy::Speculate);
    assert_eq!(process.compute, ProgramWork::Instructions(10_000));
    assert_eq!(process.window, Some(ProgramWork::Time(Nanos::from_micros(1))));
    assert_eq!((process.outputs, process.depth), (40, 32));
    assert_eq!(process.checkpoint, Nanos::from_millis(1));
    // Its depth follows from its strategy, and all else is a job's.
    let pairs: Vec<_> = job.pairs.iter().map(|(key, value, _)| (&key[..], &value[..])).collect();
    assert_eq!(pairs, [("rw", "randwrite"), ("iodepth", "32")]);
    // A second one has the name of its number.
    let two = format!(
        "{}[[process]]\ncompute = \"1us\"\nstrategy = \"prefetch\"\nrw = \"read\"\n",
        with_process(keys)
    );
    let scenario = parse(&format!("{SMALL}{two}")).unwrap();
    assert_eq!(scenario.jobs[1].name, "process2");
    assert_eq!(scenario.jobs[1].process.unwrap().depth, 2);
}

#[test]
fn a_path_waits_as_its_processes_need_it() {
    let waits = |path: &str, keys: &str| {
        let scenario = parse(&format!("{SMALL}{path}{}", with_process(keys))).unwrap();
        let process = scenario.jobs[0].process.unwrap();
        (process.strategy, scenario.paths()[0].config.completion.map(|policy| policy.method))
    };
    let path = |word: &str| format!("[path]\ncompletion = \"{word}\"\n");
    let (poll, interrupt) = (Some(CompletionMethod::Poll), Some(CompletionMethod::Interrupt));
    let compute = "compute = \"1us\"";
    let with = |word: &str| format!("{compute}\nstrategy = \"{word}\"");
    assert_eq!(waits("", &with("yield")), (ProcessStrategy::Yield, interrupt));
    assert_eq!(waits("", &with("block")), (ProcessStrategy::Block, poll));
    assert_eq!(waits(&path("poll"), compute), (ProcessStrategy::Block, poll));
    assert_eq!(waits(&path("interrupt"), compute), (ProcessStrategy::Yield, interrupt));
    assert_eq!(waits(&path("speculate"), compute), (ProcessStrategy::Speculate, poll));
    assert_eq!(
        waits(&path("interrupt"), &with("speculate")),
        (ProcessStrategy::Speculate, interrupt)
    );
    let both = format!(
        "{}[[process]]\ncompute = \"1us\"\nstrategy = \"block\"\n",
        with_process(&with("yield"))
    );
    let (_, _, message) = refused(&format!("{SMALL}{both}"));
    assert!(
        message.contains("process process2: `block` on a path that waits otherwise"),
        "{message}"
    );
    let (_, _, message) =
        refused(&format!("{SMALL}{}{}", path("poll"), with_process(&with("yield"))));
    assert!(message.contains("`yield` on a path that waits otherwise"), "{message}");
    // On paths of their own they wait as they like.
    let paths =
        "[[path]]\nname = \"a\"\nover = \"drive0\"\n[[path]]\nname = \"b\"\nover = \"drive0\"\n";
    let both = both.replacen("[[process]]", "[[process]]\npath = \"a\"", 1);
    let both = both.replacen("[[process]]\ncompute", "[[process]]\npath = \"b\"\ncompute", 1);
    let scenario = parse(&format!("{SMALL}{paths}{both}")).unwrap();
    let methods = scenario.paths().into_iter().map(|path| path.config.completion.map(|p| p.method));
    assert_eq!(methods.collect::<Vec<_>>(), [interrupt, poll]);
}

/// A profile as `sluice profile --json` prints it, with two programs; `READS` and `WRITES` are the
/// calls of all of them.
const PROFILE: &str = r#"{"elapsed_ns":1,"instructions":5000000,"processes":2,"calls":9,
"io":[
{"kind":"read","calls":READS,"bytes":1,"paper":{"windows":4,"mean":60.25},"sluice":{"windows":4,"mean":70.0}},
{"kind":"write","calls":WRITES,"bytes":1,"paper":{"windows":5,"mean":115.5},"sluice":{"windows":5,"mean":26250.0}},
{"kind":"sync","calls":0,"bytes":0,"paper":{"windows":0,"mean":0.0},"sluice":{"windows":0,"mean":0.0}}],
"programs":[{"program":"ld","processes":1,"instructions":90000,"io":[
{"kind":"write","calls":30,"bytes":1,"paper":{"windows":0,"mean":0.0},"sluice":{"windows":30,"mean":1000.0}}]}]}"#;

/// Writes a profile, and returns its folder and the key that names it.
fn profile(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.json");
    std::fs::write(&file, text).unwrap();
    let key = format!("profile = {:?}", file.display().to_string());
    (dir, key)
}

// guarantee: V-15

#[test]
fn a_profile_is_the_work_of_a_process() {
    let (_dir, key) = profile(&PROFILE.replace("READS", "100").replace("WRITES", "500"));
    let process = |rw: &str, keys: &str| {
        let text = format!("{SMALL}{HOST}[[process]]\n{rw}{key}\n{keys}\n");
        let process = parse(&text).unwrap().jobs[0].process.unwrap();
        (process.compute, process.window, process.outputs)
    };
    let work = |count| ProgramWork::Instructions(count);
    let (write, speculate) = ("rw = \"randwrite\"\n", "strategy = \"speculate\"");
    // 5,000,000 instructions and 500 writes, and the mean window by each rule.
    assert_eq!(process(write, speculate), (work(10_000), Some(work(116)), 1));
    let sluice = format!("{speculate}\nrule = \"sluice\"");
    assert_eq!(process(write, &sluice), (work(10_000), Some(work(6_250)), 5));
    let paper = format!("{speculate}\nrule = \"paper\"");
    for rw in ["", "rw = \"read\"\n", "rw = \"randread\"\n"] {
        assert_eq!(process(rw, &paper), (work(50_000), Some(work(60)), 1));
    }
    let ld = format!("{sluice}\nprogram = \"ld\"");
    assert_eq!(process(write, &ld), (work(3_000), Some(work(1_000)), 1));
    // Those that wait have the work alone.
    for strategy in ["yield", "block"] {
        let keys = format!("strategy = {strategy:?}");
        assert_eq!(process(write, &keys), (work(10_000), None, 1));
    }
    assert_eq!(process("rw = \"read\"\n", "strategy = \"prefetch\"").0, work(50_000));
    // They are keys of the process, and not of its job.
    let text = format!("{SMALL}{HOST}[[process]]\n{write}{key}\n{ld}\n");
    let pairs = &parse(&text).unwrap().jobs[0].pairs;
    assert_eq!(pairs.iter().map(|pair| &pair.0[..]).collect::<Vec<_>>(), ["rw", "iodepth"]);
}

#[test]
fn a_profile_that_gives_no_work_is_refused() {
    let whole = PROFILE.replace("READS", "0").replace("WRITES", "500");
    let speculate = "strategy = \"speculate\"";
    let refused = |profile_text: &str, rw: &str, keys: &str, says: &str| {
        let (_dir, key) = profile(profile_text);
        let text = format!("{SMALL}{HOST}[[process]]\nrw = {rw:?}\n{key}\n{keys}\n");
        let (_, _, message) = refused(&text);
        assert!(message.contains(says), "{keys}: {message}");
    };
    refused(&whole, "read", speculate, "no calls of kind `read`");
    refused(&whole, "randrw", speculate, "not of both together");
    refused(&whole, "write", "strategy = \"block\"\nrule = \"paper\"", "has no `rule`");
    for key in ["compute = 1", "window = 1", "outputs = 1"] {
        refused(&whole, "write", &format!("{speculate}\n{key}"), "remove one of them");
    }
    refused(&whole, "write", &format!("{speculate}\nrule = \"paprr\""), "\"paper\"");
    refused(&whole, "write", &format!("{speculate}\nprogram = \"lr\""), "\"ld\"");
    refused(
        &whole,
        "write",
        &format!("{speculate}\nprogram = \"ld\""),
        "cannot have these windows",
    );
    let huge = whole.replace("5000000", "5000000000000");
    refused(&huge, "write", speculate, "cannot have these windows");
    refused("[1]", "write", speculate, "is no profile");
    refused(&whole[..200], "write", speculate, "is no profile");
    let text = |keys: &str| {
        format!("{SMALL}{}", with_process(&format!("strategy = \"speculate\"\n{keys}")))
    };
    let (_, caret, message) = super::refused(&text("profile = \"none.json\""));
    assert_eq!(caret, "\"none.json\"");
    assert!(message.contains("dir/none.json: No such file"), "{message}");
    for key in ["rule = \"paper\"", "program = \"ld\""] {
        let (_, _, message) = super::refused(&text(key));
        assert!(message.contains("set `profile`, or remove the key"), "{message}");
    }
}

#[test]
fn impossible_processes_are_refused_with_their_line() {
    let none = format!("{SMALL}[[process]]\ncompute = \"1us\"\nstrategy = \"block\"\n");
    assert!(refused(&none).2.contains("works on a core, and the host has none"));
    // Four lines of the drive and the host, the section and `rw` come before the keys.
    let line = 7;
    for (keys, caret, says) in [
        ("strategy = \"wait\"\ncompute = 1", "\"wait\"", "allowed: \"yield\""),
        ("strategy = \"yield\"\niodepth = 2\ncompute = 1", "", "`yield` waits for each I/O"),
        ("window = \"1us\"\nstrategy = \"block\"\ncompute = 1", "\"1us\"", "has no `window`"),
        ("outputs = 2\nstrategy = \"block\"\ncompute = 1", "2", "has no `outputs`"),
        (
            "checkpoint = \"fork\"\nstrategy = \"yield\"\ncompute = 1",
            "\"fork\"",
            "has no `checkpoint`",
        ),
        ("fsync = 1\nstrategy = \"speculate\"\ncompute = 1", "1", "issues no flushes"),
        ("outputs = 0\nstrategy = \"speculate\"\ncompute = 1", "0", "1 to 1000000"),
        ("compute = \"soon\"\nstrategy = \"block\"", "\"soon\"", "compute"),
        ("compute = -1\nstrategy = \"block\"", "-1", "a number of instructions"),
        (
            "checkpoint = \"tsx\"\nstrategy = \"speculate\"\ncompute = 1",
            "\"tsx\"",
            "\"fork\", or a time",
        ),
        (
            "memory = \"1G\"\nstrategy = \"speculate\"\ncompute = 1",
            "\"1G\"",
            "for a checkpoint by fork only",
        ),
        (
            "memory = \"2T\"\nstrategy = \"speculate\"\ncompute = 1\ncheckpoint = \"fork\"",
            "\"2T\"",
            "up to 1T",
        ),
    ] {
        let text = format!("{SMALL}{}", with_process(keys));
        let (at, under, message) = refused(&text);
        assert!(message.contains(says), "{keys}: {message}");
        if !caret.is_empty() {
            assert_eq!((at, under.as_str()), (line, caret), "{message}");
        }
    }
    assert_refused(
        &format!(
            "{SMALL}{HOST}[[process]]\nrw = \"write\"\nstrategy = \"prefetch\"\ncompute = 1\n"
        ),
        6,
        "\"write\"",
        &["only reads can begin before"],
    );
    for (keys, says) in
        [("strategy = \"block\"", "needs `compute`"), ("compute = 1", "needs `strategy`")]
    {
        let (_, _, message) = refused(&format!("{SMALL}{}", with_process(keys)));
        assert!(message.contains(says), "{message}");
    }
    let job = format!(
        "{SMALL}{HOST}[path]\ncompletion = \"speculate\"\n[[job]]\nname = \"plain\"\nrw = \"read\"\n"
    );
    assert!(refused(&job).2.contains("job plain has no program that could go on"));
}

#[test]
fn a_real_time_drive_has_real_programs() {
    let scenario =
        parse(&format!("{SMALL}{}", with_process("compute = 1\nstrategy = \"block\""))).unwrap();
    let user = "process process1".to_owned();
    assert_eq!(scenario.check_real_time(), Err(Impossible::ModeledProgram { user }));
    let path = parse(&format!("{SMALL}[path]\ncompletion = \"speculate\"\n")).unwrap();
    let user = "path drive0".to_owned();
    let error = path.check_real_time().unwrap_err();
    assert_eq!(error, Impossible::ModeledProgram { user });
    assert!(error.help().contains("`sluice sim`"));
}
