//! The steps of a run of the staging and dispatch queues: flush the plug, dispatch staged requests,
//! reap completions.

use driver::{HardwareQueue, Tag};
use time::Nanos;

use crate::dispatch::ReapedRequest;
use crate::dispatch::queue::DispatchQueue;
use crate::staging::Staging;
use crate::submitter::context::SubmitContext;
use crate::submitter::io_hooks::NO_QUEUE;
use crate::sync::{Platform, Step};
use crate::trace::Action;
use crate::{Op, Request, StagedRequest};

/// Moves the plugged requests to the dispatch or staging queue.
#[inline]
pub(crate) fn flush_plug<Q: HardwareQueue, P: Platform>(
    local: &mut SubmitContext,
    staging: &mut Staging,
    shared: &mut DispatchQueue<Q>,
    now: Nanos,
) -> bool {
    let mut moved = start_plugged::<Q, P>(local, staging, shared, now).is_some();
    moved |= local.is_splitting() && local.split(now);
    local.plug.flush_slots();
    while !local.plug.requests.is_empty() {
        moved = true;
        record_unplug(local, now);
        let mut plug = std::mem::take(&mut local.plug.requests);
        for staged in &plug {
            stage::<Q, P>(local, staging, shared, now, staged);
        }
        plug.clear();
        local.plug.requests = plug;
        if local.is_splitting() {
            local.split(now);
        }
    }
    moved
}

#[inline]
fn record_unplug(local: &mut SubmitContext, now: Nanos) {
    if local.hooks.tracer.is_some()
        && let Some(first) = local.plug.requests.first()
    {
        let mut batch = *first;
        batch.request.sectors = local.plug.requests.len() as u32;
        local.hooks.record(Action::Unplug, now, &batch, NO_QUEUE);
    }
}

/// Starts the plugged request that waits in a slot, or inserts it into the staging queue. Returns
/// whether it was started; `None` if there is none.
#[inline(always)]
pub(crate) fn start_plugged<Q: HardwareQueue, P: Platform>(
    local: &mut SubmitContext,
    staging: &mut Staging,
    shared: &mut DispatchQueue<Q>,
    now: Nanos,
) -> Option<bool> {
    let tag = local.plug.take_slot()?;
    if P::OBSERVES && local.hooks.is_enabled() {
        let mut batch = *shared.dispatch.slot(tag);
        batch.request.sectors = 1;
        local.hooks.record(Action::Unplug, now, &batch, NO_QUEUE);
    }
    let is_started = shared.dispatch.start_slot::<P>(now, tag, &mut local.hooks);
    if is_started {
        P::wrote(staging.stats_ref());
        staging.bypassed();
    } else {
        stage_unbound::<Q, P>(local, staging, shared, now, tag);
    }
    Some(is_started)
}

/// Inserts a request whose command was not bound to `tag`.
#[cold]
fn stage_unbound<Q: HardwareQueue, P: Platform>(
    local: &mut SubmitContext,
    staging: &mut Staging,
    shared: &mut DispatchQueue<Q>,
    now: Nanos,
    tag: Tag,
) {
    shared.mark_starved::<P>(local.submitter);
    let staged = *shared.dispatch.slot(tag);
    P::work(Step::Stage, 1);
    insert(local, staging, now, &staged);
}

/// Plugs a request in a slot. The request that waited there is started. Returns `false` and leaves
/// the request to the caller if there is no slot, or the two requests may be merged.
#[inline(always)]
pub(crate) fn plug_in_slot<Q: HardwareQueue, P: Platform>(
    local: &mut SubmitContext,
    staging: &mut Staging,
    shared: &mut DispatchQueue<Q>,
    now: Nanos,
    id: u32,
    request: &Request,
) -> bool {
    if let Some(tag) = local.plug.slot()
        && (shared.dispatch.slot(tag).is_adjacent(request)
            || start_plugged::<Q, P>(local, staging, shared, now) == Some(false))
    {
        return false;
    }
    let (submitter, group) = (local.submitter, local.group);
    let write = |slot: &mut StagedRequest| {
        let request = Request { tag: id.into(), ..*request };
        *slot = StagedRequest { request, since: now, submitter, group, merged: 1, requeues: 0 };
    };
    let Some(tag) = shared.dispatch.reserve_slot::<P>(write) else { return false };
    local.plug.set_slot(tag);
    if P::OBSERVES && local.hooks.is_enabled() {
        let staged = *shared.dispatch.slot(tag);
        local.hooks.record(Action::GotRequest, now, &staged, NO_QUEUE);
        local.hooks.record(Action::Plug, now, &staged, NO_QUEUE);
    }
    true
}

