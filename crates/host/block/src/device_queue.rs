//! [`DeviceQueue`]: a hardware queue that is a block device, so that a block layer can be above a
//! target, a cache or a stripe. It is the inverse of [`Raw`](crate::Raw), which makes a device of a
//! queue.
//!
//! Binding submits to the device, issuing polls it, and fetching reaps from it. The device sees the
//! queue's tag as the tag of the request.
//!
//! A device cannot abort a request, nor forget one. An abort has no effect. A reset therefore lasts
//! until the device has completed every request that it had, because it may access their memory
//! until then.

use std::any::Any;

use driver::{
    BindError, CompletionEvent, Features, HardwareQueue, LowLevelDriver, QueueState, Tag, TagError,
    TagSet, TagState,
};
use event::Waker;
use mem::AddressSpace;
use time::Nanos;

use crate::{BlockDevice, Completion, Limits, QueueFull, Request};

/// A hardware queue that is a block device.
#[derive(Debug)]
pub struct DeviceQueue<D> {
    device: D,
    tags: TagSet,
    /// By tag: whether the device has a request of this tag.
    in_device: Box<[bool]>,
    /// Number of requests that the device has.
    outstanding: u16,
    /// Whether requests were submitted since the last poll.
    unpolled: bool,
    /// The event that the last poll found, until it is fetched.
    peeked_event: Option<CompletionEvent>,
    state: QueueState,
    /// Time of the last call that had one.
    now: Nanos,
}

impl<D: BlockDevice> DeviceQueue<D> {
    /// Creates a queue with as many tags as `device` takes requests. No request may be outstanding.
    pub fn new(device: D) -> DeviceQueue<D> {
        let depth = device.limits().queue_depth.min(u16::MAX.into()) as u16;
        DeviceQueue {
            device,
            tags: TagSet::new(depth),
            in_device: vec![false; depth.into()].into(),
            outstanding: 0,
            unpolled: false,
            peeked_event: None,
            state: QueueState::Ready,
            now: Nanos::ZERO,
        }
    }

    fn poll_device(&mut self) -> bool {
        self.unpolled = false;
        let mut moved = self.device.poll(self.now);
        if self.state == QueueState::Resetting {
            // The owner has been promised no event of a command from before the reset.
            while self.reap().is_some() {}
            if self.outstanding == 0 {
                self.state = QueueState::Ready;
                moved = true;
            }
        } else if self.peeked_event.is_none() {
            self.peeked_event = self.reap();
            moved |= self.peeked_event.is_some();
        }
        moved
    }

    /// Reaps a completion. Its tag may be any: the owner of the queue counts those without a
    /// command.
    fn reap(&mut self) -> Option<CompletionEvent> {
        let Completion { tag, status, result } = self.device.reap()?;
        // No queue has this many tags.
        let tag = Tag(u16::try_from(tag).unwrap_or(u16::MAX));
        if self.in_device.get_mut(usize::from(tag.0)).is_some_and(std::mem::take) {
            self.outstanding -= 1;
        }
        Some(CompletionEvent { tag, status, result })
    }
}

impl<D: BlockDevice + Send> HardwareQueue for DeviceQueue<D> {
    const MUST_POLL: bool = true;

    #[inline]
    fn tags(&self) -> &TagSet {
        &self.tags
    }

    #[inline]
    fn tags_mut(&mut self) -> &mut TagSet {
        &mut self.tags
    }

    fn memory(&self) -> &AddressSpace {
        self.device.memory()
    }

    fn bind_tag_cmd(&mut self, tag: Tag, command: &Request, now: Nanos) -> Result<(), BindError> {
        if self.state != QueueState::Ready {
            return Err(BindError::Busy);
        }
        self.tags.bind(tag, command.tag, now)?;
        self.now = now;
        let request = Request { tag: tag.0.into(), ..*command };
        if let Err(QueueFull) = self.device.submit(now, request) {
            // The tag was bound above, so that it can be detached.
            let _ = self.tags.detach(tag);
            return Err(BindError::Busy);
        }
        self.in_device[usize::from(tag.0)] = true;
        self.outstanding += 1;
        self.unpolled = true;
        Ok(())
    }

    fn issue_tags(&mut self) -> bool {
        let issues = self.unpolled;
        if issues {
            self.poll_device();
        }
        issues
    }

    fn check_event(&mut self) -> bool {
        if self.peeked_event.is_none() && self.state == QueueState::Ready {
            self.peeked_event = self.reap();
        }
        self.peeked_event.is_some()
    }

    fn fetch_event(&mut self) -> Option<CompletionEvent> {
        if self.state != QueueState::Ready {
            return None;
        }
        self.peeked_event.take().or_else(|| self.reap())
    }

    fn abort_tag(&mut self, tag: Tag, _now: Nanos) -> Result<(), TagError> {
        match self.tags.state(tag) {
            Some(TagState::Bound) => Ok(()),
            // The error of the wrong state, which changes nothing.
            _ => self.tags.detach(tag).map(drop),
        }
    }

