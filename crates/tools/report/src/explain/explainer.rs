//! [`Explainer`]: follows the tracepoints of one drive and derives the waits of each request when
//! it completes.

use std::collections::BTreeMap;
use std::rc::Rc;

use time::Nanos;
use tracepoint::{ArrayOp, Cause, Event, PuOpStep, Record, RequestOp};

use super::critical_path::{Admissions, FlashTimelines, timeline};
use super::in_flight::{
    AdmissionChange, Critical, DRIVE_FTL, FtlId, FtlRequest, LayerEntryId, Origin, PathTag,
    StationVisit, TracedCommand, TracedPuOp,
};
use super::path::WaitPath;
use super::timeline::BusyInterval;
use super::wait::{ResourceUser, WaitKind};
use super::{Background, BackgroundSpan, BusySpan, Explained, ExplanationSink, FlashResource};

/// Number of completed requests between two prunings.
const PRUNE_INTERVAL: u32 = 1024;

/// A request of a job that has not completed.
#[derive(Debug)]
struct OpenRequest {
    serial: u64,
    op: RequestOp,
    lba: u64,
    sectors: u32,
    wanted: Nanos,
    ready: Nanos,
    issued: Nanos,
    arrived: Nanos,
    inner: Inner,
}

/// The part of the stack that a request waited for last.
#[derive(Debug)]
enum Inner {
    /// None: the block layer completed the request itself.
    None,
    Command(Rc<TracedCommand>),
    Target(FtlId, Box<FtlRequest>),
}

/// An entry of the block layer's table.
#[derive(Debug, Default)]
struct BlockLayerEntry {
    tag: Option<PathTag>,
    parent: Option<u32>,
    merged: Vec<u32>,
}

/// An FTL: in a target on the host, or in the drive.
#[derive(Debug, Default)]
struct Ftl {
    /// Per entry of the FTL's table: the caller and the request. Unused for the drive's FTL.
    requests: BTreeMap<u64, (TargetCaller, FtlRequest)>,
    /// Origins of requested operations, by the id that their command carries.
    ops: BTreeMap<u64, Origin>,
    /// Completed commands that the target has not yet reaped.
    posted: BTreeMap<u64, Rc<TracedCommand>>,
    /// The command that the target reaped last.
    last_command: Option<Rc<TracedCommand>>,
    admissions: Admissions,
    gc: BTreeMap<u32, (Nanos, u32)>,
    checkpoint: Option<Nanos>,
}

/// The submitter of a target's request.
#[derive(Clone, Copy, Debug)]
enum TargetCaller {
    /// A job, or a part of the target, by the tag of the request.
    Tag(PathTag),
    /// A block layer, by its entry.
    BlockLayer(LayerEntryId),
}

/// Data of the next records of commands.
#[derive(Debug, Default)]
struct NextCommand {
    /// Block-layer entry that the next command, or the next request of a target, carries.
    entry: Option<LayerEntryId>,
    /// Target operation that the next command carries.
    op: Option<u64>,
}

/// Derives explanations of one drive's requests, on all paths to it. It must receive every record
/// of the drive, in order.
#[derive(Debug, Default)]
pub struct Explainer {
    /// By path: the number of its first job among those of the drive.
    first_jobs: BTreeMap<u16, u32>,
    requests: BTreeMap<PathTag, OpenRequest>,
    serial: u64,
    block_layer: BTreeMap<LayerEntryId, BlockLayerEntry>,
    issuing: NextCommand,
    /// Callers of requests, by the tags that a target on the host uses for them.
    aliases: BTreeMap<PathTag, TargetCaller>,
    ftls: BTreeMap<FtlId, Ftl>,
    /// Commands not yet fetched, by port, queue and identifier.
    submitted: BTreeMap<(u64, u16, u16), TracedCommand>,
    commands: Vec<Option<TracedCommand>>,
    pu_ops: Vec<Option<TracedPuOp>>,
    next_pu_op: u64,
    /// The flash operation part that completed last.
    last_pu_op: Option<TracedPuOp>,
    /// First sector of the next program to be queued, by chunk.
    programs: BTreeMap<u32, Option<u64>>,
    flash: FlashTimelines,
    until_prune: u32,
}

