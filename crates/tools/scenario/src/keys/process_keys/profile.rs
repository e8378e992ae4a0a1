//! The key `profile` of a `[[process]]`: the work of a program as `sluice profile --json` has
//! measured it \[Spec14 §3, table 2\].

use serde::Deserialize;

use super::{OUTPUTS, ProgramWork};
use crate::section::{Keyword, Result, Section, Value};

/// Results of `sluice profile --json`, as far as they are used (`docs/profile.md`).
#[derive(Debug, Deserialize)]
struct ProfileFile {
    #[serde(flatten)]
    all: ProfiledProgram,
    programs: Vec<NamedProgram>,
}

#[derive(Debug, Deserialize)]
struct NamedProgram {
    program: String,
    #[serde(flatten)]
    profile: ProfiledProgram,
}

#[derive(Debug, Deserialize)]
struct ProfiledProgram {
    instructions: u64,
    io: Vec<ProfiledIo>,
}

/// One kind of I/O, with its windows by both rules.
#[derive(Debug, Deserialize)]
struct ProfiledIo {
    kind: String,
    calls: u64,
    paper: ProfiledWindows,
    sluice: ProfiledWindows,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct ProfiledWindows {
    windows: u64,
    /// Instructions.
    mean: f64,
}

/// The rule by which a window ends.
#[derive(Clone, Copy, Debug)]
enum WindowRule {
    Paper,
    Sluice,
}

/// Work of a process, in instructions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProfiledWork {
    pub(super) compute: ProgramWork,
    pub(super) window: ProgramWork,
    pub(super) outputs: u32,
}

