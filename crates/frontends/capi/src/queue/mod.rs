//! `sluice_queue`: a hardware queue of the application's own, optionally behind a scheduler
//! ([NVMeDirect16 §3.1]).

pub(crate) mod binding;
pub(crate) mod kind;
pub(crate) mod poller;

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use block::Group;
use block::sched::{
    CLASSES, DirectionThrottle, FairBy, FairConfig, GroupThrottle, PriorityConfig, RateLimit,
    SchedulerConfig, Scheduling, ThrottleConfig,
};
use user_io::{DeviceKind, QueueConfig, Scheduled, ScheduledConfig};

use crate::device::{
    flags, hand_out, init_out_pointer, object_ref, optional_text, reserved, sluice_device,
};
use crate::error::{CallError, call};
use crate::handle::options::value_error;
use crate::options::{ExtensibleStruct, read_struct};
use crate::queue::binding::QueueOwner;
use crate::queue::kind::QueueStack;

/// Several handles, each of its own thread, may be bound to the queue.
pub const SLUICE_QUEUE_SHARED: u32 = 1;
/// The queue raises no interrupts; the host polls for completions. Drives only.
pub const SLUICE_QUEUE_NO_INTERRUPTS: u32 = 2;

/// Maximum number of groups of a queue.
const GROUPS_MAX: usize = 1024;

/// A hardware queue, optionally behind a scheduler. Several threads may use it at the same time.
pub struct sluice_queue {
    pub(crate) home: Arc<QueueOwner>,
}

/// Weight, priority and rate limits of a group, which apply to all handles of the group together.
/// For each rate limit, a group may save up a burst of a tenth of a second.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_group {
    /// Group number as in `struct sluice_handle_options`, 0 to 65535. Group 0 is the default.
    pub group: u32,
    /// Weight with the scheduler `fair`, 1 to 1000; 0 for 100. Must be 0 with other schedulers.
    pub weight: u32,
    /// Priority class with the scheduler `priority`, 1 (highest) to 8; 0 for 5. Must be 0 with
    /// other schedulers.
    pub priority: u32,
    /// Reserved; must be 0.
    pub reserved: u32,
    /// Maximum number of reads per second, with any scheduler; 0 for no limit.
    pub reads_per_sec: u64,
    /// Maximum number of bytes read per second; 0 for no limit.
    pub read_bytes_per_sec: u64,
    /// Maximum number of writes, discards and Write Zeroes per second; 0 for no limit.
    pub writes_per_sec: u64,
    /// Maximum number of bytes written per second; 0 for no limit.
    pub write_bytes_per_sec: u64,
}

/// Options of a queue. Set `size` to `sizeof(struct sluice_queue_options)`. A member that is 0 or
/// `NULL` selects its default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_queue_options {
    /// `sizeof(struct sluice_queue_options)`.
    pub size: usize,
    /// Queue depth: maximum number of outstanding requests. Drive: 1 to 65534; 0 for 255. Other
    /// devices define the depth of their queues; there it must be 0 or the `queue_depth` of
    /// `struct sluice_device_info`.
    pub depth: u32,
    /// Bitwise OR of `SLUICE_QUEUE_SHARED` and `SLUICE_QUEUE_NO_INTERRUPTS`.
    pub flags: u32,
    /// Name of the scheduler: `none`, `deadline`, `kyber`, `fair` or `priority`. `NULL` means no
    /// scheduler, or `none` if there are groups.
    pub scheduler: *const c_char,
    /// Maximum number of requests in the device, 1 to 65535; 0 for 32. Other requests wait in the
    /// scheduler. Must be 0 without a scheduler.
    pub device_depth: u32,
    /// Maximum number of outstanding requests, including those in the scheduler; 0 for 4096. Must
    /// be 0 without a scheduler.
    pub scheduler_depth: u32,
    /// Array of the groups; may be `NULL` if `group_count` is 0.
    pub groups: *const sluice_group,
    /// Number of groups, at most 1024.
    pub group_count: usize,
}

// SAFETY: begins with its size; numbers and pointers in places of their own size, no padding; pointers
// may be NULL.
unsafe impl ExtensibleStruct for sluice_queue_options {
    const NAME: &'static str = "struct sluice_queue_options";
}

