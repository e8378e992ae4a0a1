//! `sluice matrix`: which choices at the interfaces of the stack combine, and why others do not.
//! `docs/matrix.md` is its output.

use std::fmt::Write as _;

use scenario::CompletionMethod;
use scenario::choice::{
    BlockChoice, Choice, DriveChoice, FrontEnd, Impossible, SchedulerChoice, TargetChoice,
};
use serde_json::{Value, json};

use crate::args::MatrixArgs;
use crate::{CliError, print};

/// Runs `sluice matrix`.
///
/// # Errors
/// [`CliError`] if standard output cannot be written.
pub fn run(args: &MatrixArgs) -> Result<(), CliError> {
    if args.json {
        let cells: Vec<Value> = Choice::all().map(|choice| to_json(&choice)).collect();
        return print(&format!("{:#}\n", json!({ "combinations": cells })));
    }
    print(&to_text())
}

/// Returns a combination as JSON: `verdict` is `runs`, `needs hardware`, or `refused` with a `reason`.
fn to_json(choice: &Choice) -> Value {
    let mut cell = json!({
        "front_end": choice.front.word(),
        "drive": choice.drive.word(),
        "target": choice.target.word(),
        "block": choice.block.word(),
        "scheduler": choice.scheduler.word(),
        "completion": choice.completion.word(),
        "verdict": "runs",
    });
    if choice.needs_hardware() {
        cell["verdict"] = "needs hardware".into();
    }
    if let Err(reason) = choice.check() {
        cell["verdict"] = "refused".into();
        cell["reason"] = reason.to_string().into();
        cell["help"] = reason.help().into();
    }
    cell
}

/// The text before the tables.
const HEAD: &str = "\
# What combines

This page is the output of `sluice matrix`. Every combination of a front end, a drive, a target, a block layer, a scheduler and
a method of completion either runs, runs on a machine that has the hardware (as the guests of `make test-guest`), or is refused for
a reason. The numbers name the reasons below. Where only some schedulers or methods are refused, they are named. Scenarios, `sluice sim`, `sluice serve` and `sluice::open` apply the same rules
(`scenario::choice`).

`sim` is `sluice sim`, in virtual time. `serve` is `sluice serve` with NBD. `open` is `sluice::open`, the C library and `sluice
exec`; there, an open-channel drive without a target takes vector commands. Two cores submit here.
";

/// Returns a diagram of the interfaces with all choices, from the program down to the drive.
fn diagram() -> String {
    fn row<T>(page: &mut String, name: &str, all: &[T], word: impl Fn(&T) -> &'static str) {
        let words: Vec<&str> = all.iter().map(word).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(page, "  {name:<18} {}", words.join(" | "));
    }
    let mut page = "\n```text\n".to_owned();
    row(&mut page, "front end", FrontEnd::ALL, |front| front.word());
    page.push_str("      │ block requests: block::BlockDevice\n");
    row(&mut page, "block layer", BlockChoice::ALL, |block| block.word());
    row(&mut page, "  scheduler", SchedulerChoice::ALL, |scheduler| scheduler.word());
    page.push_str("      │ tags and events: driver::HardwareQueue\n");
    row(&mut page, "completion", CompletionMethod::ALL, |method| method.word());
    page.push_str("      │ hardware queues of the drive, or those that the target is\n");
    row(&mut page, "target", TargetChoice::ALL, |target| target.word());
    page.push_str("      │ commands: transport::Port\n");
    row(&mut page, "drive", DriveChoice::ALL, |drive| drive.word());
    page.push_str("```\n");
    page
}

/// Returns all combinations as a page.
fn to_text() -> String {
    let mut reasons: Vec<Impossible> = Vec::new();
    let mut page = HEAD.to_owned() + &diagram();
    for front in FrontEnd::ALL {
        let blocks: Vec<&str> = BlockChoice::ALL.iter().map(|block| block.word()).collect();
        // Writing to a string cannot fail.
        let _ = write!(
            page,
            "\n## {}\n\n| drive | target | {} |\n|---|---|{}\n",
            front.word(),
            blocks.join(" | "),
            "---|".repeat(blocks.len())
        );
        for drive in DriveChoice::ALL {
            for target in TargetChoice::ALL {
                let _ = write!(page, "| {} | {} |", drive.word(), target.word());
                for block in BlockChoice::ALL {
                    let choice = Choice {
                        front: *front,
                        drive: *drive,
                        target: *target,
                        block: *block,
                        scheduler: SchedulerChoice::None,
                        completion: CompletionMethod::Poll,
                    };
                    let _ = write!(page, " {} |", cell(choice, &mut reasons));
                }
                page.push('\n');
            }
        }
    }
    page.push_str("\n## Reasons\n\n");
    for (index, reason) in reasons.iter().enumerate() {
        let _ = writeln!(page, "{}. {reason}: {}.", index + 1, reason.help());
    }
    page
}

/// Returns the verdicts of all schedulers, and of all methods of completion, as one cell. `choice`
/// has the first of both: the rules of one do not depend on the other.
fn cell(choice: Choice, reasons: &mut Vec<Impossible>) -> String {
    let mut number = |reason: Impossible| match reasons.iter().position(|known| *known == reason) {
        Some(index) => index + 1,
        None => {
            reasons.push(reason);
            reasons.len()
        }
    };
    let schedulers = SchedulerChoice::ALL
        .iter()
        .map(|scheduler| (scheduler.word(), Choice { scheduler: *scheduler, ..choice }));
    let methods = CompletionMethod::ALL
        .iter()
        .map(|method| (method.word(), Choice { completion: *method, ..choice }));
    let verdicts: Vec<(&str, Option<usize>)> = schedulers
        .chain(methods)
        .map(|(word, choice)| (word, choice.check().err().map(&mut number)))
        .collect();
    match verdicts[0].1 {
        Some(reason) => format!("refused: {reason}"),
        None => {
            let runs = if choice.needs_hardware() { "needs hardware" } else { "runs" };
            let mut text = runs.to_owned();
            let mut refused: Vec<usize> =
                verdicts.iter().filter_map(|(_, reason)| *reason).collect();
            refused.dedup();
            for reason in refused {
                let by = verdicts.iter().filter(|(_, other)| *other == Some(reason));
                let words: Vec<&str> = by.map(|(word, _)| *word).collect();
                let _ = write!(text, "; {}: {reason}", words.join(", "));
            }
            text
        }
    }
}
