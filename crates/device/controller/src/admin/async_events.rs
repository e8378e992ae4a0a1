//! [`AsyncEventQueue`]: the asynchronous event requests of hosts [NVMe1.4 §5.2], the events that
//! complete them, the changed namespace lists, and the chunk notification log ([OC20 §3], log page D0h).
//!
//! The queue owns the log, newest first, and the outstanding requests. Invariants: a request
//! completes when a notification exists that was neither reported to its host nor read by it. After
//! that, the event type is masked for the host until it reads the log without Retain Asynchronous
//! Event. Notification counts have no gaps, so that a host can detect notifications that it missed.

use std::collections::{BTreeSet, VecDeque};

use nvme::{AsyncEvent, ChunkNotification, NamespaceList, Status, log_page};

use crate::admin::{self, EVENT_REQUESTS_MAX, NOTIFICATION_LOG_ENTRIES};
use crate::stats::NotificationStats;

/// Events whose log page describes a state instead of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventClass {
    /// Error status; the error log describes it.
    Error,
    /// SMART and health status; the health log describes it.
    Health,
    /// Notice of changed namespaces; the changed namespace list describes it.
    Notice,
    /// The end of Sanitize; the sanitize status log describes it.
    IoCommandSet,
    /// A command that no rule of the drive matches was parked; the log page of misses describes it.
    RuleMiss,
    /// A rule has posted an event; the log page of events has it.
    RuleEvent,
}

impl EventClass {
    const ALL: [EventClass; 6] = [
        EventClass::Error,
        EventClass::Health,
        EventClass::Notice,
        EventClass::IoCommandSet,
        EventClass::RuleMiss,
        EventClass::RuleEvent,
    ];

    fn event(self, info: u8) -> AsyncEvent {
        let (kind, log_page) = match self {
            EventClass::Error => (AsyncEvent::ERROR, log_page::ERROR),
            EventClass::Health => (AsyncEvent::HEALTH, log_page::HEALTH),
            EventClass::Notice => (AsyncEvent::NOTICE, log_page::CHANGED_NAMESPACES),
            EventClass::IoCommandSet => (AsyncEvent::IO_COMMAND_SET, log_page::SANITIZE),
            EventClass::RuleMiss => (AsyncEvent::VENDOR, log_page::RULE_MISSES),
            EventClass::RuleEvent => (AsyncEvent::VENDOR, log_page::RULE_EVENTS),
        };
        AsyncEvent { kind, info, log_page }
    }
}

/// The events of one class for a host.
#[derive(Clone, Copy, Debug, Default)]
struct ClassState {
    /// Information of the event to report.
    pending: Option<u8>,
    /// An event was reported, and the host has not read the log page since.
    masked: bool,
}

/// Per-host state: outstanding requests and the last notification reported.
#[derive(Debug, Default)]
struct Listener {
    /// Outstanding requests: admin queue and command identifier.
    requests: VecDeque<(usize, u16)>,
    /// Count of the last notification that was reported to the host or read by it.
    last_reported: u64,
    /// An event was reported, and the host has not read the log since.
    masked: bool,
    /// The events of each [`EventClass`].
    classes: [ClassState; 6],
    /// Namespaces that changed since the host has read their list.
    changed_namespaces: BTreeSet<u32>,
    /// The host receives no events, because they may concern chunks of other hosts.
    disabled: bool,
}

#[derive(Debug, Default)]
pub(crate) struct AsyncEventQueue {
    log: VecDeque<ChunkNotification>,
    /// Number of notifications since power-on.
    count: u64,
    /// Count of the last notification that any host has read.
    last_read: u64,
    /// Hosts, indexed by port.
    listeners: Vec<Listener>,
    pub(crate) stats: NotificationStats,
    /// The critical warnings of the health log that were reported.
    warnings: u8,
}

impl AsyncEventQueue {
    fn listener(&mut self, port: usize) -> &mut Listener {
        if self.listeners.len() <= port {
            self.listeners.resize_with(port + 1, Listener::default);
        }
        &mut self.listeners[port]
    }