/// Moves the plugged request that waits in a slot into the list of plugged requests, and frees its
/// tag.
#[cold]
pub(crate) fn leave_slot<Q: HardwareQueue>(
    local: &mut SubmitContext,
    shared: &mut DispatchQueue<Q>,
) {
    if let Some(tag) = local.plug.slot() {
        local.plug.move_from_slot(shared.dispatch.free_slot(tag));
    }
}

/// Starts a request, or inserts it into the staging queue.
#[inline(always)]
pub(crate) fn stage<Q: HardwareQueue, P: Platform>(
    local: &mut SubmitContext,
    staging: &mut Staging,
    shared: &mut DispatchQueue<Q>,
    now: Nanos,
    staged: &StagedRequest,
) {
    P::work(Step::Unplug, 1);
    let past = staging.can_bypass_scheduler() || staged.request.op == Op::Flush;
    if past && shared.dispatch.start::<P>(now, staged, &mut local.hooks) {
        P::wrote(staging.stats_ref());
        staging.bypassed();
        return;
    }
    if past {
        shared.mark_starved::<P>(local.submitter);
    }
    P::wrote(staging);
    P::wrote(staging.stats_ref());
    P::work(Step::Stage, 1);
    insert(local, staging, now, staged);
}

#[inline(never)]
fn insert(local: &mut SubmitContext, staging: &mut Staging, now: Nanos, staged: &StagedRequest) {
    local.hooks.record(Action::Inserted, now, staged, NO_QUEUE);
    if let Some((side, head)) = staging.insert(now, *staged, local.merger.as_ref()) {
        local.on_merged(now, staged, side, head);
    }
}

/// Starts staged requests while the hardware queue has tags.
#[inline]
pub(crate) fn run_staging<Q: HardwareQueue, P: Platform>(
    local: &mut SubmitContext,
    staging: &mut Staging,
    shared: &mut DispatchQueue<Q>,
    now: Nanos,
) -> bool {
    if !shared.dispatch.start_requeued::<P>(now, &mut local.hooks) {
        return false;
    }
    let mut moved = false;
    while !staging.is_empty() && shared.dispatch.can_start() {
        P::wrote(staging);
        let Some(staged) = staging.dispatch(now) else { break };
        let submitter = staged.submitter;
        if !shared.dispatch.start::<P>(now, &staged, &mut local.hooks) {
            staging.requeue(now, staged);
            shared.mark_starved::<P>(submitter);
            break;
        }
        if submitter != local.submitter {
            local.stats.issued_for_others.add(1);
        }
        moved = true;
    }
    if !staging.is_empty() {
        shared.mark_starved::<P>(local.submitter);
    }
    moved
}

/// Maximum number of completions fetched per run; it bounds the time that others wait for the lock.
const REAP_BUDGET: usize = 256;

/// Fetches completions from the hardware queue.
#[inline]
pub(crate) fn reap_hw<Q: HardwareQueue, P: Platform>(
    local: &mut SubmitContext,
    staging: &mut Staging,
    shared: &mut DispatchQueue<Q>,
    now: Nanos,
) -> bool {
    let mut moved = false;
    for _ in 0..REAP_BUDGET {
        // The core that finds a completion reports it to its own staging queue. That is the right
        // one: a scheduler that needs completions has one staging queue for all submitters.
        let tell = |staged: &StagedRequest, device| staging.completed(now, staged, device);
        let ended = shared.dispatch.fetch::<P>(now, &mut local.hooks, tell);
        let Some(ended) = ended else { break };
        moved = true;
        complete_or_steer::<Q, P>(local, staging, shared, now, &ended);
    }
    moved
}

/// Completes a request of this submitter, or steers it to the core that submitted it.
#[inline]
pub(crate) fn complete_or_steer<Q: HardwareQueue, P: Platform>(
    local: &mut SubmitContext,
    staging: &mut Staging,
    shared: &mut DispatchQueue<Q>,
    now: Nanos,
    ended: &ReapedRequest,
) {
    P::work(Step::Deliver, 1);
    if ended.submitter != local.submitter {
        shared.steer::<P>(ended);
        local.stats.reaped_for_others.add(1);
        return;
    }
    shared.wake_starved::<P>();
    if let Some(flush) = local.complete(now, ended) {
        stage::<Q, P>(local, staging, shared, now, &flush);
    }
}
