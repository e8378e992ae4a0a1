//! Parsers of fio's options, one match arm each, from the text of a value to the field of a
//! [`JobSpec`].

use time::Nanos;

use crate::job::{
    BlockSizes, ContinueOnError, Direction, Distribution, IoPattern, JobSpec, LatencyTarget, Rate,
    ReplayOptions, Skip, Zone,
};
use crate::key_spec::{KeySpec, RECORDS_MAX, YcsbPhase};
use crate::trace::TraceFormat;
use crate::unit_spec::UnitSpec;
use crate::units::{Size, parse_bool, parse_bytes, parse_size, parse_time};

/// Error of an option's value: the values that are allowed.
#[derive(Debug, PartialEq)]
pub(crate) struct AllowedValues {
    /// Description of the allowed values.
    pub(crate) text: String,
    /// The allowed keywords, if the value is one of a list.
    pub(crate) choices: &'static [&'static str],
}

impl From<String> for AllowedValues {
    fn from(text: String) -> AllowedValues {
        AllowedValues { text, choices: &[] }
    }
}

impl From<&str> for AllowedValues {
    fn from(text: &str) -> AllowedValues {
        AllowedValues::from(text.to_owned())
    }
}

/// Returns the error of a value that must be one of these keywords.
fn one_of(words: &'static [&'static str]) -> AllowedValues {
    let text = match words {
        [all @ .., last] if !all.is_empty() => format!("{} or {last}", all.join(", ")),
        _ => words.concat(),
    };
    AllowedValues { text, choices: words }
}

type OptionResult<T> = Result<T, AllowedValues>;

fn or<T>(value: Option<T>, allowed: &str) -> OptionResult<T> {
    value.ok_or_else(|| allowed.into())
}

fn flag(text: &str) -> OptionResult<bool> {
    or(parse_bool(text), "0 or 1")
}

fn seconds(text: &str) -> OptionResult<Nanos> {
    or(parse_time(text, Nanos::from_secs(1)), "a time in seconds, or with a unit: 30, 500ms, 2m")
}

fn count(text: &str, least: u64, most: u64) -> OptionResult<u64> {
    let number = parse_bytes(text).filter(|n| (least..=most).contains(n));
    or(number, &format!("a number from {least} to {most}"))
}

fn percent(text: &str) -> OptionResult<f64> {
    let number = text.trim().parse().ok().filter(|p| (0.0..=100.0).contains(p));
    or(number, "a percentage from 0 to 100")
}

/// Parses the size of a job's region. Zero is an error; fio reads it as an option that is not set.
fn size(text: &str) -> OptionResult<Size> {
    match size_or_percent(text)? {
        Size::Bytes(0) => {
            Err("a size above zero: with 0 there is nothing to do; leave `size` out for the whole \
                 drive"
                .into())
        }
        size => Ok(size),
    }
}

fn size_or_percent(text: &str) -> OptionResult<Size> {
    let allowed = "a size in bytes (4k, 1m, 2g), or 1% to 100%";
    match or(parse_size(text), allowed)? {
        Size::Percent(p) if p > 100.0 => Err(allowed.into()),
        size => Ok(size),
    }
}

/// Parses a comma-separated value per direction.
///
/// As in fio, missing values at the end repeat the last one (`bs=4k,8k` gives trims 8k). An empty
/// value keeps the previous setting.
fn per_direction<T: Clone>(
    text: &str,
    into: &mut [T; 3],
    parse: impl Fn(&str) -> OptionResult<T>,
) -> OptionResult<()> {
    let parts: Vec<&str> = text.split(',').collect();
    if parts.len() > 3 {
        return Err("at most three values: reads, writes, trims".into());
    }
    if parts.iter().all(|part| part.trim().is_empty()) {
        // An empty value, for instance of an unset variable, is an error.
        parse("")?;
    }
    for (i, slot) in into.iter_mut().enumerate() {
        let part = parts.get(i).or(parts.last()).map_or("", |p| p.trim());
        // A trailing comma limits the setting to the directions before it (`rate=1m,`).
        if !part.is_empty() {
            *slot = parse(part)?;
        }
    }
    Ok(())
}

fn block_size(text: &str) -> OptionResult<BlockSizes> {
    Ok(vec![(block_bytes(text)?, 100.0)])
}

fn block_bytes(text: &str) -> OptionResult<u64> {
    or(
        parse_bytes(text).filter(|b| (1..=1 << 30).contains(b)),
        "block sizes of 1 byte to 1g, such as 4k or 4k,8k",
    )
}

