//! `[path]` and `[host]`: the path of I/O to the drive, and the host's cost of it.

use time::Nanos;

use super::keys::layer_keys::BlockLayerSpec;
use super::ranges::STEP_TIME;
use super::section::{Keyword, Result, Section};

/// Queues between submitters and hardware queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueModelKind {
    /// Each submitter has its own queue pair, without a block layer ([SYSTOR13 §4]).
    #[default]
    Raw,
    /// One staging queue and one hardware queue for all submitters, under one lock ([SYSTOR13 §2]).
    Sq,
    /// Staging queues and hardware queues for many cores ([SYSTOR13 §3]).
    Mq,
}

/// Method of completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompletionMethod {
    /// The submitter polls.
    #[default]
    Poll,
}

/// `[path]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathConfig {
    /// Queue model of the block layer.
    pub queue_model: QueueModelKind,
    /// Method of completion.
    pub completion: CompletionMethod,
    /// Configuration of the block layer; `None` for [`QueueModelKind::Raw`], which has none.
    pub block_layer: Option<BlockLayerSpec>,
}

impl PathConfig {
    pub(super) fn read(mut s: Section<'_>) -> Result<PathConfig> {
        let path = PathConfig::read_keys(&mut s)?;
        s.finish()?;
        Ok(path)
    }

    /// Reads the settings of a section that has other keys as well.
    pub(super) fn read_keys(s: &mut Section<'_>) -> Result<PathConfig> {
        let mut path = PathConfig::default();
        s.set("queue_model", &mut path.queue_model, |v| {
            v.choice(&[
                Keyword("raw", QueueModelKind::Raw),
                Keyword("sq", QueueModelKind::Sq),
                Keyword("mq", QueueModelKind::Mq),
            ])
        })?;
        s.set("completion", &mut path.completion, |v| {
            v.choice_or_later(
                &[Keyword("poll", CompletionMethod::Poll)],
                &["interrupt", "lazy", "coop", "hybrid", "speculate"],
            )
        })?;
        path.block_layer = BlockLayerSpec::read(s, path.queue_model)?;
        Ok(path)
    }
}

/// `[host]`: CPU time of the host per I/O in virtual time; `None` selects the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostConfig {
    /// From the job's decision to the doorbell.
    pub submit_cost: Option<Nanos>,
    /// From the completion entry to the job.
    pub complete_cost: Option<Nanos>,
}

impl HostConfig {
    pub(super) fn read(mut s: Section<'_>) -> Result<HostConfig> {
        let mut host = HostConfig::default();
        s.set("submit_cost", &mut host.submit_cost, |v| v.duration_in(&STEP_TIME).map(Some))?;
        s.set("complete_cost", &mut host.complete_cost, |v| v.duration_in(&STEP_TIME).map(Some))?;
        s.finish()?;
        Ok(host)
    }
}