    /// Adds a host; `told` says whether it receives events.
    pub(crate) fn attach(&mut self, port: usize, told: bool) {
        *self.listener(port) = Listener { disabled: !told, ..Listener::default() };
    }

    /// Removes a host and returns the queues of its outstanding requests.
    pub(crate) fn detach(&mut self, port: usize) -> impl Iterator<Item = usize> {
        let requests = std::mem::take(self.listener(port)).requests;
        requests.into_iter().map(|(queue, _)| queue)
    }

    /// Stores an asynchronous event request of a host.
    ///
    /// # Errors
    /// [`Status::TOO_MANY_EVENT_REQUESTS`].
    pub(crate) fn request(&mut self, port: usize, queue: usize, cid: u16) -> Result<(), Status> {
        let listener = self.listener(port);
        if listener.requests.len() >= EVENT_REQUESTS_MAX {
            return Err(Status::TOO_MANY_EVENT_REQUESTS);
        }
        listener.requests.push_back((queue, cid));
        Ok(())
    }

    /// Removes an outstanding request, for Abort.
    pub(crate) fn abort_request(&mut self, port: usize, cid: u16) -> Option<(usize, u16)> {
        let requests = &mut self.listener(port).requests;
        let at = requests.iter().position(|(_, c)| *c == cid)?;
        requests.remove(at)
    }

    /// Logs a notification and assigns its count.
    pub(crate) fn log_notification(&mut self, notification: ChunkNotification) {
        self.count += 1;
        if self.log.len() == NOTIFICATION_LOG_ENTRIES
            && let Some(oldest) = self.log.pop_back()
        {
            self.stats.overwritten += u64::from(oldest.count.get() > self.last_read);
        }
        self.log.push_front(ChunkNotification { count: self.count.into(), ..notification });
        self.stats.logged += 1;
    }

    /// Reports an event of a class to a host, when it has a request and has read the log page of the
    /// last one. Of several events of a class, only the last is reported.
    pub(crate) fn raise(&mut self, port: usize, class: EventClass, info: u8) {
        self.listener(port).classes[class as usize].pending = Some(info);
    }

    /// Reports an event of a class to all hosts, as [`raise`](AsyncEventQueue::raise) does.
    pub(crate) fn raise_all(&mut self, class: EventClass, info: u8) {
        for listener in &mut self.listeners {
            listener.classes[class as usize].pending = Some(info);
        }
    }

    /// Withdraws the events of a class that were not reported.
    pub(crate) fn withdraw(&mut self, class: EventClass) {
        for listener in &mut self.listeners {
            listener.classes[class as usize].pending = None;
        }
    }

    /// Records for all hosts that a namespace has changed, and reports it to them if `is_enabled`, the
    /// asynchronous event configuration, says so.
    pub(crate) fn add_changed_namespace(&mut self, nsid: u32, is_enabled: bool) {
        for listener in self.listeners.iter_mut().filter(|listener| !listener.disabled) {
            // With one more than the list can have, it is no list of identifiers any more.
            if listener.changed_namespaces.len() <= NamespaceList::ENTRIES {
                listener.changed_namespaces.insert(nsid);
            }
            if is_enabled {
                let info = AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED;
                listener.classes[EventClass::Notice as usize].pending = Some(info);
            }
        }
    }

    /// Returns the changed namespace list of a host.
    pub(crate) fn changed_namespaces(&mut self, port: usize) -> NamespaceList {
        let changed: Vec<u32> = self.listener(port).changed_namespaces.iter().copied().collect();
        NamespaceList::of_changed(&changed)
    }

    /// Reports new critical warnings of the health log to all hosts. `enabled` are those that the
    /// asynchronous event configuration selects.
    pub(crate) fn update_warnings(&mut self, warnings: u8, enabled: u8) {
        let new = warnings & !std::mem::replace(&mut self.warnings, warnings & enabled) & enabled;
        // The last one that is set is reported: spare, temperature, reliability, read-only.
        let info = match new {
            0 => return,
            new if new & 0b1100 != 0 => AsyncEvent::RELIABILITY,
            new if new & 0b10 != 0 => AsyncEvent::TEMPERATURE,
            _ => AsyncEvent::SPARE,
        };
        for listener in &mut self.listeners {
            listener.classes[EventClass::Health as usize].pending = Some(info);
        }
    }