/// Parses a range such as `4k-64k`: all multiples of the first size up to the second, equally
/// likely.
fn block_size_range(text: &str) -> OptionResult<BlockSizes> {
    const BLOCK_SIZES_MAX: u64 = 256;
    let allowed = "a range of block sizes such as 4k-64k, of at most 256 multiples of the first";
    let (least, most) = text.split_once('-').ok_or(allowed)?;
    let bound = |text| block_bytes(text).map_err(|_| AllowedValues::from(allowed));
    let (least, most) = (bound(least)?, bound(most)?);
    if most < least || most / least > BLOCK_SIZES_MAX {
        return Err(allowed.into());
    }
    let count = most / least;
    Ok((1..=count).map(|i| (least * i, 100.0 / count as f64)).collect())
}

/// Parses `4k/50:1k/:32k/`. Sizes without a percentage share the remaining requests evenly.
fn block_size_split(text: &str) -> OptionResult<BlockSizes> {
    let allowed = "block sizes with percentages that add up to 100, such as 4k/10:64k/50:32k/40";
    let mut given = Vec::new();
    for item in text.split(':') {
        let (size, share) = item.split_once('/').unwrap_or((item, ""));
        let share = match share.trim() {
            "" => None,
            s => Some(percent(s).map_err(|_| AllowedValues::from(allowed))?),
        };
        given.push((block_bytes(size).map_err(|_| AllowedValues::from(allowed))?, share));
    }
    let total: f64 = given.iter().filter_map(|(_, s)| *s).sum();
    let open = given.iter().filter(|(_, s)| s.is_none()).count();
    if total > 100.0 + 1e-9 || (open == 0 && total < 100.0 - 1e-9) || given.len() > 64 {
        return Err(allowed.into());
    }
    let rest = if open == 0 { 0.0 } else { (100.0 - total).max(0.0) / open as f64 };
    Ok(given.into_iter().map(|(b, s)| (b, s.unwrap_or(rest))).filter(|(_, s)| *s > 0.0).collect())
}

/// Parses zones such as `60/10:30/20:8/30:2/40`, each as accesses/length.
fn zones(text: &str, absolute: bool) -> OptionResult<Vec<Zone>> {
    let allowed = "zones as accesses/length that each add up to 100, such as zoned:60/10:40/90";
    let mut zones = Vec::new();
    for item in text.split(':') {
        let (accesses, length) = item.split_once('/').ok_or(allowed)?;
        let length = if absolute {
            parse_bytes(length).filter(|b| *b > 0).map(Size::Bytes)
        } else {
            percent(length).ok().filter(|p| *p > 0.0).map(Size::Percent)
        };
        zones.push(Zone {
            accesses: percent(accesses).map_err(|_| AllowedValues::from(allowed))?,
            length: length.ok_or(allowed)?,
        });
    }
    let off = |sum: f64| (sum - 100.0).abs() > 0.01;
    let lengths = zones.iter().map(|z| if let Size::Percent(p) = z.length { p } else { 0.0 });
    if off(zones.iter().map(|z| z.accesses).sum())
        || (!absolute && off(lengths.sum()))
        || zones.len() > 256
    {
        return Err(allowed.into());
    }
    Ok(zones)
}

fn distribution(text: &str) -> OptionResult<Distribution> {
    let allowed = "random, zipf:THETA (0 to 100), pareto:H (0 to 1, ends excluded), \
        zoned:ACCESSES/LENGTH:... or zoned_abs:ACCESSES/SIZE:...";
    let (kind, value) = text.split_once(':').unwrap_or((text, ""));
    let number = value.parse::<f64>().ok();
    Ok(match kind {
        "random" if value.is_empty() => Distribution::Uniform,
        "zipf" => {
            let theta = number.filter(|t| (0.0..=100.0).contains(t));
            Distribution::Zipf(or(theta, allowed)?)
        }
        "pareto" => {
            let h = number.filter(|h| *h > 1e-6 && *h < 1.0 - 1e-6);
            Distribution::Pareto(or(h, allowed)?)
        }
        "zoned" | "zoned_abs" => {
            let mut all = [const { Vec::new() }; 3];
            per_direction(value, &mut all, |t| zones(t, kind == "zoned_abs"))?;
            if all.iter().any(Vec::is_empty) {
                return Err(allowed.into());
            }
            Distribution::Zoned(all)
        }
        _ => return Err(allowed.into()),
    })
}