impl ProfiledWork {
    /// Keys that belong to a profile.
    pub(super) const KEYS: [&'static str; 3] = ["profile", "program", "rule"];

    /// Reads the keys; `None` without `profile`.
    pub(super) fn read(s: &mut Section<'_>) -> Result<Option<ProfiledWork>> {
        let (program, rule) = (s.get("program"), s.get("rule"));
        let Some(file) = s.get("profile") else {
            return match program.or(rule) {
                Some(value) => {
                    let message = "it says what is taken from a profile, and there is none";
                    Err(value.conflict(message, "set `profile`, or remove the key"))
                }
                None => Ok(None),
            };
        };
        for key in ["compute", "window", "outputs"] {
            if let Some(value) = s.get(key) {
                let message = format!("`profile` has the program's work, and so has `{key}`");
                return Err(value.conflict(message, "remove one of them"));
            }
        }
        let rule = match rule {
            Some(value) => value.choice(&[
                Keyword("paper", WindowRule::Paper),
                Keyword("sluice", WindowRule::Sluice),
            ])?,
            None => WindowRule::Paper,
        };
        let kind = kind_of_io(s)?;
        let profile = read_file(&file, program.as_ref())?;
        let io = profile.io.iter().find(|io| io.kind == kind);
        let Some(io) = io.filter(|io| io.calls > 0) else {
            let message = format!("the program made no calls of kind `{kind}`");
            return Err(file.conflict(message, "set another `rw`, `program` or file"));
        };
        let windows = match rule {
            WindowRule::Paper => io.paper,
            WindowRule::Sluice => io.sluice,
        };
        let work = (windows.windows > 0)
            .then(|| ProfiledWork::new(profile.instructions / io.calls, windows.mean))
            .flatten();
        work.map(Some).ok_or_else(|| {
            let help = "take another program, or set `compute`, `window` and `outputs`";
            file.conflict("a program in virtual time cannot have these windows", help)
        })
    }

    /// Returns work with `compute` instructions from one I/O to the next, and windows with this mean
    /// over all I/Os of an output: the I/O before the output has `window`, each one before it `compute`
    /// more. `None` if numbers are out of range.
    fn new(compute: u64, mean: f64) -> Option<ProfiledWork> {
        let compute = u32::try_from(compute).ok()?;
        if !(mean.is_finite() && mean >= 0.0) {
            return None;
        }
        let half = f64::from(compute) / 2.0;
        let outputs = if compute == 0 { 1.0 } else { (mean / half).floor().max(1.0) };
        if outputs > f64::from(*OUTPUTS.end()) {
            return None;
        }
        let window = (mean - (outputs - 1.0) * half).clamp(0.0, f64::from(compute));
        Some(ProfiledWork {
            compute: ProgramWork::Instructions(compute),
            window: ProgramWork::Instructions(window.round() as u32),
            outputs: outputs as u32,
        })
    }
}

/// Returns the kind of I/O of a process.
fn kind_of_io(s: &mut Section<'_>) -> Result<&'static str> {
    let Some(value) = s.get("rw") else { return Ok("read") };
    match value.string()? {
        "read" | "randread" => Ok("read"),
        "write" | "randwrite" => Ok("write"),
        _ => {
            let message = "a profile has windows of reads and of writes, and not of both together";
            let help = "set rw = \"read\", \"randread\", \"write\" or \"randwrite\"";
            Err(value.conflict(message, help))
        }
    }
}

/// Reads a profile: of one program by its name, or of all together.
fn read_file(file: &Value<'_>, program: Option<&Value<'_>>) -> Result<ProfiledProgram> {
    let path = file.resolve(file.string()?);
    let shown = path.display().to_string();
    let help = "`sluice profile --json --output FILE -- PROGRAM` makes one";
    let text = std::fs::read_to_string(&path)
        .map_err(|error| file.conflict(format!("{shown}: {error}"), help))?;
    let profile: ProfileFile = serde_json::from_str(&text)
        .map_err(|error| file.conflict(format!("{shown} is no profile: {error}"), help))?;
    let Some(program) = program else { return Ok(profile.all) };
    let name = program.string()?;
    let names: Vec<String> = profile.programs.iter().map(|p| p.program.clone()).collect();
    let found = profile.programs.into_iter().find(|p| p.program == name);
    found
        .map(|p| p.profile)
        .ok_or_else(|| program.refuse_name(&names.iter().map(String::as_str).collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the mean of the windows of all I/Os of an output, and its numbers.
    fn mean(compute: u64, mean: f64) -> (f64, u32, u32) {
        let work = ProfiledWork::new(compute, mean).unwrap();
        let ProgramWork::Instructions(window) = work.window else { panic!("{work:?}") };
        let before = f64::from(work.outputs - 1) * compute as f64 / 2.0;
        (before + f64::from(window), work.outputs, window)
    }

    #[test]
    fn windows_have_the_mean_of_the_profile() {
        assert_eq!(mean(1000, 115.0), (115.0, 1, 115));
        assert_eq!(mean(1000, 900.0), (900.0, 1, 900));
        assert_eq!(mean(1000, 1000.0), (1000.0, 2, 500));
        assert_eq!(mean(1000, 1_234.0), (1_234.0, 2, 734));
        assert_eq!(mean(300, 6_727_440.0), (6_727_440.0, 44_849, 240));
        assert_eq!(mean(0, 0.0), (0.0, 1, 0));
        for compute in [1, 7, 1000, 1 << 31] {
            for percent in [1, 49, 50, 51, 99, 100, 101, 12_345] {
                let wanted = compute as f64 * f64::from(percent) / 100.0;
                let (found, _, window) = mean(compute, wanted);
                assert!((found - wanted).abs() <= 0.5, "{compute} {percent}: {found}");
                assert!(u64::from(window) <= compute);
            }
        }
    }

    #[test]
    fn numbers_out_of_range_give_no_work() {
        for (compute, mean) in
            [(1 << 32, 1.0), (1, 1e9), (1000, f64::NAN), (1000, f64::INFINITY), (1000, -1.0)]
        {
            assert_eq!(ProfiledWork::new(compute, mean), None, "{compute} {mean}");
        }
    }
}