fn rate(per_sec: u64) -> Option<RateLimit> {
    (per_sec > 0).then(|| RateLimit::per_sec(per_sec))
}

/// Returns the configuration of the scheduler, or `None` if the options ask for none.
fn scheduling(
    scheduler: Option<&str>,
    groups: &[sluice_group],
    sector_bytes: u32,
) -> Result<Option<Scheduling>, CallError> {
    if scheduler.is_none() && groups.is_empty() {
        return Ok(None);
    }
    let mut scheduler: SchedulerConfig = scheduler.unwrap_or("none").parse()?;
    let mut limits = Vec::new();
    let (mut weights, mut classes) = (Vec::new(), Vec::new());
    for of in groups {
        reserved(of.reserved)?;
        let group =
            u16::try_from(of.group).map_err(|_| value_error("group", of.group, "0 to 65535"))?;
        if of.weight > 0 {
            let weight = u16::try_from(of.weight);
            weights
                .push((group, weight.map_err(|_| value_error("weight", of.weight, "1 to 1000"))?));
        }
        if of.priority > 0 {
            if of.priority > CLASSES.into() {
                return Err(value_error("priority", of.priority, "1 to 8"));
            }
            classes.push((Group(group), of.priority as u8 - 1));
        }
        let direction = |operations, bytes| DirectionThrottle {
            operations: rate(operations),
            bytes: rate(bytes),
        };
        let read = direction(of.reads_per_sec, of.read_bytes_per_sec);
        let write = direction(of.writes_per_sec, of.write_bytes_per_sec);
        let of_group = GroupThrottle { read, write };
        if of_group != GroupThrottle::default() {
            limits.push((Group(group), of_group));
        }
    }
    let (weighed, classed) = (weights.len() as u64, classes.len() as u64);
    match &mut scheduler {
        SchedulerConfig::Fair(config) => {
            *config = FairConfig { by: FairBy::Group, weights, ..FairConfig::default() };
        }
        _ if weighed > 0 => {
            return Err(value_error("weight", weighed, "with the scheduler `fair` only"));
        }
        SchedulerConfig::Priority(config) => {
            *config = PriorityConfig { classes, ..PriorityConfig::default() };
        }
        _ => {}
    }
    if classed > 0 && !matches!(scheduler, SchedulerConfig::Priority(_)) {
        return Err(value_error("priority", classed, "with the scheduler `priority` only"));
    }
    let limits = (!limits.is_empty()).then_some(ThrottleConfig { sector_bytes, groups: limits });
    let scheduling = Scheduling { scheduler, limits };
    scheduling.validate()?;
    Ok(Some(scheduling))
}

fn parse_depth(
    device: &user_io::IoDevice,
    depth: u32,
    no_interrupts: bool,
) -> Result<QueueConfig, CallError> {
    let default = QueueConfig { interrupts: !no_interrupts, ..QueueConfig::default() };
    if matches!(device.kind(), DeviceKind::Drive | DeviceKind::Controller) {
        let entries = match depth {
            0 => Some(default.depth),
            depth => depth.checked_add(1).and_then(|entries| u16::try_from(entries).ok()),
        };
        let depth = entries.ok_or_else(|| value_error("depth", depth, "1 to 65534"))?;
        return Ok(QueueConfig { depth, ..default });
    }
    if no_interrupts {
        let flag = SLUICE_QUEUE_NO_INTERRUPTS;
        return Err(value_error("flags", flag, "SLUICE_QUEUE_NO_INTERRUPTS is for drives only"));
    }
    if depth != 0 && depth != device.limits().queue_depth {
        let allowed = "0, or the `queue_depth` that the device was opened with: only a drive's queues \
                       have depths of their own";
        return Err(value_error("depth", depth, allowed));
    }
    Ok(default)
}