fn rate(text: &str, into: &mut [Rate; 3], make: fn(u64) -> Rate) -> OptionResult<()> {
    per_direction(text, into, |part| {
        let number = or(parse_bytes(part), "a rate per second, such as 1m or 1m,500k")?;
        Ok(if number == 0 { Rate::Unlimited } else { make(number) })
    })
}

fn percentiles(text: &str) -> OptionResult<Vec<f64>> {
    let allowed = "up to 20 percentiles above 0 and up to 100, such as 50:99:99.9";
    let list: Option<Vec<f64>> = text
        .split(':')
        .map(|p| p.trim().parse().ok().filter(|p| *p > 0.0 && *p <= 100.0))
        .collect();
    let mut list = list.filter(|l| l.len() <= 20).ok_or(allowed)?;
    list.sort_by(f64::total_cmp);
    list.dedup();
    Ok(list)
}

fn continue_on_error(text: &str) -> OptionResult<ContinueOnError> {
    let t = |read, write, verify| Ok(ContinueOnError { read, write, verify });
    match text.trim() {
        "none" | "0" => t(false, false, false),
        "read" => t(true, false, false),
        "write" => t(false, true, false),
        "io" => t(true, true, false),
        "verify" => t(false, false, true),
        "all" | "1" | "" => t(true, true, true),
        _ => Err(one_of(&["none", "read", "write", "io", "verify", "all"])),
    }
}

fn skip(text: &str) -> OptionResult<Skip> {
    let mut skip = Skip::default();
    for kind in text.split(',') {
        match kind.trim() {
            "read" => skip.directions[0] = true,
            "write" => skip.directions[1] = true,
            "trim" => skip.directions[2] = true,
            "sync" => skip.sync = true,
            _ => return Err(one_of(&["read", "write", "trim", "sync"])),
        }
    }
    Ok(skip)
}

fn micros(text: &str) -> OptionResult<Nanos> {
    let time = parse_time(text, Nanos::from_micros(1));
    or(time, "a time in microseconds, or with a unit: 100, 5ms")
}

fn replay(spec: &mut JobSpec) -> &mut ReplayOptions {
    spec.replay.get_or_insert_with(|| ReplayOptions::new("".into()))
}

fn latency(spec: &mut JobSpec) -> &mut LatencyTarget {
    spec.latency_target.get_or_insert(LatencyTarget {
        target: Nanos::ZERO,
        window: Nanos::ZERO,
        percentile: 100.0,
        run: false,
    })
}

/// Sets the supported option `option` of `spec`; aliases must be resolved. Returns `None` if there
/// is no such option.
pub(crate) fn apply(spec: &mut JobSpec, option: &str, value: &str) -> Option<OptionResult<()>> {
    set(spec, option, value.trim()).transpose()
}

