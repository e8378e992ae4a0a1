//! The steps of a controller with registers: enable, disable, shutdown, failure, removal.

use nvme::register::CC;
use nvme::{AsyncEvent, CcSettings, ErrorEntry, IoCommand, ShutdownRequest, Status};
use time::Nanos;
use transport::{CqProducer, MAX_QUEUES, Port, SqConsumer};

use super::{AdminQueueRegisters, ControllerPhase, RegisterFile, Shutdown, shutdown_queue};
use crate::admin::async_events::EventClass;
use crate::admin::{AdminState, FailedCommand};
use crate::controller::Controller;
use crate::faults::injection;
use crate::host_interface::hosts::HostState;
use crate::personality::rules::installation;

/// Queues whose doorbells are checked in one poll.
const DOORBELLS_PER_POLL: u16 = 8;

/// Bytes of controller registers before the doorbells.
const REGISTER_BYTES: usize = 0x1000;

/// Calls `what` with the registers of each attached host.
fn for_each(
    controller: &mut Controller,
    mut what: impl FnMut(&mut Controller, usize, &mut RegisterFile),
) {
    for host in 0..controller.queues.ports.len() {
        let Some(mut file) = controller.queues.ports[host].registers.take() else { continue };
        if controller.queues.ports[host].state == HostState::Attached {
            what(controller, host, &mut file);
            if file.publish(&controller.queues.ports[host].port) {
                controller.queues.count_register_change();
            }
        }
        controller.queues.ports[host].registers = Some(file);
    }
}

/// Reads the registers of all hosts, and does what they ask for.
#[cold]
pub(crate) fn poll(controller: &mut Controller, now: Nanos) {
    for_each(controller, |controller, host, file| {
        let port = controller.queues.ports[host].port.clone();
        step(controller, host, file, &port, now);
        if let Some(region) = &mut file.region {
            let status = controller.commands.refused_with;
            region.step(&port, status == Some(Status::SANITIZE_IN_PROGRESS));
        }
        check_doorbells(controller, host, file, &port);
    });
    injection::update_interrupt(controller);
}

/// Lets the controllers become ready whose time has come, and fails those whose keep alive timer has
/// ended.
pub(crate) fn end_timers(controller: &mut Controller, now: Nanos) {
    if controller.queues.has_registers {
        for_each(controller, |controller, host, file| {
            finish_start(controller, host, file, now);
            if file.keep_alive_ends <= now {
                file.keep_alive_ends = Nanos::MAX;
                fail_host(controller, host, file, "the keep alive timer has ended");
                abandon(controller, host);
            }
        });
    }
}

/// Returns the time at which the next controller becomes ready, or the next keep alive timer ends.
pub(crate) fn next_timer(controller: &Controller) -> Nanos {
    let files = controller.queues.ports.iter().filter_map(|port| port.registers.as_ref());
    let times = files.map(|file| match file.phase {
        ControllerPhase::Starting(at, _) => at,
        _ => file.keep_alive_ends,
    });
    times.min().unwrap_or(Nanos::MAX)
}

/// Restarts the keep alive timer of a host, with the timeout in force.
pub(crate) fn restart_keep_alive(controller: &mut Controller, host: usize, now: Nanos) {
    let timeout = admin_of(controller, host).keep_alive();
    if let Some(file) = &mut controller.queues.ports[host].registers {
        file.keep_alive_ends = timeout.map_or(Nanos::MAX, |timeout| now + timeout);
    }
    injection::update_interrupt(controller);
}

/// Whether a host has enabled the controller by its registers, and it has not failed.
pub(crate) fn is_running(controller: &Controller) -> bool {
    let mut files = controller.queues.ports.iter().filter_map(|port| port.registers.as_ref());
    files.any(|file| matches!(file.phase, ControllerPhase::Running))
}

/// Fails the controllers that run: they execute and complete nothing until they are reset. Returns
/// the number of I/O commands in flight, which do not complete.
pub(crate) fn fail(controller: &mut Controller) -> u64 {
    let outstanding = controller.commands.outstanding() as u64;
    for_each(controller, |controller, host, file| {
        if matches!(file.phase, ControllerPhase::Running) {
            report_internal_error(controller, host);
            fail_host(controller, host, file, "a fault");
            abandon(controller, host);
        }
    });
    outstanding
}