impl Explainer {
    /// Returns an explainer of a drive with several paths. `first_jobs` has the number of the first
    /// job of each path; jobs are numbered over all paths of the drive, with clones counted one by
    /// one.
    pub fn with_paths(first_jobs: impl IntoIterator<Item = (u16, u32)>) -> Explainer {
        Explainer { first_jobs: first_jobs.into_iter().collect(), ..Explainer::default() }
    }

    /// Returns the job of a request, in the numbering of the drive.
    fn job(&self, PathTag { path, tag }: PathTag) -> u32 {
        let first = self.first_jobs.get(&path).copied().unwrap_or(0);
        first + workload::job_index_of_tag(tag) as u32
    }

    /// Processes the next record.
    pub fn feed(&mut self, record: &Record, sink: &mut dyn ExplanationSink) {
        let Record { at, path, target, event, .. } = *record;
        match event {
            Event::RequestIssued { .. }
            | Event::RequestCompleted { .. }
            | Event::RequestReaped { .. } => self.on_job_event(at, path, event, sink),
            Event::LayerQueued { .. }
            | Event::LayerMerged { .. }
            | Event::LayerSplit { .. }
            | Event::LayerIssued { .. } => self.on_block_layer_event(path, event),
            Event::TargetAlias { alias: name, tag } => {
                let caller = self.target_caller(PathTag { path, tag });
                self.aliases.insert(PathTag { path, tag: name }, caller);
            }
            Event::TargetRequest { .. }
            | Event::TargetOp { .. }
            | Event::TargetIssued { .. }
            | Event::TargetOpCompleted { .. } => self.on_target_event(record),
            Event::CommandSubmitted { .. }
            | Event::CommandFetched { .. }
            | Event::CommandStage { .. }
            | Event::CommandStarted { .. }
            | Event::CommandCompleted { .. }
            | Event::CommandPosted { .. } => self.on_command_event(at, path, event),
            Event::FtlQueued { .. }
            | Event::FtlAdmitted { .. }
            | Event::FtlFlush { .. }
            | Event::FtlMapWait { .. }
            | Event::FtlCompleted { .. } => self.on_ftl_event(record, sink),
            Event::FtlAdmission { state } => {
                let admissions = &mut self.ftls.entry((path, target)).or_default().admissions;
                if admissions.back().is_none_or(|last| last.state != state) {
                    admissions.push_back(AdmissionChange { at, state });
                }
            }
            Event::FtlProgram { chunk, lba } => {
                self.programs.insert(chunk, lba);
            }
            Event::GcBegins { .. }
            | Event::GcEnds { .. }
            | Event::CheckpointBegins
            | Event::CheckpointEnds => self.on_background_event(record, sink),
            Event::PuOpQueued { .. }
            | Event::PuOpProgress { .. }
            | Event::ArrayBusy { .. }
            | Event::ChannelBusy { .. } => self.on_flash_event(at, event, sink),
        }
    }

    /// Returns the request with a tag. A fragment of it may be in flight before the job has issued
    /// all of it.
    fn open_request(&mut self, tag: PathTag) -> &mut OpenRequest {
        let serial = &mut self.serial;
        self.requests.entry(tag).or_insert_with(|| {
            *serial += 1;
            OpenRequest {
                serial: *serial,
                op: RequestOp::Read,
                lba: 0,
                sectors: 0,
                wanted: Nanos::MAX,
                ready: Nanos::MAX,
                issued: Nanos::MAX,
                arrived: Nanos::MAX,
                inner: Inner::None,
            }
        })
    }

    fn on_job_event(&mut self, at: Nanos, path: u16, event: Event, sink: &mut dyn ExplanationSink) {
        match event {
            Event::RequestIssued { tag, op, lba, sectors, intended_at: wanted, ready } => {
                let open = self.open_request(PathTag { path, tag });
                (open.op, open.lba, open.sectors) = (op, lba, sectors);
                (open.wanted, open.ready, open.issued) = (wanted, ready, at);
            }
            Event::RequestCompleted { tag } => {
                self.open_request(PathTag { path, tag }).arrived = at;
            }
            Event::RequestReaped { tag, at, measured } => {
                let tag = PathTag { path, tag };
                if let Some(open) = self.requests.remove(&tag) {
                    sink.request(&self.explain(tag, &open, at, measured));
                }
                self.until_prune = self.until_prune.checked_sub(1).unwrap_or_else(|| {
                    self.prune();
                    PRUNE_INTERVAL
                });
            }
            _ => {}
        }
    }