fn set(spec: &mut JobSpec, option: &str, value: &str) -> Result<Option<()>, AllowedValues> {
    match option {
        "name" => value.clone_into(&mut spec.name),
        "description" => spec.description = Some(value.to_owned()),
        "rw" | "readwrite" => {
            spec.pattern.access =
                IoPattern::parse(value).ok_or_else(|| one_of(IoPattern::NAMES))?;
        }
        "rwmixread" => spec.pattern.read_percent = percent(value)?,
        "rwmixwrite" => spec.pattern.read_percent = 100.0 - percent(value)?,
        "bs" | "blocksize" => per_direction(value, &mut spec.pattern.block_sizes, block_size)?,
        "bsrange" | "blocksize_range" => {
            per_direction(value, &mut spec.pattern.block_sizes, block_size_range)?
        }
        "bssplit" => per_direction(value, &mut spec.pattern.block_sizes, block_size_split)?,
        "size" => spec.range.size = Some(size(value)?),
        "io_size" | "io_limit" => {
            spec.range.io_size =
                Some(or(parse_size(value), "a size in bytes or in percent of `size`")?);
        }
        "offset" => spec.range.offset = size_or_percent(value)?,
        "offset_increment" => spec.range.offset_increment = size_or_percent(value)?,
        "number_ios" => spec.range.number_ios = Some(count(value, 1, u64::MAX)?),
        "loops" => spec.schedule.loops = count(value, 1, u32::MAX.into())? as u32,
        "iodepth" => spec.iodepth = Some(count(value, 1, 65_536)? as u32),
        "numjobs" => spec.numjobs = count(value, 1, 4096)? as u32,
        "runtime" | "timeout" => {
            spec.schedule.runtime = Some(seconds(value)?).filter(|t| *t > Nanos::ZERO)
        }
        "time_based" => spec.schedule.time_based = flag(value)?,
        "ramp_time" => spec.schedule.ramp_time = seconds(value)?,
        "startdelay" | "start_delay" => spec.schedule.startdelay = seconds(value)?,
        "rate" => rate(value, &mut spec.pace.rate, Rate::Bytes)?,
        "rate_iops" => rate(value, &mut spec.pace.rate, Rate::Iops)?,
        "rate_process" => match value {
            "linear" => spec.pace.rate_poisson = false,
            "poisson" => spec.pace.rate_poisson = true,
            _ => return Err(one_of(&["linear", "poisson"])),
        },
        "random_distribution" => spec.pattern.distribution = distribution(value)?,
        "norandommap" => spec.pattern.norandommap = flag(value)?,
        "randseed" => spec.pattern.randseed = Some(count(value, 0, u64::MAX)?),
        "verify" => match value {
            "crc32c" | "crc32c-intel" => spec.integrity.verify = true,
            "0" | "none" => spec.integrity.verify = false,
            _ => return Err(one_of(&["crc32c", "none"])),
        },
        "do_verify" => spec.integrity.do_verify = flag(value)?,
        "fsync" | "fdatasync" => spec.integrity.fsync = count(value, 0, u64::MAX)?,
        "end_fsync" => spec.integrity.end_fsync = flag(value)?,
        "thinktime" => spec.pace.thinktime = micros(value)?,
        "thinktime_blocks" => spec.pace.thinktime_blocks = count(value, 1, u64::MAX)?,
        "stonewall" | "wait_for_previous" => spec.schedule.stonewall = flag(value)?,
        "new_group" => spec.report.new_group = flag(value)?,
        "group_reporting" => spec.report.group_reporting = flag(value)?,
        "continue_on_error" => spec.integrity.continue_on_error = continue_on_error(value)?,
        "percentile_list" => spec.report.percentiles = percentiles(value)?,
        "pus" => {
            let pus = or(value.parse().ok(), "parallel units such as 0-3 or 0,4,8-11")?;
            spec.units = Some(UnitSpec { pus });
        }
        _ if set_keys(spec, option, value)? => {}
        _ if set_latency(spec, option, value)? => {}
        _ if set_log(spec, option, value)? => {}
        _ if set_replay(spec, option, value)? => {}
        _ => return Ok(None),
    }
    Ok(Some(()))
}

/// Sets an option of the records of a job.
fn set_keys(spec: &mut JobSpec, option: &str, value: &str) -> OptionResult<bool> {
    let keys = spec.keys.unwrap_or_default();
    let changed = match option {
        "ycsb" => {
            let phase = YcsbPhase::parse(value).ok_or_else(|| one_of(YcsbPhase::NAMES))?;
            KeySpec { ycsb: Some(phase), ..keys }
        }
        "recordcount" => KeySpec { record_count: count(value, 1, RECORDS_MAX)?, ..keys },
        "operationcount" => KeySpec { operation_count: Some(count(value, 1, u64::MAX)?), ..keys },
        _ => return Ok(false),
    };
    spec.keys = Some(changed);
    Ok(true)
}

