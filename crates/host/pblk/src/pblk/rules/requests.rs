//! Requests of a target with rules, and the rules that no request begins.

use block::{BlockDevice, Op, QueueFull, Request};
use ftl::{FtlFacts, HostStream, rule_status};
use nvme::Status;
use rules::{InputOp, PlacementStream, RuleAddress, RuleInput, RuleStatus, RuleVerdict};
use time::Nanos;

use super::APP;
use crate::pblk::stripe_layout::StripeMap;
use crate::pblk::{Pblk, check_request};

/// The status of a request that no rule matches.
const UNMATCHED: Status = Status::RULE_MISS.do_not_retry();

/// The result of the input of a request.
enum RequestEnd {
    /// It is executed at this sector; a write in this stream.
    At(u64, HostStream),
    /// It is executed as without rules.
    Unchanged,
    /// It completes with this status and this value.
    Done(Status, u64),
}

/// Returns the operation of a request for rules; `None` if it is no input.
#[inline]
fn op_of(request: &Request) -> Option<InputOp> {
    match request.op {
        Op::Read => Some(InputOp::Read),
        Op::Write => Some(InputOp::Write),
        Op::WriteZeroes if request.deallocate && !request.fua => Some(InputOp::Trim),
        Op::WriteZeroes => Some(InputOp::Write),
        Op::Discard => Some(InputOp::Trim),
        Op::Flush => Some(InputOp::Flush),
        Op::Extents => None,
    }
}

/// Starts a checked request as the rules say.
///
/// # Errors
/// [`QueueFull`]; the request was not accepted, and no rule has run.
#[inline(never)]
pub(in crate::pblk) fn submit(
    pblk: &mut Pblk,
    now: Nanos,
    request: &Request,
) -> Result<(), QueueFull> {
    pblk.check_capacity()?;
    if !is_unchanged(pblk, now, request) {
        return submit_decided(pblk, now, request);
    }
    pblk.begin_in(now, request, StripeMap::CONTIGUOUS, HostStream::Host)
}

/// Returns whether the rules have the target execute a checked request as it is, as they do without
/// an execution. Else nothing is decided.
#[inline(always)]
fn is_unchanged(pblk: &mut Pblk, now: Nanos, request: &Request) -> bool {
    let Some(rules) = &mut pblk.flash.rules else { return true };
    if rules.timers.is_asleep() {
        rules.timers.wake(now);
    }
    let op = match request.op {
        Op::Read => InputOp::Read,
        Op::Write => InputOp::Write,
        _ => return false,
    };
    let input = RuleInput::new(op, request.lba, request.sectors.into());
    rules.engine.decide_unchanged(APP, &input)
}

/// Has the engine decide about a checked request for which there is capacity, and executes the
/// decision.
///
/// # Errors
/// [`QueueFull`]; the request was not accepted.
#[inline(never)]
fn submit_decided(pblk: &mut Pblk, now: Nanos, request: &Request) -> Result<(), QueueFull> {
    let (whole, host) = (StripeMap::CONTIGUOUS, HostStream::Host);
    let (Some(op), Some(rules)) = (op_of(request), &mut pblk.flash.rules) else {
        return pblk.begin_in(now, request, whole, host);
    };
    let input = &RuleInput::new(op, request.lba, request.sectors.into());
    let is_idle = pblk.flash.requests.outstanding() == 0;
    let verdict = rules.decide(input, &FtlFacts::new(&pblk.ftl, is_idle));
    let bad_address = || {
        let status = rule_status(RuleStatus::BadAddress);
        RequestEnd::Done(status, 0)
    };
    let end = match verdict {
        RuleVerdict::Place { stream, mapped: Some(lba), tag: 0 } => match stream {
            PlacementStream::Host => RequestEnd::At(lba, HostStream::Host),
            PlacementStream::Hot => RequestEnd::At(lba, HostStream::Hot),
            PlacementStream::Gc | PlacementStream::Cold => bad_address(),
        },
        RuleVerdict::Read { address: RuleAddress::Mapped { lba }, tag: 0 } => {
            RequestEnd::At(lba, HostStream::Host)
        }
        // Data that is not mapped could not be read again.
        RuleVerdict::Place { .. } | RuleVerdict::Read { .. } => bad_address(),
        RuleVerdict::Complete { status, value } => RequestEnd::Done(rule_status(status), value),
        RuleVerdict::PassThrough => RequestEnd::Unchanged,
        RuleVerdict::Miss => {
            rules.miss(input);
            RequestEnd::Done(UNMATCHED, 0)
        }
        RuleVerdict::Finished => unreachable!("only an input without a request is finished"),
    };
    if matches!(end, RequestEnd::At(_, HostStream::Hot)) {
        rules.stats.hot_sectors += input.sectors;
    }
    match end {
        RequestEnd::Unchanged => pblk.begin_in(now, request, whole, host),
        RequestEnd::At(lba, stream) => {
            let chosen = Request { lba, ..*request };
            let checked = check_request(&pblk.limits, pblk.memory(), &chosen);
            if let Err(status) = checked {
                pblk.complete(request.tag, status, 0);
                return Ok(());
            }
            pblk.begin_in(now, &chosen, whole, stream)
        }
        RequestEnd::Done(status, value) => {
            pblk.complete(request.tag, status, value);
            Ok(())
        }
    }
}

/// Runs the rules that are due at `now`. Returns whether the FTL has a line to relocate.
#[cold]
pub(in crate::pblk) fn run_due(pblk: &mut Pblk, now: Nanos) -> bool {
    let mut relocates = false;
    while let Some(rules) = &mut pblk.flash.rules
        && let Some(rule) = rules.timers.pop_periodic(now)
    {
        let is_idle = pblk.flash.requests.outstanding() == 0;
        let chosen = rules.run_periodic(rule, &FtlFacts::new(&pblk.ftl, is_idle));
        rules.stats.periodic += 1;
        rules.timers.wake(now);
        let is_taken = chosen.is_some_and(|chosen| pblk.ftl.relocate(chosen));
        rules.stats.relocated += u64::from(is_taken);
        relocates |= is_taken;
    }
    let Some(rules) = &mut pblk.flash.rules else { return relocates };
    if !rules.timers.pop_poll(now) {
        return relocates;
    }
    let had_inputs = rules.timers.record_inputs(rules.request_inputs());
    if had_inputs || pblk.flash.requests.outstanding() > 0 || pblk.ftl.is_relocating() {
        rules.timers.wake(now);
        return relocates;
    }
    let chosen = rules.run_background(&FtlFacts::new(&pblk.ftl, true));
    rules.stats.idle_polls += 1;
    if chosen.is_some() {
        rules.timers.wake(now);
    }
    let is_taken = chosen.is_some_and(|chosen| pblk.ftl.relocate(chosen));
    rules.stats.relocated += u64::from(is_taken);
    relocates | is_taken
}
