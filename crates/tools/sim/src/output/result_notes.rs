//! [`Note`]: a caveat on a result that may be misread. `docs/report.md` lists the codes.

use scenario::format::{count, duration};
use scenario::{BlockLayerSpec, Scenario};
use serde_json::{Value, json};
use time::Nanos;
use workload::JobResult;

use crate::{PathOutcome, SimOutcome};

/// Minimum CPU utilization of a job at which the host counts as the bottleneck.
const HOST_BUSY: f64 = 0.99;
/// Maximum utilization of the drive's busiest resource at which the host counts as the bottleneck.
const DRIVE_IDLE: f64 = 0.9;

/// Subject of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoteCode {
    /// Reads of sectors that were never written, which take no media time.
    UnwrittenReads,
    /// The drive is not in steady state: by the rule of `[precondition] until`, or because GC has
    /// not yet written the drive's capacity once.
    NotSteady,
    /// A scheduler, weights or limits never had two requests to choose from.
    NothingToOrder,
    /// Requests of a trace were adjusted to the drive.
    RequestsRounded,
    /// A job issued no request.
    NothingIssued,
    /// The bottleneck was the modeled host CPU rather than the drive.
    HostBound,
    /// A setting of the scenario has no cost in virtual time.
    CostsNothing,
    /// The run was interrupted.
    Partial,
    /// The drive started from an image and was not preconditioned.
    NotPreconditioned,
    /// A trace lacks events.
    TraceIncomplete,
    /// Requests were not followed to the flash: a path leads to a set, a key-value target or
    /// parallel units, or a drive is a SATA drive.
    NotFollowed,
}

impl NoteCode {
    /// All codes.
    pub const ALL: [NoteCode; 11] = [
        NoteCode::UnwrittenReads,
        NoteCode::NotSteady,
        NoteCode::NothingToOrder,
        NoteCode::RequestsRounded,
        NoteCode::NothingIssued,
        NoteCode::HostBound,
        NoteCode::CostsNothing,
        NoteCode::Partial,
        NoteCode::NotPreconditioned,
        NoteCode::TraceIncomplete,
        NoteCode::NotFollowed,
    ];

    /// Returns the code as it appears in results.
    pub fn as_str(self) -> &'static str {
        match self {
            NoteCode::UnwrittenReads => "unwritten-reads",
            NoteCode::NotSteady => "not-steady",
            NoteCode::NothingToOrder => "nothing-to-order",
            NoteCode::RequestsRounded => "requests-rounded",
            NoteCode::NothingIssued => "nothing-issued",
            NoteCode::HostBound => "host-bound",
            NoteCode::CostsNothing => "costs-nothing",
            NoteCode::Partial => "partial",
            NoteCode::NotPreconditioned => "not-preconditioned",
            NoteCode::TraceIncomplete => "trace-incomplete",
            NoteCode::NotFollowed => "not-followed",
        }
    }
}

/// A caveat on a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// Subject of the note.
    pub code: NoteCode,
    /// Name of the drive, if the note is about one.
    pub drive: Option<String>,
    /// Name of the path, if the scenario names paths and the note is about one.
    pub path: Option<String>,
    /// Name of the job, if the note is about one.
    pub job: Option<String>,
    /// Text of the note, on one line.
    pub text: String,
    /// The numbers in the text, by name.
    pub numbers: Vec<(&'static str, Value)>,
}

impl Note {
    fn new(code: NoteCode, text: String) -> Note {
        Note { code, drive: None, path: None, job: None, text, numbers: Vec::new() }
    }

    /// Returns the note that requests were not followed to the flash.
    pub(crate) fn not_followed() -> Note {
        let text = "latencies are not explained: a path leads to a set, a key-value target or parallel \
                    units, or a drive is a SATA drive";
        Note::new(NoteCode::NotFollowed, text.into())
    }

    fn for_drive(mut self, drive: &str) -> Note {
        self.drive = Some(drive.to_owned());
        self
    }

    fn for_job(mut self, job: &str) -> Note {
        self.job = Some(job.to_owned());
        self
    }

    fn with(mut self, name: &'static str, number: impl Into<Value>) -> Note {
        self.numbers.push((name, number.into()));
        self
    }

    /// Returns the note as a JSON object.
    pub fn to_json(&self) -> Value {
        let numbers = self.numbers.iter().map(|(name, n)| ((*name).to_owned(), n.clone()));
        let mut note = json!({
            "code": self.code.as_str(),
            "drive": self.drive,
            "job": self.job,
            "text": self.text,
            "numbers": numbers.collect::<serde_json::Map<String, Value>>(),
        });
        if let Some(path) = &self.path {
            note["path"] = json!(path);
        }
        note
    }
}

