//! The steps of a turn at the staging and the dispatch queue: plugged requests down, staged requests
//! down, completions up.

use clock::Nanos;
use driver::HardwareQueue;

use crate::dispatch::Ended;
use crate::local::Local;
use crate::notes::NO_QUEUE;
use crate::shared::Shared;
use crate::staging::Staging;
use crate::sync::Platform;
use crate::trace::Action;
use crate::{Op, Staged};

/// Lets the plugged requests go.
#[inline]
pub(crate) fn unplug<Q: HardwareQueue, P: Platform>(
    local: &mut Local,
    staging: &mut Staging,
    shared: &mut Shared<Q>,
    now: Nanos,
) -> bool {
    let mut moved = local.is_cutting() && local.cut(now);
    while !local.plug.is_empty() {
        moved = true;
        note_unplug(local, now);
        let mut plug = std::mem::take(&mut local.plug);
        for staged in &plug {
            stage::<Q, P>(local, staging, shared, now, staged);
        }
        plug.clear();
        local.plug = plug;
        if local.is_cutting() {
            local.cut(now);
        }
    }
    moved
}

#[inline]
fn note_unplug(local: &mut Local, now: Nanos) {
    if local.notes.tracer.is_some()
        && let Some(first) = local.plug.first()
    {
        let mut batch = *first;
        batch.request.sectors = local.plug.len() as u32;
        local.notes.note(Action::Unplug, now, &batch, NO_QUEUE);
    }
}

/// Brings one request to the hardware, or into the staging queue.
#[inline(always)]
pub(crate) fn stage<Q: HardwareQueue, P: Platform>(
    local: &mut Local,
    staging: &mut Staging,
    shared: &mut Shared<Q>,
    now: Nanos,
    staged: &Staged,
) {
    let past = staging.may_bypass() || staged.request.op == Op::Flush;
    if past && shared.dispatch.start::<P>(now, staged, &mut local.notes) {
        P::wrote(staging.stats_ref());
        staging.bypassed();
        return;
    }
    if past {
        shared.starve::<P>(local.submitter);
    }
    P::wrote(staging);
    P::wrote(staging.stats_ref());
    insert(local, staging, now, staged);
}

#[inline(never)]
fn insert(local: &mut Local, staging: &mut Staging, now: Nanos, staged: &Staged) {
    local.notes.note(Action::Inserted, now, staged, NO_QUEUE);
    if let Some((side, head)) = staging.insert(now, *staged, local.merger.as_ref()) {
        local.merged(now, staged, side, head);
    }
}

/// Starts staged requests while the hardware has room.
#[inline]
pub(crate) fn run<Q: HardwareQueue, P: Platform>(
    local: &mut Local,
    staging: &mut Staging,
    shared: &mut Shared<Q>,
    now: Nanos,
) -> bool {
    if !shared.dispatch.start_again::<P>(now, &mut local.notes) {
        return false;
    }
    let mut moved = false;
    while !staging.is_empty() && shared.dispatch.may_start() {
        P::wrote(staging);
        let Some(staged) = staging.next(now) else { break };
        let submitter = staged.submitter;
        if !shared.dispatch.start::<P>(now, &staged, &mut local.notes) {
            staging.put_back(now, staged);
            shared.starve::<P>(submitter);
            break;
        }
        if submitter != local.submitter {
            local.stats.carried.add(1);
        }
        moved = true;
    }
    if !staging.is_empty() {
        shared.starve::<P>(local.submitter);
    }
    moved
}

/// Completions found at once, at most: others wait for the lock.
const BUDGET: usize = 256;

/// Takes what has ended off the hardware.
#[inline]
pub(crate) fn collect<Q: HardwareQueue, P: Platform>(
    local: &mut Local,
    staging: &mut Staging,
    shared: &mut Shared<Q>,
    now: Nanos,
) -> bool {
    let mut moved = false;
    for _ in 0..BUDGET {
        // Who finds the end of a request tells the staging queue: a scheduler that wants to hear has
        // one staging queue for all submitters.
        let tell = |staged: &Staged, device| staging.completed(now, staged, device);
        let ended = shared.dispatch.fetch::<P>(now, &mut local.notes, tell);
        let Some(ended) = ended else { break };
        moved = true;
        settle::<Q, P>(local, staging, shared, now, &ended);
    }
    moved
}

/// Completes a request here, or sends it to the core that submitted it.
#[inline]
pub(crate) fn settle<Q: HardwareQueue, P: Platform>(
    local: &mut Local,
    staging: &mut Staging,
    shared: &mut Shared<Q>,
    now: Nanos,
    ended: &Ended,
) {
    if ended.submitter != local.submitter {
        shared.steer::<P>(ended);
        local.stats.found.add(1);
        return;
    }
    shared.feed::<P>();
    if let Some(flush) = local.finish(now, ended) {
        stage::<Q, P>(local, staging, shared, now, &flush);
    }
}
