//! `[precondition]`: the state of the drives when the jobs begin.

use std::path::{Path, PathBuf};
use std::time::Duration;

use workload::{Distribution, JobError, JobProblem, JobSpec};

use crate::section::{Keyword, Result, Section, Value};
use crate::units;

/// Initial fill of the drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// No fill.
    #[default]
    None,
    /// Every logical sector once, in order.
    Sequential,
}

/// Amount of data of a preconditioning job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Multiple of the drive's logical capacity.
    Times(f64),
    /// Bytes.
    Bytes(u64),
}

/// A job that overwrites the drive.
#[derive(Clone, Debug, PartialEq)]
pub struct Overwrite {
    /// Amount of data.
    pub amount: Amount,
    /// fio's options and their values. The defaults are random writes of a sector, 64 at a time.
    pub words: Vec<(String, String)>,
}

/// Continuation of the last job until steady state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Until {
    /// Amount of data of a round, as a multiple of the logical capacity.
    pub round: f64,
    /// Maximum number of rounds.
    pub rounds_max: u32,
}

impl Until {
    /// Half of the capacity per round, and the maximum number of rounds of \[SNIAPTS\].
    pub const STEADY: Until = Until { round: 0.5, rounds_max: 25 };
}

/// A folder in which the states of preconditioned drives are kept, one file per state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFolder {
    /// The folder.
    pub path: PathBuf,
    /// Maximum size of all states together, in bytes.
    pub bytes_max: u64,
    /// Least time that preconditioning must have taken for its state to be kept.
    pub worth: Duration,
}

impl StateFolder {
    /// Maximum size of all states if none is given.
    pub const BYTES_MAX: u64 = 16 << 30;
}

/// `[precondition]`: brings the drive to a state with zero-latency media.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Precondition {
    /// Initial fill.
    pub fill: Fill,
    /// Jobs that overwrite the drive afterwards, one after the other.
    pub overwrite: Vec<Overwrite>,
    /// Whether the last job continues until the drive is in steady state.
    pub until: Option<Until>,
    /// Whether the drive is filled and left in the steady state of the overwrites, drawn from its
    /// distribution.
    pub sampled: bool,
    /// Where states are kept, to start from them the next time. It has no effect on the state.
    pub states: Option<StateFolder>,
}

/// fio's options for preconditioning jobs, which select sectors and block sizes. Options for length
/// and rate are excluded: they are for jobs that take time.
const WORDS: [&str; 13] = [
    "rw",
    "readwrite",
    "bs",
    "blocksize",
    "bssplit",
    "rwmixread",
    "rwmixwrite",
    "size",
    "offset",
    "random_distribution",
    "norandommap",
    "randseed",
    "iodepth",
];

/// Maximum multiple of the capacity.
const TIMES_MAX: f64 = 1000.0;
/// Allowed values of `amount`, for messages.
const AMOUNT: &str =
    "times the logical capacity such as \"2x\", up to \"1000x\", or a size such as \"10G\"";
/// Allowed amounts of a round.
const ROUND: &str = "\"0.01x\" to \"10x\" of the logical capacity";
const OVERWRITE: &str = "\"none\", \"random 2x\" with up to 1000 times, a table such as { rw = \"randwrite\", \
     random_distribution = \"zipf:1.1\", amount = \"3x\" }, or a list of these";

/// Why a job has no amount.
const DRAWN: &str = "`steady = \"sampled\"` draws the state that any amount leads to";

impl Precondition {
    /// Returns whether the drives are left as they are.
    pub fn is_none(&self) -> bool {
        self.fill == Fill::None
            && self.overwrite.is_empty()
            && self.until.is_none()
            && !self.sampled
    }