/// Creates a queue.
///
/// By default one handle at a time is bound to the queue and accesses it without a lock. With
/// `SLUICE_QUEUE_SHARED` several handles, each of its own thread, share the queue under a lock.
///
/// @param device The device.
/// @param options Options, or `NULL` for the defaults.
/// @param queue Receives the queue, or `NULL` if the call fails.
///
/// # Returns
///
/// 0, or
///
/// * `-EINVAL`: an invalid argument or option, for example an unknown scheduler.
/// * `-E2BIG`: an option of a later version.
/// * `-ENOSPC`: the device has no free queue.
/// * `-EOPNOTSUPP`: the device is an open-channel drive, which supports vector commands only; see
///   `sluice_vector_queue_create()`.
/// * `-ETIMEDOUT`, `-ECONNRESET`: the server of the drive does not answer, or has ended.
/// * `-ENOMEM`, `-EMFILE`, ...: the system's error.
///
/// # Threads
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_queue_create(
    device: *const sluice_device,
    options: *const sluice_queue_options,
    queue: *mut *mut sluice_queue,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let (device, options) = unsafe {
            init_out_pointer("queue", queue)?;
            (object_ref("device", device)?, read_struct(options)?)
        };
        let all = SLUICE_QUEUE_SHARED | SLUICE_QUEUE_NO_INTERRUPTS;
        let allowed = "SLUICE_QUEUE_SHARED and SLUICE_QUEUE_NO_INTERRUPTS together";
        let flags = flags(options.flags, all, allowed)?;
        let groups = match (options.groups.is_null(), options.group_count) {
            (_, 0) => &[][..],
            (true, _) => return Err(CallError::Null("groups")),
            (_, n) if n > GROUPS_MAX => {
                return Err(value_error("group_count", n as u64, "1024 at most"));
            }
            // SAFETY: not NULL, and the header demands as many groups there.
            (false, n) => unsafe { std::slice::from_raw_parts(options.groups, n) },
        };
        // SAFETY: as above.
        let scheduler = unsafe { optional_text("scheduler", options.scheduler) }?;
        let sector_bytes = device.device.limits().sector_bytes;
        let scheduling = scheduling(scheduler, groups, sector_bytes)?;
        let config =
            parse_depth(&device.device, options.depth, flags & SLUICE_QUEUE_NO_INTERRUPTS != 0)?;
        let depths =
            [("device_depth", options.device_depth), ("scheduler_depth", options.scheduler_depth)];
        if scheduling.is_none()
            && let Some((what, depth)) = depths.into_iter().find(|(_, depth)| *depth > 0)
        {
            return Err(value_error(what, depth, "0 without a scheduler"));
        }
        let depth = options.device_depth;
        let device_depth =
            u16::try_from(depth).map_err(|_| value_error("device_depth", depth, "1 to 65535"))?;
        let (made, has_groups) = (device.device.create_queue(config)?, scheduling.is_some());
        let stack: Box<dyn QueueStack> = match scheduling {
            None => Box::new(made),
            Some(scheduling) => {
                let default = ScheduledConfig::default();
                let or = |n, otherwise| if n == 0 { otherwise } else { n };
                let device_depth =
                    if device_depth == 0 { default.device_depth } else { device_depth };
                let depth = or(options.scheduler_depth, default.depth);
                let config = ScheduledConfig { scheduling, device_depth, depth };
                Box::new(Scheduled::new(made, &config)?)
            }
        };
        let shared = flags & SLUICE_QUEUE_SHARED != 0;
        let (of, owner) = (device.device.clone(), device.owner.clone());
        let home = QueueOwner::new(of, owner, stack, has_groups, shared);
        // SAFETY: accepted above.
        unsafe { hand_out(queue, sluice_queue { home: Arc::new(home) }) };
        Ok(0)
    })
}

