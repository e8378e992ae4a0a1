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