    fn explain(&self, tag: PathTag, open: &OpenRequest, ended: Nanos, measured: bool) -> Explained {
        let mut path = WaitPath::new(open.wanted, ended);
        path.add_wait(open.ready, WaitKind::HostSubmit);
        path.add_wait(open.issued, WaitKind::DeviceFull);
        match &open.inner {
            Inner::None => path.add_wait(open.arrived, WaitKind::BlockLayer),
            Inner::Command(command) => {
                path.add_wait(command.submitted, WaitKind::BlockLayer);
                let admissions = self.ftls.get(&DRIVE_FTL).map(|ftl| &ftl.admissions);
                self.flash.command(&mut path, command, admissions);
            }
            Inner::Target(ftl, request) => {
                path.add_wait(request.began, WaitKind::Target);
                let none = Admissions::new();
                let admissions = self.ftls.get(ftl).map_or(&none, |ftl| &ftl.admissions);
                self.flash.ftl(&mut path, request, admissions);
            }
        }
        path.add_wait(open.arrived, WaitKind::CompletionQueue);
        path.add_wait(ended, WaitKind::HostComplete);
        Explained {
            serial: open.serial,
            path: tag.path,
            job: self.job(tag),
            slot: tag.tag as u32,
            op: open.op,
            lba: open.lba,
            sectors: open.sectors,
            start: open.wanted,
            issued: open.issued,
            latency: ended.since(open.wanted),
            measured,
            waits: path.finish(),
        }
    }

    /// Removes the data that no open request can have waited for.
    fn prune(&mut self) {
        let horizon = self.requests.values().map(|open| open.wanted).min().unwrap_or(Nanos::ZERO);
        for timeline in self.flash.pus.iter_mut().chain(&mut self.flash.channels) {
            timeline.prune(horizon);
        }
        for ftl in self.ftls.values_mut() {
            while ftl.admissions.get(1).is_some_and(|second| second.at < horizon) {
                ftl.admissions.pop_front();
            }
        }
    }

    fn on_block_layer_event(&mut self, path: u16, event: Event) {
        let entry_id = |submitter, id| LayerEntryId { path, submitter, id };
        match event {
            Event::LayerQueued { submitter, id, tag } => {
                let tag = Some(PathTag { path, tag });
                let entry = BlockLayerEntry { tag, ..BlockLayerEntry::default() };
                self.block_layer.insert(entry_id(submitter, id), entry);
            }
            Event::LayerMerged { submitter, head, id } => {
                if let Some(entry) = self.block_layer.get_mut(&entry_id(submitter, head)) {
                    entry.merged.push(id);
                }
            }
            Event::LayerSplit { submitter, parent, id } => {
                let entry = BlockLayerEntry { parent: Some(parent), ..BlockLayerEntry::default() };
                self.block_layer.insert(entry_id(submitter, id), entry);
            }
            Event::LayerIssued { submitter, id } => {
                self.issuing.entry = Some(entry_id(submitter, id));
            }
            _ => {}
        }
    }

    /// Returns the tags of all requests that an entry of the block layer carries.
    fn block_layer_tags(&self, entry: LayerEntryId) -> Vec<PathTag> {
        let (mut tags, mut rest) = (Vec::new(), vec![entry.id]);
        while let Some(id) = rest.pop() {
            let Some(entry) = self.block_layer.get(&LayerEntryId { id, ..entry }) else { continue };
            tags.extend(entry.tag);
            rest.extend(entry.parent);
            rest.extend(&entry.merged);
        }
        tags
    }

    fn on_target_event(&mut self, record: &Record) {
        let Record { at, path, target, event, .. } = *record;
        let id = (path, target);
        if let Event::TargetIssued { user } = event {
            self.issuing.op = Some(user);
            return;
        }
        if let Event::TargetRequest { index: place, tag } = event {
            let request = FtlRequest { began: at, ..FtlRequest::default() };
            let caller = self.target_caller(PathTag { path, tag });
            let ftl = self.ftls.entry(id).or_default();
            ftl.requests.insert(place, (caller, request));
            return;
        }
        let ftl = self.ftls.entry(id).or_default();
        match event {
            Event::TargetOp { user, cause, request, lba } => {
                ftl.ops.insert(user, Origin::Target { ftl: id, cause, request, lba });
            }
            Event::TargetOpCompleted { user } => {
                let Some(command) = ftl.posted.remove(&user) else { return };
                if let Origin::Target { request: Some(place), .. } = command.origin
                    && let Some((_, request)) = ftl.requests.get_mut(&place)
                {
                    request.critical = Some(Critical::Command(command.clone()));
                }
                ftl.last_command = Some(command);
            }
            _ => {}
        }
    }