/// Destroys a queue.
///
/// @param queue The queue; unless the call fails with `-EBUSY`, it must not be used after the call.
/// `NULL` has no effect.
///
/// # Returns
///
/// 0, or
///
/// * `-EBUSY`: a handle is bound to the queue, or a poller watches it. The queue is unchanged.
/// * `-EIO`: this call closed the device, and the drive was not shut down cleanly; see
///   `sluice_close()`. The queue is destroyed.
///
/// # Threads
///
/// Any thread. No other call may use the pointer at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_queue_destroy(queue: *mut sluice_queue) -> c_int {
    call(|| {
        if queue.is_null() {
            return Ok(0);
        }
        // SAFETY: not NULL, and the pointer is as the header demands.
        let home = unsafe { object_ref("queue", queue) }?.home.clone();
        let state = home.state();
        if state.handles > 0 {
            return Err(CallError::InUse("handles are bound to the queue: destroy them first"));
        }
        if state.watched.is_some() {
            return Err(CallError::InUse(
                "a poller watches the queue: sluice_poller_unwatch() first",
            ));
        }
        drop(state);
        let owner = home.device_ref.clone();
        // SAFETY: made by `hand_out`, and the caller gives it up.
        owner.release((unsafe { Box::from_raw(queue) }, home))?;
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::open::{DeviceOpenOptions, open_device};

    const NONE: sluice_group = sluice_group {
        group: 0,
        weight: 0,
        priority: 0,
        reserved: 0,
        reads_per_sec: 0,
        read_bytes_per_sec: 0,
        writes_per_sec: 0,
        write_bytes_per_sec: 0,
    };

    #[test]
    fn groups_get_what_their_scheduler_has() {
        assert_eq!(scheduling(None, &[], 512).unwrap(), None);
        let plain = scheduling(Some("deadline"), &[], 512).unwrap().unwrap();
        assert_eq!((plain.scheduler.name(), plain.limits), ("deadline", None));
        let heavy = sluice_group { group: 3, weight: 300, ..NONE };
        let fair = scheduling(Some("fair"), &[heavy], 512).unwrap().unwrap().scheduler;
        let SchedulerConfig::Fair(config) = fair else { panic!("{fair:?}") };
        assert_eq!((config.by, config.weights), (FairBy::Group, vec![(3, 300)]));
        let first = sluice_group { group: 2, priority: 1, ..NONE };
        let priority = scheduling(Some("priority"), &[first], 512).unwrap().unwrap().scheduler;
        let SchedulerConfig::Priority(config) = priority else { panic!("{priority:?}") };
        assert_eq!(config.classes, [(Group(2), 0)]);
        let slow = sluice_group { group: 1, writes_per_sec: 100, ..NONE };
        let limited = scheduling(None, &[slow], 4096).unwrap().unwrap();
        let limits = limited.limits.unwrap();
        assert_eq!(
            limits.groups[0].1.write.operations,
            Some(RateLimit { per_sec: 100, burst: 10 })
        );
        assert_eq!((limited.scheduler.name(), limits.sector_bytes), ("none", 4096));
    }

    #[test]
    fn groups_that_make_no_sense_are_refused() {
        for (scheduler, group, says) in [
            ("bfq", NONE, "`bfq`"),
            ("deadline", sluice_group { weight: 1, ..NONE }, "`fair` only"),
            ("priority", sluice_group { weight: 1, ..NONE }, "`fair` only"),
            ("fair", sluice_group { weight: 70_000, ..NONE }, "1 to 1000"),
            ("fair", sluice_group { weight: 1001, ..NONE }, "1000"),
            ("fair", sluice_group { priority: 1, ..NONE }, "`priority` only"),
            ("priority", sluice_group { priority: 9, ..NONE }, "1 to 8"),
            ("none", sluice_group { group: 65_536, ..NONE }, "0 to 65535"),
            ("none", sluice_group { reserved: 1, ..NONE }, "reserved"),
            ("none", sluice_group { reads_per_sec: u64::MAX, ..NONE }, "read operations"),
        ] {
            let error = scheduling(Some(scheduler), &[group], 512).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL, "{error}");
            assert!(error.to_string().contains(says), "{error} does not say {says}");
        }
        let twice = sluice_group { weight: 2, ..NONE };
        assert!(scheduling(Some("fair"), &[twice, twice], 512).is_err());
    }

    #[test]
    fn only_a_drive_has_queues_of_any_depth() {
        let (null, _) = open_device("null", &DeviceOpenOptions::default(), None).unwrap();
        assert!(parse_depth(&null, 0, false).is_ok());
        assert!(parse_depth(&null, 1024, false).is_ok());
        let error = parse_depth(&null, 7, false).unwrap_err();
        assert!(error.to_string().contains("depth = 7"), "{error}");
        assert!(parse_depth(&null, 0, true).unwrap_err().to_string().contains("drives only"));
    }
}
