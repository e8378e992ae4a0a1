//! Counts of valgrind's callgrind: the client requests of the counted process, its run under
//! valgrind, and the profile that valgrind writes.

use std::arch::asm;
use std::collections::BTreeMap;
use std::process::Command;

use super::Failed;

/// Client requests of callgrind (`valgrind/callgrind.h`).
const START_INSTRUMENTATION: u64 = TOOL_BASE + 4;
const STOP_INSTRUMENTATION: u64 = TOOL_BASE + 5;
/// The tool base of callgrind: "CT" in the upper two bytes.
const TOOL_BASE: u64 = (b'C' as u64) << 24 | (b'T' as u64) << 16;

/// The name for instructions that belong to no crate of this workspace: the allocator, `memcpy`,
/// and functions of the standard library that were not inlined.
const LIBRARIES: &str = "libraries";

/// Starts or stops the counting. Without valgrind, nothing happens.
pub(super) fn set_instrumentation(is_on: bool) {
    let code = if is_on { START_INSTRUMENTATION } else { STOP_INSTRUMENTATION };
    let request = [code, 0, 0, 0, 0, 0];
    // SAFETY: this is the client request of `valgrind/valgrind.h` for x86-64. The rotations of `rdi`
    // by 128 bits in all and the exchange of `rbx` with itself have no effect on a processor.
    // valgrind reads the request from `rax` and writes its result to `rdx`. Nothing else can start
    // and stop the instrumentation at an instruction.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") &raw const request,
            inout("rdx") 0u64 => _,
        );
    }
}

/// Instructions of a run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Counts {
    /// All instructions between the markers.
    pub(super) total: u64,
    /// The instructions of each crate, most first.
    pub(super) by_crate: Vec<(String, u64)>,
}

/// Runs a case of this program under callgrind.
///
/// # Errors
/// If valgrind is not installed, or the case or valgrind fails.
pub(super) fn count(case: &str, batches: u64) -> Result<Counts, Failed> {
    let name = format!("callgrind-{}-{case}", std::process::id());
    let profile = std::env::temp_dir().join(name);
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--instr-atstart=no", "--compress-strings=no"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(std::env::current_exe()?)
        .args(["instrumented", case, &batches.to_string()])
        .status()
        .map_err(|e| format!("valgrind (`scripts/apt-install valgrind`): {e}"))?;
    let text = std::fs::read_to_string(&profile);
    // A profile that does not exist is reported by the read.
    let _ = std::fs::remove_file(&profile);
    match status.success() {
        true => Counts::parse(&text?),
        false => Err(format!("{case}: valgrind ends with {status}").into()),
    }
}

impl Counts {
    /// Parses a profile without compressed names.
    ///
    /// An instruction belongs to the crate of its source line. Inlined code of a library belongs to
    /// the crate of the function that has it.
    ///
    /// # Errors
    /// If the profile has no total, the total is 0, or its lines have another sum.
    fn parse(profile: &str) -> Result<Counts, Failed> {
        let (mut total, mut by_crate) = (None, BTreeMap::<&str, u64>::new());
        let (mut function, mut line_crate) = (LIBRARIES, LIBRARIES);
        let mut is_call = false;
        for line in profile.lines() {
            if let Some((key, value)) = line.split_once('=') {
                match key {
                    "fl" => {
                        function = crate_of(value).unwrap_or(LIBRARIES);
                        line_crate = function;
                    }
                    "fi" | "fe" => line_crate = crate_of(value).unwrap_or(function),
                    // The next line has the cost of the called function.
                    "calls" => is_call = true,
                    _ => {}
                }
            } else if let Some(value) = line.strip_prefix("totals:") {
                total = Some(value.trim().parse()?);
            } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c))
                && !std::mem::take(&mut is_call)
            {
                let cost = line.split_once(' ').ok_or("a cost line has no cost")?.1;
                *by_crate.entry(line_crate).or_default() += cost.trim().parse::<u64>()?;
            }
        }
        let total = total.filter(|total| *total > 0).ok_or("callgrind has counted nothing")?;
        let sum: u64 = by_crate.values().sum();
        if sum != total {
            return Err(format!("callgrind's lines have {sum} instructions of {total}").into());
        }
        let mut by_crate: Vec<_> = by_crate.into_iter().map(|(k, n)| (k.to_owned(), n)).collect();
        by_crate.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Ok(Counts { total, by_crate })
    }
}

/// Returns the folder name of the crate of this workspace that has a source file.
fn crate_of(path: &str) -> Option<&str> {
    let in_workspace = match path.strip_prefix("crates/") {
        Some(path) => path,
        None => path.split_once("/crates/")?.1,
    };
    let mut folders = in_workspace.split('/').skip(1);
    let name = folders.next()?;
    matches!(folders.next(), Some("src" | "benches")).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "\
version: 1
events: Ir

fl=/home/x/crates/device/ftl/src/ftl.rs
fn=ftl::Ftl::write
10 100
+2 20
fi=/rustc/0/library/core/src/slice.rs
7 3
cfi=/home/x/crates/device/media/src/nand.rs
cfn=media::program
calls=1 4
8 5000
fe=/home/x/crates/device/ftl/src/ftl.rs
* 1
fi=crates/base/rng/src/lib.rs
1 6

fl=/build/glibc/memcpy.S
fn=memcpy
5 40

totals: 170
";

    #[test]
    fn a_profile_is_summed_by_crate_without_the_cost_of_calls() {
        let counts = Counts::parse(PROFILE).unwrap();
        let expected = [("ftl", 124), (LIBRARIES, 40), ("rng", 6)];
        assert_eq!(counts.by_crate, expected.map(|(name, n)| (name.to_owned(), n)));
        assert_eq!(counts.total, 170);
    }

    #[test]
    fn a_profile_that_does_not_add_up_is_refused() {
        let text = PROFILE.replace("totals: 170", "totals: 171");
        assert!(Counts::parse(&text).unwrap_err().to_string().contains("170 instructions of 171"));
        for text in ["summary: 0\ntotals: 0\n", "events: Ir\n"] {
            assert!(Counts::parse(text).unwrap_err().to_string().contains("counted nothing"));
        }
    }

    #[test]
    fn without_valgrind_the_client_requests_have_no_effect() {
        set_instrumentation(true);
        set_instrumentation(false);
    }
}