    fn reset(&mut self, now: Nanos) {
        self.now = now;
        self.peeked_event = None;
        self.state = QueueState::Resetting;
        self.poll_device();
    }

    fn state(&self) -> QueueState {
        self.state
    }

    fn poll(&mut self, now: Nanos) -> bool {
        self.now = now;
        self.poll_device()
    }

    fn deadline(&self) -> Nanos {
        if self.peeked_event.is_some() {
            return Nanos::ZERO;
        }
        self.device.deadline()
    }

    fn visit_layers(&mut self, visit: &mut dyn FnMut(&mut dyn Any)) {
        self.device.visit_layers(visit);
    }

    fn set_waker(&mut self, waker: Waker) {
        self.device.set_waker(waker);
    }
}

/// The reason why devices cannot be the hardware queues of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceDriverError {
    /// There is no device, or there are more than 65,535.
    #[error("{0} devices: a driver has 1 to 65,535 hardware queues")]
    Count(usize),
    /// The devices have different limits, so that they are not queues of one device.
    #[error("queue {queue} has other limits than queue 0: {found:?}, not {first:?}")]
    Limits {
        /// Index of the device.
        queue: usize,
        /// Its limits.
        found: Limits,
        /// Limits of the first device.
        first: Limits,
    },
    /// A device must be polled for completions, so that nothing would wake a submitter that sleeps.
    #[error("queue {queue} calls no waker: it is polled for completions")]
    CannotWake {
        /// Index of the device.
        queue: usize,
    },
}

/// A driver whose hardware queues are block devices: one target, or the queues of a target that has
/// several, such as the shards of a `pblk`.
#[derive(Debug)]
pub struct DeviceDriver<D> {
    queues: Box<[Option<DeviceQueue<D>>]>,
    limits: Limits,
    features: Features,
    memory: AddressSpace,
}

impl<D: BlockDevice> DeviceDriver<D> {
    /// Creates a driver with one hardware queue per device. `features` are those of every device.
    ///
    /// # Errors
    /// [`DeviceDriverError`].
    pub fn new(devices: Vec<D>, features: Features) -> Result<DeviceDriver<D>, DeviceDriverError> {
        let count = devices.len();
        let Some(first) = devices.first().filter(|_| count <= u16::MAX.into()) else {
            return Err(DeviceDriverError::Count(count));
        };
        let (limits, memory) = (*first.limits(), first.memory().clone());
        for (queue, device) in devices.iter().enumerate() {
            let found = *device.limits();
            if found != limits {
                return Err(DeviceDriverError::Limits { queue, found, first: limits });
            }
            if !device.can_wake() {
                return Err(DeviceDriverError::CannotWake { queue });
            }
        }
        let queues = devices.into_iter().map(|device| Some(DeviceQueue::new(device))).collect();
        Ok(DeviceDriver { queues, limits, features, memory })
    }
}

impl<D: BlockDevice + Send> LowLevelDriver for DeviceDriver<D> {
    type Queue = DeviceQueue<D>;

    fn limits(&self) -> Limits {
        Limits { queue_depth: self.limits.queue_depth.min(u16::MAX.into()), ..self.limits }
    }

    fn features(&self) -> Features {
        self.features
    }