    fn on_command_event(&mut self, at: Nanos, path: u16, event: Event) {
        match event {
            Event::CommandSubmitted { port, qid, cid, user } => {
                let (entry, op) = (self.issuing.entry.take(), self.issuing.op.take());
                let id = (path, qid);
                let user = op.unwrap_or(user);
                let origin = match (entry, self.ftls.get_mut(&id).filter(|_| qid > 0)) {
                    (Some(entry), None) => Origin::BlockLayer(entry),
                    (_, Some(ftl)) => {
                        let (cause, request, lba) = (Cause::Metadata, None, None);
                        let own = Origin::Target { ftl: id, cause, request, lba };
                        ftl.ops.remove(&user).unwrap_or(own)
                    }
                    (None, None) => Origin::Request(PathTag { path, tag: user }),
                };
                let command = TracedCommand {
                    origin,
                    user_data: user,
                    submitted: at,
                    ..TracedCommand::default()
                };
                self.submitted.insert((port, qid, cid), command);
            }
            Event::CommandFetched { id, port, qid, cid } => {
                let mut command = self.submitted.remove(&(port, qid, cid)).unwrap_or_default();
                (command.fetched, command.started, command.ended) = (at, at, Nanos::MAX);
                let id = id as usize;
                if self.commands.len() <= id {
                    self.commands.resize_with(id + 1, || None);
                }
                self.commands[id] = Some(command);
            }
            Event::CommandStage { id, stage: station, start, end } => {
                if let Some(command) = self.command_mut(id) {
                    command.visits.push(StationVisit { station, start, end });
                }
            }
            Event::CommandStarted { id } => {
                if let Some(command) = self.command_mut(id) {
                    command.started = at;
                }
            }
            Event::CommandCompleted { id } => {
                if let Some(command) = self.command_mut(id) {
                    command.ended = at;
                }
            }
            Event::CommandPosted { id } => self.on_command_posted(at, id),
            _ => {}
        }
    }

    fn command_mut(&mut self, id: u32) -> Option<&mut TracedCommand> {
        self.commands.get_mut(id as usize)?.as_mut()
    }

    fn on_command_posted(&mut self, at: Nanos, id: u32) {
        let Some(mut command) = self.commands.get_mut(id as usize).and_then(Option::take) else {
            return;
        };
        command.posted = at;
        let command = Rc::new(command);
        let tags = match command.origin {
            Origin::Unknown => Vec::new(),
            Origin::Request(tag) => vec![tag],
            Origin::BlockLayer(entry) => self.block_layer_tags(entry),
            Origin::Target { ftl, .. } => {
                self.ftls.entry(ftl).or_default().posted.insert(command.user_data, command);
                return;
            }
        };
        for tag in tags {
            if let Some(open) = self.requests.get_mut(&tag) {
                open.inner = Inner::Command(command.clone());
            }
        }
    }

    fn on_ftl_event(&mut self, record: &Record, sink: &mut dyn ExplanationSink) {
        let Record { at, path, target, event, .. } = *record;
        let ftl = (path, target);
        let (Event::FtlQueued { tag }
        | Event::FtlAdmitted { tag, .. }
        | Event::FtlFlush { tag }
        | Event::FtlMapWait { tag }
        | Event::FtlCompleted { tag }) = event
        else {
            return;
        };
        let last = self.last_operation(ftl).filter(Critical::is_program);
        let Some(request) = self.ftl_request(at, ftl, tag) else { return };
        match event {
            Event::FtlQueued { .. } => request.queued = Some(at),
            Event::FtlAdmitted { durable, .. } => {
                request.admitted = Some((at, durable));
                request.slot_freed_by = last;
            }
            Event::FtlFlush { .. } => request.is_flush = true,
            Event::FtlMapWait { .. } => request.waited_for_map = true,
            _ => self.on_ftl_complete(record, tag, sink),
        }
    }