/// Sets an option of the search for a depth.
fn set_latency(spec: &mut JobSpec, option: &str, value: &str) -> OptionResult<bool> {
    let above_zero = "a time above 0 in microseconds, or with a unit: 500, 5ms";
    let time = |value| or(micros(value).ok().filter(|t| *t > Nanos::ZERO), above_zero);
    match option {
        "latency_target" => latency(spec).target = time(value)?,
        "latency_window" => latency(spec).window = time(value)?,
        "latency_percentile" => latency(spec).percentile = percent(value)?,
        "latency_run" => latency(spec).run = flag(value)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Sets an option of the logs over time.
fn set_log(spec: &mut JobSpec, option: &str, value: &str) -> OptionResult<bool> {
    let name = || Some(value.to_owned());
    let logs = &mut spec.report.logs;
    match option {
        "write_lat_log" => logs.lat = name(),
        "write_bw_log" => logs.bw = name(),
        "write_iops_log" => logs.iops = name(),
        "log_avg_msec" => logs.window = Nanos::from_millis(count(value, 0, 1 << 40)?),
        "log_max_value" | "log_max" => logs.max_value = flag(value)?,
        "log_offset" => logs.offset = flag(value)?,
        "per_job_logs" if flag(value)? => {}
        "per_job_logs" => return Err("1: every job has logs of its own".into()),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Sets an option of a replay.
fn set_replay(spec: &mut JobSpec, option: &str, value: &str) -> OptionResult<bool> {
    match option {
        "read_iolog" if !value.is_empty() => replay(spec).path = value.into(),
        "read_iolog" => return Err("the path of a trace".into()),
        "replay_no_stall" => replay(spec).no_stall = flag(value)?,
        "replay_redirect" => replay(spec).redirect = value != "0",
        "replay_time_scale" => {
            let scale = value.parse().ok().filter(|s| *s > 0.0 && *s <= 1e9);
            replay(spec).time_scale = or(scale, "a percentage above 0: 200 is twice as fast")?;
        }
        "replay_align" => {
            let align = parse_bytes(value).filter(|n| *n == 0 || n.is_power_of_two());
            replay(spec).align = or(align, "a power of two such as 4k, or 0")?;
        }
        "replay_scale" => replay(spec).scale = count(value, 1, u64::MAX)?,
        "replay_skip" => replay(spec).skip = skip(value)?,
        "trace_format" => {
            let format = TraceFormat::ALL.into_iter().find(|f| f.name() == value);
            if format.is_none() && value != "auto" {
                return Err(one_of(&["auto", "iolog", "msr", "mqsim"]));
            }
            replay(spec).format = format;
        }
        "trace_device" => replay(spec).device = Some(count(value, 0, u32::MAX.into())? as u32),
        "wrap" => replay(spec).wrap = flag(value)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Returns the directions that a job of this access uses, to name a block size in errors.
pub(crate) fn used_directions(access: &IoPattern) -> impl Iterator<Item = Direction> {
    Direction::ALL.into_iter().filter(move |d| access.uses(*d))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::option_tables;

    #[test]
    fn every_word_of_the_table_is_understood_and_no_other() {
        for option in option_tables::supported_names() {
            assert!(apply(&mut JobSpec::new("j"), option, "").is_some(), "{option}");
        }
        for (ignored, _) in option_tables::IGNORED {
            assert!(apply(&mut JobSpec::new("j"), ignored, "").is_none(), "{ignored}");
        }
        for refused in option_tables::REFUSED {
            assert!(apply(&mut JobSpec::new("j"), refused.name, "").is_none(), "{}", refused.name);
        }
    }

    #[test]
    fn ranges_are_even_splits() {
        assert_eq!(
            block_size_range("4k-16k").unwrap(),
            [4096, 8192, 12288, 16384].map(|b| (b, 25.0))
        );
        assert_eq!(block_size_range("4k-4k").unwrap(), [(4096, 100.0)]);
        for bad in ["4k", "8k-4k", "0-4k", "512-1m", "4k-x"] {
            assert!(block_size_range(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn splits_share_what_is_left_and_must_add_up() {
        assert_eq!(
            block_size_split("4k/50:1k/:32k/").unwrap(),
            [(4096, 50.0), (1024, 25.0), (32768, 25.0)]
        );
        for bad in ["4k/50", "4k/60:8k/50", "4k/x", "/50:4k/50", "", "0/100"] {
            assert!(block_size_split(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn values_per_direction_follow_fio() {
        let mut spec = JobSpec::new("j");
        apply(&mut spec, "bs", "4k,8k").unwrap().unwrap();
        assert_eq!(spec.pattern.block_sizes.clone().map(|b| b[0].0), [4096, 8192, 8192]);
        apply(&mut spec, "bs", "16k").unwrap().unwrap();
        assert_eq!(spec.pattern.block_sizes.clone().map(|b| b[0].0), [16384; 3]);
        apply(&mut spec, "rate", "1m,").unwrap().unwrap();
        assert_eq!(spec.pace.rate, [Rate::Bytes(1 << 20), Rate::Unlimited, Rate::Unlimited]);
        apply(&mut spec, "rate_iops", ",500").unwrap().unwrap();
        assert_eq!(spec.pace.rate, [Rate::Bytes(1 << 20), Rate::Iops(500), Rate::Iops(500)]);
        assert!(apply(&mut spec, "bs", "1k,2k,3k,4k").unwrap().is_err());
    }
}