    fn queues(&self) -> u16 {
        self.queues.len() as u16
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn take_queue(&mut self, index: u16) -> Option<DeviceQueue<D>> {
        self.queues.get_mut(usize::from(index))?.take()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use nvme::Status;
    use time::Component;

    use super::*;
    use crate::{Payload, WaitResult};

    /// A device that completes what the test tells it to.
    #[derive(Debug)]
    struct Scripted {
        limits: Limits,
        memory: AddressSpace,
        taken: Vec<Request>,
        done: Vec<Completion>,
        polls: u64,
        wakes: bool,
    }

    impl Scripted {
        fn new(queue_depth: u32) -> Scripted {
            let limits = Limits {
                sector_bytes: 512,
                sectors: 100,
                max_sectors: 8,
                optimal_sectors: 1,
                queue_depth,
                volatile_cache: true,
                atomic: crate::AtomicLimits::NONE,
            };
            let (taken, done) = (Vec::new(), Vec::new());
            Scripted { limits, memory: AddressSpace::default(), taken, done, polls: 0, wakes: true }
        }

        fn complete(&mut self, tag: u64) {
            self.done.push(Completion { tag, status: Status::SUCCESS, result: 7 });
        }
    }

    impl Component for Scripted {
        fn poll(&mut self, _: Nanos) -> bool {
            self.polls += 1;
            false
        }

        fn deadline(&self) -> Nanos {
            Nanos(9)
        }
    }

    impl BlockDevice for Scripted {
        crate::answer_block_device!(enable_sharing: {}, visit_layers: self);

        fn limits(&self) -> &Limits {
            &self.limits
        }

        fn submit(&mut self, _: Nanos, request: Request) -> Result<(), QueueFull> {
            if self.taken.len() == 2 {
                return Err(QueueFull);
            }
            self.taken.push(request);
            Ok(())
        }

        fn reap(&mut self) -> Option<Completion> {
            self.done.pop()
        }

        fn memory(&self) -> &AddressSpace {
            &self.memory
        }

        fn set_waker(&mut self, _: Waker) {}

        fn can_wake(&self) -> bool {
            self.wakes
        }

        fn can_wait(&self) -> bool {
            false
        }

        fn wait_for_event(&mut self, _: Nanos, _: Nanos) -> WaitResult {
            WaitResult::Unsupported
        }
    }

    fn bind(queue: &mut DeviceQueue<Scripted>, user: u64) -> (Tag, Result<(), BindError>) {
        let mut tag = [Tag::default()];
        assert_eq!(queue.get_free_tags(&mut tag), 1);
        let command = Request::read(0, 1, Payload::BitBucket, user);
        (tag[0], queue.bind_tag_cmd(tag[0], &command, Nanos(1)))
    }

    #[test]
    fn binding_submits_issuing_polls_and_fetching_reaps() {
        let mut queue = DeviceQueue::new(Scripted::new(3));
        assert_eq!((queue.tags().count(), queue.issue_tags()), (3, false));
        let (first, bound) = bind(&mut queue, 100);
        assert_eq!((bound, queue.device.taken[0].tag), (Ok(()), first.0.into()));
        let (second, _) = bind(&mut queue, 101);
        assert!(queue.issue_tags() && !queue.issue_tags());
        assert_eq!(queue.device.polls, 1, "one batch is one poll");
        // The device is full before the tags are.
        let (third, refused) = bind(&mut queue, 102);
        assert_eq!(refused, Err(BindError::Busy));
        assert_eq!(queue.release_tags(&[third]), Ok(()), "the tag is as before");
        assert_eq!((queue.fetch_event(), queue.deadline()), (None, Nanos(9)));
        queue.device.complete(second.0.into());
        assert!(queue.poll(Nanos(2)) && queue.check_event());
        assert_eq!(queue.deadline(), Nanos::ZERO, "an event waits to be fetched");
        let event = queue.fetch_event().unwrap();
        assert_eq!((event.tag, event.result), (second, 7));
        assert_eq!(queue.detach_tag_cmd(second).unwrap().user, 101);
        // A device that is wrong does not harm the queue; its owner counts these.
        for wrong in [second.0.into(), 2, 65_535, u64::MAX] {
            queue.device.complete(wrong);
            let event = queue.fetch_event().unwrap();
            assert!(queue.detach_tag_cmd(event.tag).is_err(), "{wrong}");
        }
        assert_eq!(queue.outstanding, 1);
        assert_eq!(queue.abort_tag(first, Nanos(3)), Ok(()));
        assert!(queue.abort_tag(third, Nanos(3)).is_err());
        assert_eq!(queue.tags().bound(), 1, "an abort has no effect");
    }

    #[test]
    fn a_reset_lasts_until_the_device_has_completed_everything() {
        let mut queue = DeviceQueue::new(Scripted::new(3));
        let (first, _) = bind(&mut queue, 100);
        let (second, _) = bind(&mut queue, 101);
        queue.device.complete(first.0.into());
        queue.poll(Nanos(2));
        queue.reset(Nanos(3));
        assert_eq!(queue.state(), QueueState::Resetting);
        assert!(queue.fetch_event().is_none() && !queue.check_event(), "no event of before");
        assert_eq!(bind(&mut queue, 102).1, Err(BindError::Busy));
        assert!(!queue.poll(Nanos(4)));
        queue.device.complete(second.0.into());
        assert!(queue.poll(Nanos(5)));
        assert_eq!((queue.state(), queue.fetch_event()), (QueueState::Ready, None));
        assert_eq!(queue.tags().bound(), 2, "the owner frees the tags");
        // Nothing outstanding: a reset is over at once.
        queue.reset(Nanos(6));
        assert_eq!(queue.state(), QueueState::Ready);
    }

    #[test]
    fn devices_that_are_not_queues_of_one_device_are_refused() {
        let features = Features::default();
        let refused = |devices| DeviceDriver::new(devices, features).unwrap_err();
        assert_eq!(refused(Vec::<Scripted>::new()), DeviceDriverError::Count(0));
        let many = (0..65_536).map(|_| Scripted::new(1)).collect();
        assert_eq!(refused(many), DeviceDriverError::Count(65_536));
        let found = refused(vec![Scripted::new(2), Scripted::new(3)]);
        assert!(matches!(found, DeviceDriverError::Limits { queue: 1, .. }), "{found}");
        let polled = Scripted { wakes: false, ..Scripted::new(2) };
        let found = refused(vec![Scripted::new(2), polled]);
        assert_eq!(found, DeviceDriverError::CannotWake { queue: 1 });
        let mut driver = DeviceDriver::new(vec![Scripted::new(1 << 20)], features).unwrap();
        assert_eq!((driver.queues(), driver.limits().queue_depth), (1, 65_535));
        assert!(driver.take_queue(1).is_none());
        let queue = driver.take_queue(0).unwrap();
        assert_eq!(queue.tags().count(), 65_535);
        assert!(driver.take_queue(0).is_none(), "handed out");
    }
}