    fn ftl_request(&mut self, at: Nanos, ftl: FtlId, tag: u64) -> Option<&mut FtlRequest> {
        if ftl == DRIVE_FTL {
            // The upper half of a tag tells a part of the command.
            let command = self.command_mut(tag as u32)?;
            let began = FtlRequest { began: at, ..FtlRequest::default() };
            return Some(command.ftl.get_or_insert(began));
        }
        let request = self.ftls.get_mut(&ftl)?.requests.get_mut(&tag)?;
        Some(&mut request.1)
    }

    /// Returns the operation whose completion an FTL reaped last.
    fn last_operation(&self, ftl: FtlId) -> Option<Critical> {
        match ftl {
            DRIVE_FTL => self.last_pu_op.map(Critical::PuOp),
            host => self.ftls.get(&host)?.last_command.clone().map(Critical::Command),
        }
    }

    /// Processes the completion of an FTL's request. If it waited for the flash, its critical
    /// operation is the one that completed last.
    fn on_ftl_complete(&mut self, record: &Record, tag: u64, sink: &mut dyn ExplanationSink) {
        let Record { at, path, target, .. } = *record;
        let ftl = (path, target);
        let last = self.last_operation(ftl);
        let Some(request) = self.ftl_request(at, ftl, tag) else { return };
        request.ended = at;
        let durable = request.admitted.is_some_and(|(_, durable)| durable);
        if (request.is_flush || durable) && at > request.began {
            request.critical = last;
        }
        if request.is_flush {
            let (path, start, end) = (host_path(record), request.began, at);
            sink.background(&BackgroundSpan { work: Background::Flush, path, start, end });
        }
        if ftl == DRIVE_FTL {
            return;
        }
        let ended = self.ftls.get_mut(&ftl).and_then(|ftl| ftl.requests.remove(&tag));
        let Some((caller, request)) = ended else { return };
        for tag in self.tags_of_caller(caller) {
            if let Some(open) = self.requests.get_mut(&tag) {
                open.inner = Inner::Target(ftl, Box::new(request.clone()));
            }
        }
    }

    fn on_background_event(&mut self, record: &Record, sink: &mut dyn ExplanationSink) {
        let Record { at, path, target, event, .. } = *record;
        let ftl = self.ftls.entry((path, target)).or_default();
        let ended = match event {
            Event::GcBegins { line, valid } => {
                ftl.gc.insert(line, (at, valid));
                None
            }
            Event::GcEnds { line } => {
                ftl.gc.remove(&line).map(|(start, valid)| (Background::Gc { line, valid }, start))
            }
            Event::CheckpointBegins => {
                ftl.checkpoint = Some(at);
                None
            }
            _ => ftl.checkpoint.take().map(|start| (Background::Checkpoint, start)),
        };
        if let Some((work, start)) = ended {
            let path = host_path(record);
            sink.background(&BackgroundSpan { work, path, start, end: at });
        }
    }

    fn on_flash_event(&mut self, at: Nanos, event: Event, sink: &mut dyn ExplanationSink) {
        match event {
            Event::PuOpQueued { pu_op: part, pu, chunk, op, cause, command } => {
                self.on_pu_op_queued(at, part, (pu, chunk, op), cause, command);
            }
            Event::PuOpProgress { pu_op: part, step } => self.on_pu_op_step(at, part, step),
            Event::ArrayBusy { pu_op: part, pu, op, start, end } => {
                let Some(&Some(part)) = self.pu_ops.get(part as usize) else { return };
                let kind = WaitKind::PuBusy(op, resource_user(&part));
                let busy = BusyInterval { start, end, pu_op: part.serial, kind };
                timeline(&mut self.flash.pus, pu).push(busy);
                sink.busy(&span(&part, FlashResource::Pu(pu), start, end));
            }
            Event::ChannelBusy { pu_op: part, channel, start, end } => {
                let Some(Some(part)) = self.pu_ops.get_mut(part as usize) else { return };
                part.channel = channel;
                let kind = WaitKind::ChannelBusy(resource_user(part));
                let busy = BusyInterval { start, end, pu_op: part.serial, kind };
                timeline(&mut self.flash.channels, channel).push(busy);
                sink.busy(&span(part, FlashResource::Channel(channel), start, end));
            }
            _ => {}
        }
    }