/// Returns all notes of an outcome in a fixed order. `from_images` lists the drives that started
/// from an image.
pub(crate) fn notes(
    scenario: &Scenario,
    outcome: &SimOutcome,
    from_images: &[String],
) -> Vec<Note> {
    let mut notes = Vec::new();
    if outcome.partial {
        let text = format!(
            "the run was interrupted after {} of virtual time: results are those up to there",
            duration(outcome.elapsed.0)
        );
        notes.push(Note::new(NoteCode::Partial, text).with("elapsed_ns", outcome.elapsed.0));
    }
    for (path, spec) in outcome.paths.iter().zip(scenario.paths()) {
        let path = NotedPath { path, outcome };
        unwritten_reads(path, &mut notes);
        let is_image = |drive: &usize| {
            let drive = outcome.drives.get(*drive);
            drive.is_some_and(|drive| from_images.contains(&drive.name))
        };
        // A state that was drawn is steady, with few lines reclaimed.
        if !scenario.precondition.sampled || path.path.drives.iter().any(is_image) {
            not_steady(path, &mut notes);
        }
        for drive in &path.path.drives {
            let Some(drive) = outcome.drives.get(*drive) else { continue };
            if from_images.contains(&drive.name) && !scenario.precondition.is_none() {
                let text = format!(
                    "drive {} starts from its image, which is not preconditioned again: \
                     [precondition] had no effect",
                    drive.name
                );
                notes.push(path.annotate(NoteCode::NotPreconditioned, text));
            }
        }
        for job in &path.path.run.jobs {
            job_notes(path, job, outcome.elapsed, &mut notes);
        }
        block_layer_notes(path, spec.config.block_layer.as_ref(), &mut notes);
        let notify = spec.config.notification(&scenario.host);
        let method = notify.policy.method;
        if method.uses_interrupts() && notify.interrupt_cost == Nanos::ZERO {
            let text = format!(
                "completion = \"{}\" costs nothing in virtual time without host.interrupt_cost, which \
                 `sluice calibrate` measures",
                method.word()
            );
            notes.push(path.annotate(NoteCode::CostsNothing, text));
        }
    }
    if outcome.untraced_events > 0 {
        let events = outcome.untraced_events;
        let text = format!(
            "the trace lacks {} events of the block layer, which it had no memory for",
            count(events)
        );
        notes.push(Note::new(NoteCode::TraceIncomplete, text).with("events", events));
    }
    notes
}

/// A path of an outcome.
#[derive(Clone, Copy)]
struct NotedPath<'a> {
    path: &'a PathOutcome,
    outcome: &'a SimOutcome,
}

impl NotedPath<'_> {
    /// Returns a note on the path; without named paths, it is a note on the path's drive.
    fn annotate(self, code: NoteCode, text: String) -> Note {
        let on_path = Note::new(code, text);
        match self.outcome.is_composed {
            true => Note { path: Some(self.path.name.clone()), ..on_path },
            false => on_path.for_drive(&self.path.name),
        }
    }

    /// Returns "drive NAME" or "path NAME".
    fn label(self) -> String {
        let kind = if self.outcome.is_composed { "path" } else { "drive" };
        format!("{kind} {}", self.path.name)
    }
}

fn unwritten_reads(path: NotedPath<'_>, notes: &mut Vec<Note>) {
    let Some(ftl) = path.path.ftl.filter(|f| f.unmapped_reads > 0 && f.host_reads > 0) else {
        return;
    };
    let (unwritten, all) = (ftl.unmapped_reads, ftl.host_reads);
    let share = unwritten as f64 / all as f64;
    let text = format!(
        "{} of {} sectors read on {} were never written: such reads take no time of the flash; \
         fill the drive first, for example with [precondition] fill = \"sequential\"",
        count(unwritten),
        count(all),
        path.label()
    );
    let note = path.annotate(NoteCode::UnwrittenReads, text);
    let note = note.with("unwritten_sectors", unwritten).with("read_sectors", all);
    notes.push(note.with("share", share));
}