    /// Handles that a host has read a log page without Retain Asynchronous Event.
    pub(crate) fn acknowledge(&mut self, port: usize, lid: u8) {
        for class in EventClass::ALL {
            if class.event(0).log_page == lid {
                self.listener(port).classes[class as usize] = ClassState::default();
            }
        }
        if lid == log_page::CHANGED_NAMESPACES {
            self.listener(port).changed_namespaces.clear();
        }
    }

    /// Returns the next request to complete with an event of an [`EventClass`].
    fn pop_due_class(&mut self) -> Option<(usize, u16, u64)> {
        // The events of rules are those of the host's own application.
        let ready = |listener: &Listener, class: &EventClass| {
            let state = listener.classes[*class as usize];
            let is_told = !listener.disabled || matches!(class, EventClass::RuleEvent);
            is_told && state.pending.is_some() && !state.masked
        };
        let listener = self.listeners.iter_mut().find(|listener| {
            !listener.requests.is_empty() && EventClass::ALL.iter().any(|c| ready(listener, c))
        })?;
        let class = EventClass::ALL.into_iter().find(|c| ready(listener, c))?;
        let state = &mut listener.classes[class as usize];
        let info = state.pending.take()?;
        state.masked = true;
        let (queue, cid) = listener.requests.pop_front()?;
        Some((queue, cid, class.event(info).to_dword().into()))
    }

    /// Returns the next request to complete: queue, command identifier and result.
    pub(crate) fn pop_due(&mut self) -> Option<(usize, u16, u64)> {
        if let Some(due) = self.pop_due_class() {
            return Some(due);
        }
        let count = self.count;
        let ready = |l: &&mut Listener| {
            !l.masked && !l.disabled && l.last_reported < count && !l.requests.is_empty()
        };
        let listener = self.listeners.iter_mut().find(ready)?;
        let (queue, cid) = listener.requests.pop_front()?;
        (listener.last_reported, listener.masked) = (count, true);
        self.stats.events_sent += 1;
        Some((queue, cid, AsyncEvent::CHUNK_NOTIFICATION.to_dword().into()))
    }

