//! `scheduler` of `[path]`: a name, or a table with `kind` and the scheduler's settings.

use block::Group;
use block::sched::{FairBy, SchedulerConfig};
use time::Nanos;

use super::layer_keys::check_scheduler;
use crate::section::{Keyword, Result, Section, Value};

/// Maximum number of weights, one per core or group.
const WEIGHTS_MAX: usize = 1024;

fn kinds() -> [Keyword<'static, SchedulerConfig>; 5] {
    // The names are valid names of the block layer.
    ["none", "deadline", "kyber", "fair", "priority"]
        .map(|name| Keyword(name, name.parse().unwrap_or_default()))
}

/// Reads `"kyber"`, or `{ kind = "kyber", read_target = "2ms" }`.
pub(crate) fn read(value: &Value<'_>) -> Result<SchedulerConfig> {
    if value.string().is_ok() {
        return value.choice(&kinds());
    }
    let mut s = value.section().map_err(|_| {
        value.wrong_type("the name of a scheduler, or a table with its `kind` and parameters")
    })?;
    let Some(kind) = s.get("kind") else {
        return Err(s.missing(
            "kind",
            "allowed: \"none\", \"deadline\", \"kyber\", \"fair\", \"priority\"",
        ));
    };
    let mut config = kind.choice(&kinds())?;
    for key in keys(&config) {
        set(&mut s, &mut config, key)?;
    }
    s.finish()?;
    Ok(config)
}

/// Returns the settings of a scheduler.
fn keys(config: &SchedulerConfig) -> &'static [&'static str] {
    match config {
        SchedulerConfig::None => &[],
        SchedulerConfig::Deadline(_) => {
            &["read_expire", "write_expire", "fifo_batch", "writes_starved", "front_merges"]
        }
        SchedulerConfig::Kyber(_) => {
            &["read_target", "write_target", "discard_target", "other_target", "window"]
        }
        SchedulerConfig::Fair(_) => {
            &["by", "weights", "default_weight", "request_cost", "work_conserving"]
        }
        SchedulerConfig::Priority(_) => &["classes", "default_class", "prio_aging_expire"],
    }
}

/// Reads a setting and checks the scheduler's configuration. The defaults are valid, so an error is
/// caused by this value.
fn set(s: &mut Section<'_>, config: &mut SchedulerConfig, key: &'static str) -> Result<()> {
    let Some(v) = s.get(key) else { return Ok(()) };
    match config {
        SchedulerConfig::None => {}
        SchedulerConfig::Deadline(c) => match key {
            "read_expire" => c.read_expire = v.duration()?,
            "write_expire" => c.write_expire = v.duration()?,
            "fifo_batch" => c.fifo_batch = v.u32()?,
            "writes_starved" => c.writes_starved = v.u32()?,
            _ => c.front_merges = v.boolean()?,
        },
        SchedulerConfig::Kyber(c) => {
            let into: &mut Nanos = match key {
                "read_target" => &mut c.target.read,
                "write_target" => &mut c.target.write,
                "discard_target" => &mut c.target.discard,
                "other_target" => &mut c.target.other,
                _ => &mut c.window,
            };
            *into = v.duration()?;
        }
        SchedulerConfig::Fair(c) => match key {
            "by" => {
                c.by = v.choice(&[
                    Keyword("core", FairBy::Submitter),
                    Keyword("group", FairBy::Group),
                ])?
            }
            "weights" => c.weights = weights(&v)?,
            "default_weight" => c.default_weight = v.u16_from(0)?,
            "request_cost" => c.request_cost_sectors = v.u32()?,
            _ => c.work_conserving = v.boolean()?,
        },
        SchedulerConfig::Priority(c) => match key {
            "classes" => {
                let of = |(group, class): (u16, u16)| (Group(group), class.min(255) as u8);
                c.classes = weights(&v)?.into_iter().map(of).collect();
            }
            "default_class" => c.default_class = v.u16_from(0)?.min(255) as u8,
            _ => c.prio_aging_expire = v.duration()?,
        },
    }
    check_scheduler(&v.source_span(), config.validate())
}

/// Reads the weights of cores or groups 0, 1, 2 …
fn weights(value: &Value<'_>) -> Result<Vec<(u16, u16)>> {
    let items = value.items().ok_or_else(|| value.wrong_type("a list of numbers: of 0, of 1 …"))?;
    if items.len() > WEIGHTS_MAX {
        return Err(value.wrong_type(format!("at most {WEIGHTS_MAX} of them")));
    }
    let weight = |(flow, v): (usize, &Value<'_>)| Ok((flow as u16, v.u16_from(0)?));
    items.iter().enumerate().map(weight).collect()
}