/// Adds a note if the drive is not in steady state. The rule decides if preconditioning ran until
/// steady state; otherwise, the amount that GC has written.
fn not_steady(path: NotedPath<'_>, notes: &mut Vec<Note>) {
    if let Some(steady) = &path.path.steady {
        if !steady.reached {
            let text = format!(
                "preconditioning of {} has not come to steady state in {} rounds; missing: {}",
                path.label(),
                steady.rounds.len(),
                steady.missing().join("; ")
            );
            let note = path.annotate(NoteCode::NotSteady, text);
            notes.push(note.with("rounds", steady.rounds.len()));
        }
        return;
    }
    let (Some(ftl), Some(capacity)) = (&path.path.ftl, &path.path.capacity) else { return };
    let before = path.path.ftl_before.map_or(0, |f| f.lines_reclaimed);
    let reclaimed = before + ftl.lines_reclaimed;
    if ftl.host_writes == 0 || reclaimed >= capacity.lines {
        return;
    }
    let text = format!(
        "{} is not in steady state: garbage collection has reclaimed {} lines, preconditioning \
         included, of {}; write amplification, throughput and latency will change as more is written",
        path.label(),
        count(reclaimed),
        count(capacity.lines)
    );
    let note = path.annotate(NoteCode::NotSteady, text);
    notes.push(note.with("lines_reclaimed", reclaimed).with("lines", capacity.lines));
}

fn job_notes(path: NotedPath<'_>, job: &JobResult, elapsed: Nanos, notes: &mut Vec<Note>) {
    let name = &job.spec.name;
    let mut push = |note: Note| {
        let of_path = path.annotate(note.code, note.text);
        notes.push(Note { numbers: note.numbers, ..of_path }.for_job(name));
    };
    if job.requests.issued == 0 {
        push(Note::new(NoteCode::NothingIssued, format!("job {name} issued no request")));
    }
    let fit = &job.trace_adjustments;
    if fit.aligned_requests + fit.wrapped + fit.skipped > 0 {
        let text = format!(
            "requests of job {name}'s trace were changed to fit the drive: {} aligned ({} bytes asked, \
             {} done), {} wrapped around its end, {} left out",
            count(fit.aligned_requests),
            count(fit.bytes_requested),
            count(fit.bytes_issued),
            count(fit.wrapped),
            count(fit.skipped)
        );
        let note = Note::new(NoteCode::RequestsRounded, text);
        let note = note.with("aligned_requests", fit.aligned_requests);
        let note =
            note.with("bytes_asked", fit.bytes_requested).with("bytes_done", fit.bytes_issued);
        push(note.with("wrapped", fit.wrapped).with("left_out", fit.skipped));
    }
    let runtime = job.ended.since(job.started);
    let busy = job.cpu_busy.0 as f64 / runtime.0.max(1) as f64;
    let drive_busy = path.path.utilization_max(path.outcome, elapsed);
    if runtime > Nanos::ZERO && busy >= HOST_BUSY && drive_busy.is_some_and(|b| b < DRIVE_IDLE) {
        let drive_busy = drive_busy.unwrap_or(0.0);
        let text = format!(
            "job {name} was limited by the host, not by the drive: its CPU was busy {:.1} % of the time \
             with [host] costs, the busiest channel or parallel unit {:.1} %",
            busy * 100.0,
            drive_busy * 100.0
        );
        let note = Note::new(NoteCode::HostBound, text).with("cpu_busy_share", busy);
        push(note.with("drive_busy_share", drive_busy));
    }
}

fn block_layer_notes(path: NotedPath<'_>, plan: Option<&BlockLayerSpec>, notes: &mut Vec<Note>) {
    let (Some(plan), Some(layer)) = (plan, &path.path.block_layer) else { return };
    let scheduler = plan.scheduler.name();
    if scheduler == "none" && plan.limits.is_empty() {
        let text = format!(
            "queue_model = \"{}\" costs nothing in virtual time: locks and cache misses of the host are not \
             modelled, so that sq, mq and raw differ only where requests merge or queue",
            layer.kind
        );
        notes.push(path.annotate(NoteCode::CostsNothing, text));
        return;
    }
    let staged = layer.staging.iter().map(|s| s.peak).max().unwrap_or(0);
    if staged > 1 {
        return;
    }
    let what = match (scheduler, plan.limits.is_empty()) {
        ("none", _) => "the groups' limits".to_owned(),
        (scheduler, true) => format!("the scheduler \"{scheduler}\""),
        (scheduler, false) => format!("the scheduler \"{scheduler}\" and the groups' limits"),
    };
    let text = format!(
        "{what} of {} never had two requests to choose from: at most {staged} was staged; \
         hardware queues took every request at once",
        path.label()
    );
    let note = path.annotate(NoteCode::NothingToOrder, text);
    notes.push(note.with("staged_max", staged));
}
