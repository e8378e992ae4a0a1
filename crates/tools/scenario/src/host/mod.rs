//! `[path]` and `[host]`: the path of I/O to the drive, and the host's cost of it.

pub(crate) mod machine;

use block::notify::{CompletionMethod, CompletionPolicy, NotifyConfig};
use machine::{HostMachine, MachineChoice, ThisMachine};
use time::Nanos;

use super::choice::Impossible;
use super::keys::ahci_keys::AhciUplink;
use super::keys::layer_keys::BlockLayerSpec;
use super::ranges::{POLL_INTERVAL, STEP_TIME};
use super::section::{Keyword, Result, Section};

/// Sizes of a log in persistent memory, in bytes.
const LOG_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=64 << 30;
/// Bytes of a line of a log.
const LOG_LINE_BYTES: u64 = 64;
/// The allowed sizes of a log in persistent memory.
pub(crate) const LOG_SIZES: &str = "multiples of 64 bytes from 64k to 64G";

/// Returns whether a log in persistent memory can have this size.
pub(crate) fn is_log_size(bytes: u64) -> bool {
    LOG_BYTES.contains(&bytes) && bytes.is_multiple_of(LOG_LINE_BYTES)
}

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

impl QueueModelKind {
    /// Returns the word of a scenario for the model.
    pub const fn word(self) -> &'static str {
        match self {
            QueueModelKind::Raw => "raw",
            QueueModelKind::Sq => "sq",
            QueueModelKind::Mq => "mq",
        }
    }
}

/// `[path]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathConfig {
    /// Queue model of the block layer.
    pub queue_model: QueueModelKind,
    /// The contexts that notice completions and finish requests; `None` for the default of the
    /// program that submits.
    pub completion: Option<CompletionPolicy>,
    /// Whether the programs of the path go on while their I/Os are in flight, unless they name
    /// another strategy (`completion = "speculate"`).
    pub speculate: bool,
    /// Configuration of the block layer; `None` for [`QueueModelKind::Raw`], which has none.
    pub block_layer: Option<BlockLayerSpec>,
    /// Namespace of the drive; `None` for the first one.
    pub namespace: Option<u32>,
    /// Application of the rules of the drive, whose blocks the path leads to; `None` for the whole drive.
    pub app: Option<String>,
    /// Size of the log in the drive's persistent memory region, in bytes; `None` without one.
    pub log: Option<u64>,
}

impl PathConfig {
    pub(super) fn read(mut s: Section<'_>) -> Result<PathConfig> {
        let path = PathConfig::read_keys(&mut s)?;
        s.finish()?;
        Ok(path)
    }

    /// Returns the notification of the path's hardware queues in virtual time.
    pub fn notification(&self, host: &HostConfig) -> NotifyConfig {
        NotifyConfig {
            policy: self.completion.unwrap_or_default(),
            interrupt_cost: host.interrupt_cost.unwrap_or_default(),
            finish_cost: host.complete_cost.unwrap_or_default(),
        }
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
        (path.completion, path.speculate) = path.read_completion(s)?;
        path.block_layer = BlockLayerSpec::read(s, path.queue_model)?;
        s.set("namespace", &mut path.namespace, |v| v.u32().map(Some))?;
        s.set("app", &mut path.app, |v| Ok(Some(v.string()?.to_owned())))?;
        s.set("log", &mut path.log, |v| match v.size()? {
            bytes if is_log_size(bytes) => Ok(Some(bytes)),
            _ => Err(v.refuse(LOG_SIZES)),
        })?;
        Ok(path)
    }

    /// Reads how completions are noticed, and whether programs go on until then.
    fn read_completion(&self, s: &mut Section<'_>) -> Result<(Option<CompletionPolicy>, bool)> {
        let methods = CompletionMethod::ALL.iter();
        let words = methods.map(|method| Keyword(method.word(), Some(*method)));
        let words: Vec<_> = words.chain([Keyword("speculate", None)]).collect();
        let (mut policy, mut speculate) = (None, false);
        if let Some(value) = &s.get("completion") {
            let method = value.choice(&words)?;
            speculate = method.is_none();
            let method = method.unwrap_or_default();
            Impossible::check_completion(method, self.queue_model)
                .map_err(|why| value.source_span().error(why.into()))?;
            policy = Some(CompletionPolicy { method, poll_interval: None });
        }
        let Some(value) = s.get("poll_interval") else { return Ok((policy, speculate)) };
        let poll_interval = Some(value.duration_in(&POLL_INTERVAL)?);
        let method = policy.unwrap_or_default().method;
        if method != CompletionMethod::Poll {
            let message = format!("`{}` has no interval between polls", method.word());
            return Err(value.conflict(message, "set completion = \"poll\", or remove the key"));
        }
        Ok((Some(CompletionPolicy { method, poll_interval }), speculate))
    }
}

/// `[host]`: CPU time of the host per I/O in virtual time; `None` selects the default. `[ahci]`: its
/// AHCI controller.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostConfig {
    /// From the job's decision to the doorbell.
    pub submit_cost: Option<Nanos>,
    /// From the completion entry to the job.
    pub complete_cost: Option<Nanos>,
    /// From the completion entry to the first instruction that an interrupt starts.
    pub interrupt_cost: Option<Nanos>,
    /// The machine on which the host's software runs in virtual time; `None` for one that takes no
    /// time but the costs above.
    pub machine: Option<HostMachine>,
    /// The machine that runs the program, as long as its numbers are not given.
    pub this_machine: Option<ThisMachine>,
    /// `[ahci]`: the uplink of the controller that the SATA drives share.
    pub ahci: AhciUplink,
}

impl HostConfig {
    pub(super) fn read(mut s: Section<'_>) -> Result<HostConfig> {
        let mut host = HostConfig::default();
        s.set("submit_cost", &mut host.submit_cost, |v| v.duration_in(&STEP_TIME).map(Some))?;
        s.set("complete_cost", &mut host.complete_cost, |v| v.duration_in(&STEP_TIME).map(Some))?;
        s.set("interrupt_cost", &mut host.interrupt_cost, |v| v.duration_in(&STEP_TIME).map(Some))?;
        match HostMachine::read(&mut s)? {
            Some(MachineChoice::Known(machine)) => host.machine = Some(machine),
            Some(MachineChoice::This(machine)) => host.this_machine = Some(machine),
            None => {}
        }
        s.finish()?;
        Ok(host)
    }
}