    /// Returns a part of the log for a host, and unmasks the event unless `retain` is set.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] for an offset past the end of the log.
    pub(crate) fn read_log_page(
        &mut self,
        port: usize,
        offset: u64,
        bytes: u64,
        retain: bool,
    ) -> Result<Vec<u8>, Status> {
        let log = &self.log;
        let mut entry = |n: u64| log.get(n as usize).copied().unwrap_or_default().to_bytes();
        let page =
            admin::log_page_entries(NOTIFICATION_LOG_ENTRIES as u64, offset, bytes, &mut entry)?;
        if !retain {
            let count = self.count;
            self.last_read = count;
            let listener = self.listener(port);
            (listener.last_reported, listener.masked) = (count, false);
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use nvme::{ChunkNotificationKind, ChunkNotificationScope};

    use super::*;

    fn log_one(events: &mut AsyncEventQueue) {
        let (scope, what) = (ChunkNotificationScope::Chunk, ChunkNotificationKind::ErrorRateHigh);
        events.log_notification(ChunkNotification::new(0, 7, 1, scope, what));
    }

    fn counts(page: &[u8]) -> Vec<u64> {
        let (entries, _) = page.as_chunks::<{ ChunkNotification::BYTES }>();
        entries.iter().map(|e| ChunkNotification::from_bytes(*e).count.get()).collect()
    }

    #[test]
    fn a_host_is_told_once_until_it_has_read() {
        let mut e = AsyncEventQueue::default();
        e.request(0, 5, 1).unwrap();
        e.request(0, 5, 2).unwrap();
        assert_eq!(e.pop_due(), None);
        log_one(&mut e);
        assert_eq!(e.pop_due(), Some((5, 1, 0xd0_0007)));
        log_one(&mut e);
        assert_eq!(e.pop_due(), None, "masked");
        assert!(e.read_log_page(0, 0, 64, true).is_ok());
        assert_eq!(e.pop_due(), None, "retained");
        let page = e.read_log_page(0, 0, 4096, false).unwrap();
        assert_eq!(counts(&page)[..3], [2, 1, 0]);
        assert_eq!(e.pop_due(), None, "it has read both");
        log_one(&mut e);
        assert_eq!(e.pop_due(), Some((5, 2, 0xd0_0007)));
        // Another host receives the event as well, when it sends a request.
        e.request(1, 6, 9).unwrap();
        assert_eq!(e.pop_due(), Some((6, 9, 0xd0_0007)));
    }

    #[test]
    fn a_changed_namespace_is_listed_and_reported_once_until_it_is_read() {
        let mut e = AsyncEventQueue::default();
        e.attach(0, true);
        e.attach(1, false);
        for (port, cid) in [(0, 1), (0, 2), (1, 3)] {
            e.request(port, 5, cid).unwrap();
        }
        let listed = |e: &mut AsyncEventQueue, port| -> Vec<u32> {
            e.changed_namespaces(port).iter().collect()
        };
        e.add_changed_namespace(7, false);
        assert_eq!(e.pop_due(), None, "not enabled");
        e.add_changed_namespace(3, true);
        assert_eq!(e.pop_due(), Some((5, 1, 0x04_0002)));
        e.add_changed_namespace(9, true);
        assert_eq!(e.pop_due(), None, "masked");
        assert_eq!(listed(&mut e, 0), [3, 7, 9]);
        assert_eq!(listed(&mut e, 1), [0; 0], "a host without events");
        e.acknowledge(0, log_page::CHANGED_NAMESPACES);
        assert_eq!(listed(&mut e, 0), [0; 0]);
        assert_eq!(e.pop_due(), None, "the host has read all of them");
        for nsid in 1..2_000 {
            e.add_changed_namespace(nsid, true);
        }
        assert_eq!(e.pop_due(), Some((5, 2, 0x04_0002)));
        assert_eq!(listed(&mut e, 0), [u32::MAX], "too many for a list");
    }

    #[test]
    fn requests_are_limited_per_host_and_can_be_withdrawn() {
        let mut e = AsyncEventQueue::default();
        for cid in 0..EVENT_REQUESTS_MAX as u16 {
            e.request(0, 5, cid).unwrap();
        }
        assert_eq!(e.request(0, 5, 99), Err(Status::TOO_MANY_EVENT_REQUESTS));
        e.request(1, 6, 99).unwrap();
        assert_eq!(e.abort_request(0, 2), Some((5, 2)));
        assert_eq!(e.abort_request(0, 2), None);
        assert_eq!(e.abort_request(0, 99), None, "another host's");
        e.request(0, 5, 99).unwrap();
    }

    #[test]
    fn the_log_is_a_ring_and_counts_lost_entries() {
        let mut e = AsyncEventQueue::default();
        for _ in 0..NOTIFICATION_LOG_ENTRIES {
            log_one(&mut e);
        }
        assert!(e.read_log_page(0, 0, 4, false).is_ok());
        log_one(&mut e);
        assert_eq!(e.stats.overwritten, 0, "the oldest was read");
        for _ in 0..NOTIFICATION_LOG_ENTRIES {
            log_one(&mut e);
        }
        assert_eq!((e.stats.logged, e.stats.overwritten), (129, 1));
        let page = e.read_log_page(0, 0, 1 << 20, true).unwrap();
        assert_eq!(counts(&page), (66..=129).rev().collect::<Vec<_>>());
        assert_eq!(e.read_log_page(0, 4032, 4096, true).unwrap().len(), 64);
        assert_eq!(e.read_log_page(0, 4096, 4, true).unwrap().len(), 0);
        assert_eq!(e.read_log_page(0, 4100, 4, true), Err(Status::INVALID_FIELD));
    }
}
