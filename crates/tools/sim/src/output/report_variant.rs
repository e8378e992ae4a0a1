//! Conversion of an outcome to a [`Variant`] of the report.

use block::notify::NotifyStats;
use report::explain::{band_bar, breakdown_title, request_bar};
use report::{
    FtlPoint, FtlSeries, GcSummary, Intervals, JobRow, Latency, LatencyBreakdown, LatencyPoint,
    NoteRow, TransferDirection, Utilization, UtilizationMap, Variant,
};
use scenario::format::{count, duration};
use workload::{Direction as JobDirection, DirectionResult, JobResult};

use crate::output::faults::sentence;
use crate::{DriveOutcome, PathOutcome, SimOutcome, Timeline};

/// Maximum number of points of a distribution, which exceeds a plot's resolution.
const CDF_POINTS: usize = 400;

/// Converts an outcome to one variant of a comparison.
pub fn to_variant(outcome: &SimOutcome) -> Variant {
    let several = outcome.paths.len() > 1;
    let mut way = Variant {
        name: outcome.title.clone(),
        scenario: outcome.text.to_string(),
        seed: outcome.seed,
        elapsed_ns: outcome.elapsed.0,
        ..Variant::default()
    };
    let timeline = Timeline::new(outcome.elapsed);
    way.intervals = Intervals { width_ns: timeline.width.0, last_ns: timeline.last.0 };
    for path in &outcome.paths {
        let layer = path.ftl_time_series.as_ref().map(|_| way.ftl_series.len());
        for job in path.run.reported_jobs() {
            way.remarks.extend(job_remarks(&job));
            let name = several.then_some(path.name.as_str());
            rows(&job, name, (&timeline, layer), &mut way.jobs);
        }
        if let Some(series) = ftl_series(path, &timeline, several) {
            way.ftl_series.push(series);
        }
    }
    let several_drives = outcome.drives.len() > 1;
    for drive in &outcome.drives {
        if let Some(map) = utilization(drive, outcome.elapsed.0, several_drives) {
            way.utilization.push(map);
        }
    }
    // The variant shows one figure: that of the path with the most writes.
    let written = |p: &&PathOutcome| p.ftl.map_or(0, |f| f.host_writes);
    if let Some(path) = outcome.paths.iter().max_by_key(written) {
        way.write_amplification = path.ftl.and_then(|f| f.write_amplification());
        way.over_provisioning = path.capacity.map(|c| c.over_provisioning());
        way.gc = path.ftl.map(|f| GcSummary {
            host_sectors: f.host_writes,
            relocated_sectors: f.gc_relocations,
            padded_sectors: f.padding,
            lines_reclaimed: f.lines_reclaimed,
            erases: f.erases,
            free_lines: path.free_lines.unwrap_or(0.0) as u64,
        });
    }
    for path in &outcome.paths {
        way.latency_breakdowns.extend(latency_breakdown(path, outcome, several));
    }
    if let Some(machine) = &outcome.diagnostics.machine {
        way.host = Some(machine.host_times());
        way.remarks.push(machine.summary());
        way.remarks.extend(machine.run_lines());
    } else if outcome.costs.submit.0 + outcome.costs.complete.0 == 0 {
        way.remarks.push("The host's CPU takes no time: [host] is not set.".into());
    }
    for path in &outcome.paths {
        if let Some(layer) = &path.block_layer {
            let of = if several { format!("{}: ", path.name) } else { String::new() };
            way.remarks.push(format!("{of}{}", layer.summary_line()));
        }
        if let Some(NotifyStats { interrupts, polls, by_submitter, completions }) = path.notify {
            let of = if several { format!("{}: ", path.name) } else { String::new() };
            way.remarks.push(format!(
                "{of}{} completions noticed by {} interrupts, {} polls of a timer and {} times by a submitter",
                count(completions),
                count(interrupts),
                count(polls),
                count(by_submitter)
            ));
        }
    }
    if !outcome.ignored.is_empty() {
        way.remarks.push(format!("Without meaning here: {}.", outcome.ignored.join(", ")));
    }
    way.remarks.extend(outcome.failures());
    for drive in &outcome.drives {
        way.remarks.extend(drive.faults.iter().map(|fault| sentence(&drive.name, fault)));
    }
    let row = |note: &crate::Note| NoteRow {
        code: note.code.as_str().to_owned(),
        text: note.text.clone(),
    };
    way.notes = outcome.notes.iter().map(row).collect();
    way
}

/// Returns remarks on the numbers of a job.
fn job_remarks(job: &JobResult) -> Vec<String> {
    let name = &job.spec.name;
    let mut remarks = Vec::new();
    for direction in JobDirection::ALL {
        let result = job.direction(direction);
        if result.is_instant() {
            remarks.push(format!(
                "job {name}: {} {}s took no time, so that they have no rate: the drive charges \
                 nothing for them; set [drive.controller] fetch, or [host] submit",
                count(result.ios),
                direction.name()
            ));
        }
    }
    if job.requests.delayed > 0 {
        remarks.push(format!(
            "job {name}: {} of {} requests were issued later than the trace says: all {} places of \
             iodepth were taken, or the host was busy",
            count(job.requests.delayed),
            count(job.requests.issued),
            job.spec.depth()
        ));
    }
    if let (Some(found), Some(target)) = (job.depth_search, &job.spec.latency_target) {
        let (depth, time) = (found.depth, duration(target.target.0));
        let percent = target.percentile;
        remarks.push(match (found.met, found.converged) {
            (false, _) => format!(
                "job {name}: not even iodepth {depth} keeps {percent} % of its requests within {time}"
            ),
            (true, true) => format!(
                "job {name}: iodepth {depth} keeps {percent} % of its requests within {time}; its \
                 numbers are those of one window at this depth"
            ),
            (true, false) => format!(
                "job {name}: iodepth {depth} keeps {percent} % of its requests within {time}, as far \
                 as it got: it ended before its search"
            ),
        });
    }
    remarks
}

