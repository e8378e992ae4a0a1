//! `[path]`, `[host]` and `[precondition]`: how I/O reaches the drive, what the host's side of it
//! costs, and what the drive holds when the jobs begin.

use clock::Nanos;

use super::layer_keys::LayerPlan;
use super::section::{Result, Section, Value};

/// How submitters reach hardware queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockLayer {
    /// Each submitter has its own queue pair, with nothing between (SYSTOR'13 section 4).
    #[default]
    Raw,
    /// One staging queue and one hardware queue for all, under one lock (section 2).
    Sq,
    /// Staging queues and hardware queues for many cores (section 3).
    Mq,
}

/// How a completion arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompletionMethod {
    /// The submitter polls.
    #[default]
    Poll,
}

/// `[path]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathConfig {
    /// The block layer.
    pub block: BlockLayer,
    /// How a completion arrives.
    pub completion: CompletionMethod,
    /// What the block layer is like; `None` for [`BlockLayer::Raw`], which has none.
    pub layer: Option<LayerPlan>,
}

impl PathConfig {
    pub(super) fn read(mut s: Section<'_>) -> Result<PathConfig> {
        let mut path = PathConfig::default();
        s.set("block", &mut path.block, |v| {
            v.choice(&[("raw", BlockLayer::Raw), ("sq", BlockLayer::Sq), ("mq", BlockLayer::Mq)])
        })?;
        s.set("completion", &mut path.completion, |v| {
            v.choice_or_later(
                &[("poll", CompletionMethod::Poll)],
                &["interrupt", "lazy", "coop", "hybrid", "speculate"],
            )
        })?;
        path.layer = LayerPlan::read(&mut s, path.block)?;
        s.finish()?;
        Ok(path)
    }
}

/// `[host]`: what the host spends per I/O in virtual time; `None` where the scenario leaves it to
/// the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostConfig {
    /// From the job's decision to the doorbell.
    pub submit: Option<Nanos>,
    /// From the completion entry to the job.
    pub complete: Option<Nanos>,
}

impl HostConfig {
    pub(super) fn read(mut s: Section<'_>) -> Result<HostConfig> {
        let mut host = HostConfig::default();
        s.set("submit", &mut host.submit, |v| v.duration().map(Some))?;
        s.set("complete", &mut host.complete, |v| v.duration().map(Some))?;
        s.finish()?;
        Ok(host)
    }
}

/// How the drive is filled first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// Not at all.
    #[default]
    None,
    /// Every logical sector once, in order.
    Sequential,
}

/// `[precondition]`: brings the drive to a state without simulating the time it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Precondition {
    /// The first pass.
    pub fill: Fill,
    /// Then, this many times the drive's logical capacity is overwritten, uniformly at random.
    pub overwrite_random: f64,
}

impl Precondition {
    pub(super) fn read(mut s: Section<'_>) -> Result<Precondition> {
        let mut precondition = Precondition::default();
        s.set("fill", &mut precondition.fill, |v| {
            v.choice(&[("none", Fill::None), ("sequential", Fill::Sequential)])
        })?;
        s.set("overwrite", &mut precondition.overwrite_random, read_overwrite)?;
        s.finish()?;
        Ok(precondition)
    }
}

/// `"random 2x"` or `"none"`.
fn read_overwrite(value: &Value<'_>) -> Result<f64> {
    let word = value.string()?;
    if word == "none" {
        return Ok(0.0);
    }
    word.strip_prefix("random")
        .and_then(|rest| rest.trim().strip_suffix('x'))
        .and_then(|times| times.trim().parse::<f64>().ok())
        .filter(|times| (0.0..=1000.0).contains(times))
        .ok_or_else(|| value.refuse("\"none\", or \"random 2x\" with up to 1000 times"))
}
