//! The steps of a run of the staging and dispatch queues: flush the plug, dispatch staged requests,
//! reap completions.

use driver::HardwareQueue;
use time::Nanos;

use crate::dispatch::ReapedRequest;
use crate::dispatch::queue::DispatchQueue;
use crate::staging::Staging;
use crate::submitter::context::SubmitContext;
use crate::submitter::io_hooks::NO_QUEUE;
use crate::sync::Platform;
use crate::trace::Action;
use crate::{Op, StagedRequest};

/// Moves the plugged requests to the dispatch or staging queue.
#[inline]
pub(crate) fn flush_plug<Q: HardwareQueue, P: Platform>(
    local: &mut SubmitContext,
    staging: &mut Staging,
    shared: &mut DispatchQueue<Q>,
    now: Nanos,
) -> bool {
    let mut moved = local.is_splitting() && local.split(now);
    while !local.plug.is_empty() {
        moved = true;
        record_unplug(local, now);
        let mut plug = std::mem::take(&mut local.plug);
        for staged in &plug {
            stage::<Q, P>(local, staging, shared, now, staged);
        }
        plug.clear();
        local.plug = plug;
        if local.is_splitting() {
            local.split(now);
        }
    }
    moved
}

#[inline]
fn record_unplug(local: &mut SubmitContext, now: Nanos) {
    if local.hooks.tracer.is_some()
        && let Some(first) = local.plug.first()
    {
        let mut batch = *first;
        batch.request.sectors = local.plug.len() as u32;
        local.hooks.record(Action::Unplug, now, &batch, NO_QUEUE);
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