/// Has all registers read as ones, as those of a controller that left the bus.
pub(crate) fn remove(port: &Port) {
    if port.has_registers() {
        for offset in (0..REGISTER_BYTES).step_by(4) {
            port.set_register(offset, u32::MAX);
        }
    }
}

/// Does what the registers of a host ask for.
fn step(
    controller: &mut Controller,
    host: usize,
    file: &mut RegisterFile,
    port: &Port,
    now: Nanos,
) {
    let wanted = CcSettings::from_value(port.register(CC));
    match (file.phase, wanted.enabled) {
        (ControllerPhase::Disabled, true) => {
            match file.admin_queues(port, wanted) {
                Ok(queues) => {
                    let registers = controller.config.controller.registers.unwrap_or_default();
                    let at = now + controller.effective_time(registers.ready_time);
                    file.phase = ControllerPhase::Starting(at, queues);
                }
                Err(register) => fail_host(controller, host, file, register),
            }
            finish_start(controller, host, file, now);
        }
        (ControllerPhase::Starting(..), true) => finish_start(controller, host, file, now),
        (ControllerPhase::Starting(..), false) => file.phase = ControllerPhase::Disabled,
        (ControllerPhase::Running | ControllerPhase::Failed, false) => {
            controller.queues.register_stats.resets += 1;
            tracing::info!(host, "controller reset by its host");
            abandon(controller, host);
            (file.phase, file.keep_alive_ends) = (ControllerPhase::Stopping, Nanos::MAX);
        }
        (ControllerPhase::Running, true) => shut_down(controller, host, file, wanted.shutdown, now),
        (ControllerPhase::Disabled, false)
        | (ControllerPhase::Failed, true)
        | (ControllerPhase::Stopping, _) => {}
    }
    if matches!(file.phase, ControllerPhase::Stopping) && !controller.queues.has_submissions(host) {
        finish_stop(controller, host, file, port);
    }
}

/// Makes a controller ready whose time has come: its host has admin queues from now on.
fn finish_start(controller: &mut Controller, host: usize, file: &mut RegisterFile, now: Nanos) {
    let ControllerPhase::Starting(at, queues) = file.phase else { return };
    if at > now {
        return;
    }
    let port = controller.queues.ports[host].port.clone();
    let AdminQueueRegisters { submission, completion } = queues;
    let submission = SqConsumer::open(&port, 0, submission.0, submission.1);
    let completion = CqProducer::open(&port, 0, completion.0, completion.1, Some(0));
    match (submission, completion) {
        (Ok(submission), Ok(completion)) => {
            controller.queues.add_admin_queues(host, submission, completion);
            controller.queues.register_stats.starts += 1;
            (file.phase, file.ready) = (ControllerPhase::Running, true);
            tracing::info!(host, "controller ready");
        }
        (Err(_), _) => fail_host(controller, host, file, "ASQ"),
        (_, Err(_)) => fail_host(controller, host, file, "ACQ"),
    }
}

/// Returns the admin state that a host sees.
fn admin_of(controller: &mut Controller, host: usize) -> &mut AdminState {
    match &mut controller.queues.ports[host].access {
        Some(rights) => &mut rights.admin,
        None => &mut controller.admin,
    }
}

/// Tells a host that the controller has failed, while it can still complete a command.
fn report_internal_error(controller: &mut Controller, host: usize) {
    let none = ErrorEntry::NONE;
    let error = FailedCommand { sqid: none, cid: none, location: none, lba: 0, nsid: 0, detail: 0 };
    admin_of(controller, host).log_error(Status::INTERNAL, &error);
    controller.async_events.raise(host, EventClass::Error, AsyncEvent::PERSISTENT_INTERNAL_ERROR);
    controller.complete_event_requests();
    controller.queues.flush_completions();
}

/// Sets CSTS.CFS.
fn fail_host(controller: &mut Controller, host: usize, file: &mut RegisterFile, reason: &str) {
    tracing::error!(host, reason, "controller fatal status");
    controller.queues.register_stats.failures += 1;
    (file.phase, file.keep_alive_ends) = (ControllerPhase::Failed, Nanos::MAX);
}