    pub(crate) fn read(mut s: Section<'_>) -> Result<Precondition> {
        let mut precondition = Precondition::default();
        s.set("fill", &mut precondition.fill, |v| {
            v.choice(&[Keyword("none", Fill::None), Keyword("sequential", Fill::Sequential)])
        })?;
        // Read before the jobs: with one of them, the last job needs no amount.
        s.set("until", &mut precondition.until, read_until)?;
        let until = precondition.until;
        s.set("steady", &mut precondition.sampled, |v| {
            let sampled = v.choice(&[Keyword("none", false), Keyword("sampled", true)])?;
            if sampled && until.is_some() {
                let why = "`until` writes until the drive is steady";
                return Err(v.conflict(why, "remove one of the two"));
            }
            Ok(sampled)
        })?;
        let length = match (until.is_some(), precondition.sampled) {
            (true, _) => Length::Continued,
            (_, true) => Length::Drawn,
            _ => Length::Given,
        };
        s.set("overwrite", &mut precondition.overwrite, |v| match v.items() {
            Some(items) if length == Length::Drawn && items.len() > 1 => {
                let why = "`steady = \"sampled\"` draws the steady state of one job";
                Err(v.conflict(why, "leave one job"))
            }
            Some(items) => {
                let last = items.len().saturating_sub(1);
                let jobs = items.iter().enumerate();
                let read = |(i, item)| {
                    read_overwrite(item, if i == last { length } else { Length::Given })
                };
                jobs.filter_map(|job| read(job).transpose()).collect()
            }
            None => Ok(read_overwrite(v, length)?.into_iter().collect()),
        })?;
        let source = s.source;
        s.set("states", &mut precondition.states, |v| {
            let path = source.resolve(v.string()?);
            let (bytes_max, worth) = (StateFolder::BYTES_MAX, Duration::ZERO);
            Ok(Some(StateFolder { path, bytes_max, worth }))
        })?;
        if let Some(folder) = &mut precondition.states {
            s.set("states_max", &mut folder.bytes_max, |v| v.size())?;
        }
        s.finish()?;
        Ok(precondition)
    }
}

/// Parses a multiple such as `2x`.
fn times(word: &str) -> Option<f64> {
    word.trim().strip_suffix('x')?.trim().parse().ok().filter(|times: &f64| times.is_finite())
}

/// The end of an overwriting job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Length {
    /// Its amount.
    Given,
    /// Steady state, after its amount, which may be left out.
    Continued,
    /// Nothing: its steady state is drawn. It has no amount.
    Drawn,
}

/// Reads `"random 2x"`, `"none"`, or a table of fio's options.
fn read_overwrite(value: &Value<'_>, length: Length) -> Result<Option<Overwrite>> {
    let goes_on = length != Length::Given;
    if let Ok(word) = value.string() {
        if word == "none" {
            return Ok(None);
        }
        let amount = match word.strip_prefix("random") {
            Some(rest) if goes_on && rest.trim().is_empty() => Some(0.0),
            Some(rest) => times(rest).filter(|times| (0.0..=TIMES_MAX).contains(times)),
            None => None,
        };
        let amount = amount.ok_or_else(|| value.refuse(OVERWRITE))?;
        if length == Length::Drawn && amount != 0.0 {
            return Err(value.conflict(DRAWN, "write \"random\" alone"));
        }
        return Ok(Some(Overwrite { amount: Amount::Times(amount), words: Vec::new() }));
    }
    let mut s = value.section().map_err(|_| value.wrong_type(OVERWRITE))?;
    let mut amount = None;
    s.set("amount", &mut amount, |v| match length {
        Length::Drawn => Err(v.conflict(DRAWN, "remove it")),
        _ => read_amount(v).map(Some),
    })?;
    let amount = match (amount, goes_on) {
        (Some(amount), _) => amount,
        (None, true) => Amount::Times(0.0),
        (None, false) => return Err(s.missing("amount", AMOUNT)),
    };
    let mut words = Vec::new();
    let mut access = None;
    for word in WORDS {
        let Some(v) = s.get(word) else { continue };
        words.push((word.to_owned(), fio_value(&v, word)?));
        if matches!(word, "rw" | "readwrite") {
            access = Some(v);
        }
    }
    s.finish()?;
    match spec(words.iter().map(|(key, value)| (key.as_str(), value.as_str()))) {
        Ok(spec) => match access {
            Some(rw) if !spec.pattern.access.uses[1] && !spec.pattern.access.uses[2] => {
                Err(rw.refuse("what writes or trims, such as \"randwrite\" or \"write\""))
            }
            _ => match undrawable(&spec, &words).filter(|_| length == Length::Drawn) {
                Some(why) => Err(value.conflict(why, "write it by `amount` or `until` instead")),
                None => Ok(Some(Overwrite { amount, words })),
            },
        },
        Err(e) => match e {
            JobError::Invalid(invalid)
                if matches!(invalid.problem, JobProblem::Conflict { .. }) =>
            {
                Err(value.conflict(invalid.problem.title(), "change or remove one of the two"))
            }
            e => Err(value.conflict(e.to_string(), "see docs/scenario.md, `[precondition]`")),
        },
    }
}