    fn on_pu_op_queued(
        &mut self,
        at: Nanos,
        id: u32,
        (pu, chunk, op): (u32, u32, ArrayOp),
        cause: Cause,
        command: Option<u32>,
    ) {
        let origin = command.and_then(|id| self.command_mut(id)).map(|command| command.origin);
        let (cause, tag, lba) = match origin {
            None | Some(Origin::Unknown) => (cause, None, None),
            Some(Origin::Request(tag)) => (cause, Some(tag), None),
            Some(Origin::BlockLayer(entry)) => {
                (cause, self.block_layer_tags(entry).first().copied(), None)
            }
            Some(Origin::Target { ftl, cause, request, lba }) => {
                (cause, request.and_then(|place| self.target_tag(ftl, place)), lba)
            }
        };
        let open = tag.and_then(|tag| self.requests.get(&tag));
        let program = match op {
            ArrayOp::Program => self.programs.remove(&chunk).flatten(),
            ArrayOp::Read | ArrayOp::Erase => None,
        };
        self.next_pu_op += 1;
        let part = TracedPuOp {
            serial: self.next_pu_op,
            pu,
            chunk,
            op,
            cause,
            job: tag.filter(|_| open.is_some()).map(|tag| self.job(tag)),
            request: open.map(|open| open.serial),
            lba: lba.or(program).or(open.map(|open| open.lba)),
            command,
            queued: at,
            staging: None,
            staged: None,
            array_begins: None,
            array_ends: None,
            ended: at,
            channel: u32::MAX,
        };
        let id = id as usize;
        if self.pu_ops.len() <= id {
            self.pu_ops.resize(id + 1, None);
        }
        self.pu_ops[id] = Some(part);
    }

    /// Returns the caller of the request that a target gets now, with this tag.
    fn target_caller(&mut self, tag: PathTag) -> TargetCaller {
        match self.issuing.entry.take() {
            Some(entry) => TargetCaller::BlockLayer(entry),
            None => TargetCaller::Tag(tag),
        }
    }

    /// Returns the tags of the jobs' requests that a caller's request carries.
    fn tags_of_caller(&self, caller: TargetCaller) -> Vec<PathTag> {
        let caller = match caller {
            TargetCaller::Tag(tag) => self.aliases.get(&tag).copied().unwrap_or(caller),
            caller => caller,
        };
        match caller {
            TargetCaller::Tag(tag) => vec![tag],
            TargetCaller::BlockLayer(entry) => self.block_layer_tags(entry),
        }
    }

    /// Returns the tag of a job's request that a target's request carries.
    fn target_tag(&self, ftl: FtlId, place: u64) -> Option<PathTag> {
        let (caller, _) = self.ftls.get(&ftl)?.requests.get(&place)?;
        self.tags_of_caller(*caller).first().copied()
    }

    fn on_pu_op_step(&mut self, at: Nanos, id: u32, step: PuOpStep) {
        let Some(slot) = self.pu_ops.get_mut(id as usize) else { return };
        let Some(part) = slot else { return };
        match step {
            PuOpStep::Staging => part.staging = Some(at),
            PuOpStep::Staged => part.staged = Some(at),
            PuOpStep::ArrayBegins => part.array_begins = part.array_begins.or(Some(at)),
            PuOpStep::ArrayEnds => {
                part.array_begins = part.array_begins.or(Some(at));
                part.array_ends = Some(at);
            }
            PuOpStep::Done => {
                part.ended = at;
                let part = *part;
                *slot = None;
                if let (ArrayOp::Read, Some(start)) = (part.op, part.array_ends) {
                    let kind = WaitKind::RegisterBusy(resource_user(&part));
                    let busy = BusyInterval { start, end: at, pu_op: part.serial, kind };
                    timeline(&mut self.flash.pus, part.pu).push(busy);
                }
                if let Some(command) = part.command.and_then(|id| self.command_mut(id)) {
                    command.last_pu_op = Some(part);
                }
                self.last_pu_op = Some(part);
            }
        }
    }
}

/// Returns the path of an event of an FTL, if the FTL is in the host.
fn host_path(record: &Record) -> Option<u16> {
    (record.target != 0).then_some(record.path)
}

fn resource_user(part: &TracedPuOp) -> ResourceUser {
    ResourceUser { cause: part.cause, job: part.job }
}

fn span(part: &TracedPuOp, on: FlashResource, start: Nanos, end: Nanos) -> BusySpan {
    let TracedPuOp { op, cause, request, lba, chunk, .. } = *part;
    BusySpan { on, op, start, end, cause, request, lba, chunk }
}