/// Tears down the queues of a host, with its event requests, its commands in flight and its doorbell
/// buffer.
fn abandon(controller: &mut Controller, host: usize) {
    for queue in controller.async_events.detach(host) {
        if let Some(queue) = &mut controller.queues.submissions[queue] {
            queue.outstanding -= 1;
        }
    }
    let is_unrestricted = controller.queues.ports[host].access.is_none();
    controller.async_events.attach(host, is_unrestricted);
    let port = controller.queues.ports[host].port.clone();
    installation::abort_host(controller, &port);
    controller.commands.detach_commands(&port, &controller.queues.placeholder_port);
    controller.queues.abandon(host);
    controller.queues.ports[host].shadow_doorbells = None;
}

/// Completes a reset, after the last command in flight: the controller accesses no memory of its
/// host any more.
fn finish_stop(controller: &mut Controller, host: usize, file: &mut RegisterFile, port: &Port) {
    for qid in 0..MAX_QUEUES {
        port.clear_doorbells(qid, true, true);
    }
    if let Some(rights) = &mut controller.queues.ports[host].access {
        rights.admin.reset_features();
    } else if controller.host_count() == 1 {
        // Hosts without a policy have one set of features.
        controller.admin.reset_features();
        controller.update_arbitration();
    }
    (file.phase, file.ready, file.shutdown) = (ControllerPhase::Disabled, false, Shutdown::None);
    tracing::info!(host, "controller disabled");
}

/// Begins the shutdown that a host asks for, if it has not begun. Buffered data is written by a
/// Flush of the drive itself.
fn shut_down(
    controller: &mut Controller,
    host: usize,
    file: &mut RegisterFile,
    request: ShutdownRequest,
    now: Nanos,
) {
    if file.shutdown != Shutdown::None {
        return;
    }
    file.shutdown = match request {
        ShutdownRequest::None => return,
        // Sanitize has dropped the buffered data.
        ShutdownRequest::Normal
            if controller.commands.refused_with == Some(Status::SANITIZE_IN_PROGRESS) =>
        {
            Shutdown::Complete
        }
        ShutdownRequest::Normal => Shutdown::Flushing,
        ShutdownRequest::Abrupt => Shutdown::Complete,
    };
    controller.queues.register_stats.shutdowns += 1;
    if file.shutdown == Shutdown::Flushing {
        if controller.commands.outstanding() == 0 {
            controller.time.begin_busy(now);
        }
        let nobody = controller.queues.placeholder_port.clone();
        let id = controller.commands.add(&nobody, shutdown_queue(host), 0, 0);
        let command = controller.commands.get_mut(id);
        (command.io, command.fetched) = (IoCommand::Flush, now);
        controller.start(now, id);
    }
}

/// Checks the doorbells of some queues, so that those of all queues are checked after 129 polls. A
/// doorbell of a queue that does not exist is cleared and counted, enters the error log, and is an
/// event, as are values outside of a ring. The host of a controller that has failed or stops does not know yet that its queues are gone.
fn check_doorbells(controller: &mut Controller, host: usize, file: &mut RegisterFile, port: &Port) {
    if matches!(file.phase, ControllerPhase::Failed | ControllerPhase::Stopping) {
        return;
    }
    let invalid = controller.queues.invalid_doorbells_of(host);
    if std::mem::replace(&mut file.invalid_doorbells, invalid) < invalid {
        controller.async_events.raise(host, EventClass::Error, AsyncEvent::INVALID_DOORBELL_VALUE);
        controller.complete_event_requests();
    }
    for _ in 0..DOORBELLS_PER_POLL {
        let qid = file.next_doorbell;
        file.next_doorbell = if qid + 1 < MAX_QUEUES { qid + 1 } else { 0 };
        if !port.has_doorbell_value(qid) {
            continue;
        }
        let queues = &controller.queues;
        let tail = queues.find_submission(host, qid).is_none();
        let head = queues.find_completion(host, qid).is_none();
        if port.clear_doorbells(qid, tail, head) {
            controller.queues.register_stats.unknown_doorbells += 1;
            let none = ErrorEntry::NONE;
            let error =
                FailedCommand { sqid: none, cid: none, location: none, lba: 0, nsid: 0, detail: 0 };
            admin_of(controller, host).log_error(Status::INVALID_QID, &error);
            controller.async_events.raise(host, EventClass::Error, AsyncEvent::UNKNOWN_DOORBELL);
            controller.complete_event_requests();
        }
    }
}