/// Returns a path's latency breakdown, if it was requested.
fn latency_breakdown(
    path: &PathOutcome,
    outcome: &SimOutcome,
    several: bool,
) -> Option<LatencyBreakdown> {
    let explanation = path.explanation.as_ref()?;
    let names = path.drive(outcome)?.names(explanation);
    let jobs = explanation.breakdowns.iter().map(|breakdown| {
        let bars = breakdown.bands.iter().map(band_bar).collect();
        (breakdown_title(breakdown, names), bars)
    });
    Some(LatencyBreakdown {
        drive: if several { path.name.clone() } else { String::new() },
        jobs: jobs.collect(),
        slowest: explanation.slowest.iter().map(|r| request_bar(r, names)).collect(),
    })
}

/// Returns the time series of a path's FTL.
fn ftl_series(path: &PathOutcome, timeline: &Timeline, several: bool) -> Option<FtlSeries> {
    let intervals = path.ftl_time_series.as_ref()?.intervals(timeline);
    let point = |(start_ns, i): (u64, &crate::FtlInterval)| {
        let all = i.host_sectors + i.relocated_sectors;
        FtlPoint {
            start_ns,
            free_lines: i.free_lines,
            write_amplification: i.write_amplification,
            gc_share: if all == 0 { 0.0 } else { i.relocated_sectors as f64 / all as f64 },
        }
    };
    let starts = (0..).map(|i| timeline.width.0 * i);
    let name = if several { path.name.clone() } else { String::new() };
    Some(FtlSeries { drive: name, points: starts.zip(&intervals).map(point).collect() })
}

fn rows(
    job: &JobResult,
    drive: Option<&str>,
    (timeline, layer): (&Timeline, Option<usize>),
    rows: &mut Vec<JobRow>,
) {
    let all = job.series.with_width(timeline.width);
    let start = |i: usize| timeline.width.0 * i as u64;
    // Time of the interval in which the job was measured, in seconds; an empty time has no rate.
    let seconds = |i: usize| {
        let from = start(i).max((job.started + job.spec.schedule.ramp_time).0);
        let to = (start(i) + timeline.width.0).min(job.ended.0);
        (to > from).then(|| (to - from) as f64 / 1e9)
    };
    let depth: Vec<(u64, f64)> = all
        .intervals()
        .enumerate()
        .filter_map(|(i, done)| Some((start(i), done.outstanding_ns as f64 / 1e9 / seconds(i)?)))
        .collect();
    let directions = [
        (JobDirection::Read, TransferDirection::Read),
        (JobDirection::Write, TransferDirection::Write),
        (JobDirection::Trim, TransferDirection::Trim),
    ];
    for (from, to) in directions {
        let result = job.direction(from);
        if result.ios == 0 {
            continue;
        }
        let name = match drive {
            Some(drive) => format!("{drive}: {}", job.spec.name),
            None => job.spec.name.clone(),
        };
        let series = all.intervals().enumerate().filter_map(|(i, done)| {
            Some((start(i), done.bytes[from as usize] as f64 / seconds(i)?))
        });
        let latencies = job.series.latencies(from).with_width(timeline.width);
        let latencies = latencies.intervals().enumerate().filter(|(_, l)| l.count > 0);
        let latencies = latencies.map(|(i, l)| LatencyPoint {
            start_ns: start(i),
            p50: l.p50.0,
            p99: l.p99.0,
            max: l.max.0,
        });
        rows.push(JobRow {
            name,
            direction: to,
            iops: result.iops(),
            bytes_per_sec: result.bandwidth(),
            latency: latency(result),
            cdf: cdf(result),
            series: series.collect(),
            latencies: latencies.collect(),
            depth: depth.clone(),
            ftl_index: layer,
            is_last_partial: !job.ended.0.is_multiple_of(timeline.width.0),
        });
    }
}

fn latency(result: &DirectionResult) -> Latency {
    let at = |percent| result.lat.percentile(percent).0;
    Latency {
        mean: result.lat.mean(),
        p50: at(50.0),
        p95: at(95.0),
        p99: at(99.0),
        p999: at(99.9),
        max: result.lat.max().0,
    }
}

fn cdf(result: &DirectionResult) -> Vec<(u64, f64)> {
    let total = result.lat.count().max(1) as f64;
    let buckets: Vec<_> = result.lat.buckets().collect();
    let group = buckets.len().div_ceil(CDF_POINTS).max(1);
    let mut points = Vec::with_capacity(2 * buckets.len() / group + 2);
    let mut below = 0;
    // Between recorded values the share is constant: two points per group of buckets.
    for buckets in buckets.chunks(group) {
        points.push((buckets[0].from.0, below as f64 / total));
        below += buckets.iter().map(|b| b.count).sum::<u64>();
        let last = buckets[buckets.len() - 1].to.0.min(result.lat.max().0);
        points.push((last.max(buckets[0].from.0), below as f64 / total));
    }
    points
}

fn utilization(drive: &DriveOutcome, elapsed: u64, several: bool) -> Option<UtilizationMap> {
    let (channels, pus) = drive.geometry?;
    let share = |t: time::Nanos| t.0 as f64 / elapsed.max(1) as f64;
    let units = drive.drive.pus.iter();
    let units = units.map(|p| Utilization {
        read: share(p.read),
        program: share(p.program),
        erase: share(p.erase),
    });
    let name = if several { drive.name.clone() } else { String::new() };
    Some(UtilizationMap { drive: name, channels, pus, units: units.collect() })
}