/// Returns why the steady state of a job cannot be drawn from its distribution. That takes writes of
/// blocks that are independent of each other, each with a fixed probability.
fn undrawable(spec: &JobSpec, words: &[(String, String)]) -> Option<&'static str> {
    let pattern = &spec.pattern;
    let sizes = &pattern.block_sizes[1];
    let has = |word: &str| words.iter().any(|(key, _)| key == word);
    Some(if pattern.access.uses != [false, true, false] || !pattern.access.random {
        "`steady = \"sampled\"` needs random writes alone: `rw = \"randwrite\"`"
    } else if sizes.len() != 1 {
        "`steady = \"sampled\"` needs blocks of one size"
    } else if has("size") || has("offset") {
        "`steady = \"sampled\"` needs a job on the whole drive"
    } else if !matches!(pattern.distribution, Distribution::Uniform | Distribution::Zipf(_)) {
        "`steady = \"sampled\"` knows the distributions `random` and `zipf`"
    } else if has("norandommap") && !pattern.norandommap {
        "`steady = \"sampled\"` needs writes that are independent of earlier ones: \
         `norandommap = true`"
    } else {
        return None;
    })
}

/// Returns a job with these options, in addition to its defaults.
fn spec<'a>(
    words: impl Iterator<Item = (&'a str, &'a str)>,
) -> std::result::Result<JobSpec, JobError> {
    let pairs = std::iter::once(("rw", "randwrite")).chain(words);
    let pairs = pairs.map(|(key, value)| (key, value, 0));
    JobSpec::from_pairs("overwrite", Path::new("[precondition]"), pairs).map(|(spec, _)| spec)
}

/// Returns the value of one of fio's options, in the form of fio's parser.
fn fio_value(value: &Value<'_>, word: &str) -> Result<String> {
    let text = value.raw()?;
    match JobSpec::from_pairs("overwrite", Path::new("[precondition]"), [(word, text.as_str(), 0)])
    {
        Err(JobError::Invalid(invalid)) => match invalid.problem {
            JobProblem::BadValue { allowed, .. } => Err(value.refuse(allowed)),
            // Conflicts are detected when all options are set.
            _ => Ok(text),
        },
        _ => Ok(text),
    }
}

fn read_amount(value: &Value<'_>) -> Result<Amount> {
    let word = value.raw().map_err(|_| value.wrong_type(AMOUNT))?;
    let amount = match times(&word) {
        Some(times) => (times > 0.0 && times <= TIMES_MAX).then_some(Amount::Times(times)),
        None => match units::size(&word) {
            Some(0) => None,
            Some(bytes) => Some(Amount::Bytes(bytes)),
            None => return Err(value.wrong_type(AMOUNT)),
        },
    };
    amount.ok_or_else(|| value.refuse(AMOUNT))
}

/// Reads `"steady"`, or a table with the parameters of its rounds.
fn read_until(value: &Value<'_>) -> Result<Option<Until>> {
    let kinds = [Keyword("none", None), Keyword("steady", Some(Until::STEADY))];
    if value.string().is_ok() {
        return value.choice(&kinds);
    }
    let form =
        "\"steady\", or a table such as { kind = \"steady\", round = \"0.5x\", rounds = 25 }";
    let mut s = value.section().map_err(|_| value.wrong_type(form))?;
    let mut until = Some(Until::STEADY);
    s.set("kind", &mut until, |v| v.choice(&kinds))?;
    let mut rule = until.unwrap_or(Until::STEADY);
    s.set("round", &mut rule.round, |v| {
        let share = times(v.string()?).ok_or_else(|| v.wrong_type(ROUND))?;
        if (0.01..=10.0).contains(&share) { Ok(share) } else { Err(v.refuse(ROUND)) }
    })?;
    // With fewer rounds than the window, steady state cannot be detected.
    s.set("rounds", &mut rule.rounds_max, |v| v.u32_in(&(5..=1000)))?;
    s.finish()?;
    Ok(until.map(|_| rule))
}
