//! `[path]` and `[host]`: how I/O reaches the drive, and what the host's side of it costs.

use clock::Nanos;

use super::layer_keys::LayerPlan;
use super::ranges::STEP_TIME;
use super::section::{Result, Section};

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
        s.set("submit", &mut host.submit, |v| v.duration_in(&STEP_TIME).map(Some))?;
        s.set("complete", &mut host.complete, |v| v.duration_in(&STEP_TIME).map(Some))?;
        s.finish()?;
        Ok(host)
    }
}
