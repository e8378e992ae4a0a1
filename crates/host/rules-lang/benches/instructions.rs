//! Counts instructions: of a command that the engine matches and decides, and of the installation of
//! 256 rules (compile, encode, decode, verify, allocate).
//!
//! | command | effect |
//! |---|---|
//! | `cargo bench --package sluice-rules-lang --bench instructions` | counts, and fails if a bound is exceeded |
//! | the command above with `-- run install-256 100` | runs as many batches without a counter, for timing |

use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;

use rules::{
    AppId, DriveFacts, EngineOptions, InputOp, LineFacts, RuleEngine, RuleInput, RuleLine,
    RuleProgram, RuleStep, RuleVerdict, verify,
};
use rules_lang::{CompileOptions, check, compile};
use testkit::instructions::{CountedCase, CountingMethod, Failed, InstructionBench, Marker};

/// Commands of a batch.
const BATCH: u64 = 32;
const BATCHES: u64 = 5;
/// Rules that are installed.
const RULES: usize = 256;

const fn case(name: &'static str, bound: f64, batch: u64) -> CountedCase {
    CountedCase { name, base: "", bound, batch }
}

/// Upper bounds of instructions per command, and per installation: 5 to 9 % more than counted. Half of
/// those of a page-mapped command are the benchmark's: the input and the step go through memory. The
/// drive's are counted by the benchmark of the controller. An installation of 37 million instructions
/// takes 3 ms.
const CASES: [CountedCase; 4] = [
    case("page-write", 137.0, BATCH),
    case("page-read", 139.0, BATCH),
    case("temperature-write", 1222.0, BATCH),
    case("install-256", 40_000_000.0, 1),
];

/// A drive whose background rules are never polled.
struct NoLines;

impl DriveFacts for NoLines {
    fn is_idle(&self, _: AppId) -> bool {
        false
    }

    fn free_lines(&self, _: AppId) -> u64 {
        0
    }

    fn wear_min(&self, _: AppId) -> u64 {
        0
    }

    fn wear_max(&self, _: AppId) -> u64 {
        0
    }

    fn lines(&self, _: AppId) -> u64 {
        0
    }

    fn line_at(&self, _: AppId, index: u64) -> RuleLine {
        RuleLine::new(index as u32)
    }

    fn line_facts(&self, _: AppId, _: RuleLine) -> LineFacts {
        LineFacts::default()
    }
}

/// Decides commands of a program.
fn commands(source: &str, op: InputOp, batches: u64, marker: &mut Marker) -> Result<(), Failed> {
    let verified = check(Path::new("bench.rules"), source.as_bytes(), &CompileOptions::default())?;
    let mut engine = RuleEngine::install(verified, EngineOptions::default());
    for batch in 0..batches + 3 {
        let is_counted = batch >= 3;
        let inputs: Vec<_> =
            (0..BATCH).map(|at| RuleInput::new(op, (batch * 977 + at * 131) % 50_000, 1)).collect();
        if is_counted {
            marker.mark()?;
        }
        for input in &inputs {
            let step = engine.begin_command(AppId::new(0), black_box(input), &NoLines);
            match black_box(step) {
                Some(RuleStep::Done(RuleVerdict::Place { .. } | RuleVerdict::Read { .. })) => {}
                step => return Err(format!("{step:?}").into()),
            }
        }
        if is_counted {
            marker.mark()?;
        }
    }
    Ok(())
}

/// Returns a source with 256 rules, of different applications.
fn many_rules() -> String {
    let mut source = String::new();
    for app in 0..16 {
        source += &format!("app a{app} {{ units = {app}, spare = 0.11 }}\n");
        source += &format!("table a{app}.heat{app}: u8[1024] volatile\n");
    }
    for rule in 0..RULES {
        let (app, priority) = (rule % 16, rule / 16);
        source += &format!(
            "rule r{rule} priority {priority} when channel.app == a{app} and header.write \
             and heat{app}[header.lba % 1024] == {priority}\n\
             set heat{app}[header.lba % 1024] = sat(heat{app}[header.lba % 1024] + 1)\n\
             do header.addr = next_addr(a{app}.host); insert lun\n"
        );
    }
    source
}

/// Compiles and installs the rules, as a host and a drive do.
fn install(source: &str) -> Result<RuleEngine, Failed> {
    let options = CompileOptions::default();
    let compiled = compile(Path::new("bench.rules"), source.as_bytes(), &options)?;
    let bytes = compiled.verify(&options.grant)?.program().encode();
    let verified = verify(RuleProgram::decode(&bytes)?, &options.grant)?;
    Ok(RuleEngine::install(verified, EngineOptions::default()))
}

/// Runs a case in this process.
fn run(case: &str, batches: u64, marker: &mut Marker) -> Result<(), Failed> {
    let page = include_str!("../../../../demo/rules/page.rules");
    let temperature = include_str!("../../../../demo/rules/temperature.rules");
    match case {
        "page-write" => commands(page, InputOp::Write, batches, marker),
        "page-read" => commands(page, InputOp::Read, batches, marker),
        "temperature-write" => commands(temperature, InputOp::Write, batches, marker),
        "install-256" => {
            let source = many_rules();
            let engine = install(&source)?;
            if engine.program().program().rules.len() != RULES {
                return Err("not all rules are installed".into());
            }
            for _ in 0..batches {
                marker.mark()?;
                black_box(install(black_box(&source))?);
                marker.mark()?;
            }
            Ok(())
        }
        _ => Err(format!("no such case: {case}").into()),
    }
}

fn main() -> ExitCode {
    InstructionBench {
        cases: &CASES,
        ratios: &[],
        differences: &[],
        batches: BATCHES,
        method: CountingMethod::Callgrind,
        run,
    }
    .main()
}
