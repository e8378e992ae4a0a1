//! Invariants of the server, checked about ten times a second in debug builds.

use block::BlockDevice;
use collections::BrokenInvariant;
pub(super) use collections::require_eq;

use crate::pool::SIZE_CLASSES;
use crate::server::NbdServer;

/// An invariant that does not hold.
pub(super) type ServerViolation = BrokenInvariant<&'static str>;

impl<D: BlockDevice> NbdServer<D> {
    /// Checks the invariants between two iterations.
    pub(super) fn check_invariants(&self) -> Result<(), ServerViolation> {
        self.connections.check_invariants()?;
        self.in_flight.check_invariants()?;
        let (open, counted) = (self.connections.open_count(), self.group.clients());
        // Clients in the mailbox are counted and not open yet.
        require_eq("group", "an open client is counted", "the server", open.min(counted), open)?;
        for c in self.connections.iter() {
            self.work.check_invariants(c)?;
            let own = || self.in_flight.iter().filter(|flight| flight.client == c.id);
            let requests = own().count();
            require_eq("connections", "a client's requests", c.id, requests, c.in_flight)?;
            for class in 0..SIZE_CLASSES {
                let buffers = own().filter_map(|flight| flight.buffer.as_ref());
                let of_class = buffers.filter(|buffer| buffer.size_class() == class);
                let bytes: usize = of_class.map(|buffer| buffer.footprint()).sum();
                let found = c.memory.in_device(class);
                require_eq("connections", "a client's memory", c.id, bytes, found)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use block::Limits;
    use time::Nanos;

    use crate::connection::{Connection, Connections, WorkQueues};
    use crate::in_flight::{InFlightRequest, InFlightRequests};
    use crate::protocol::command::{CommandAction, NbdCommand};

    #[test]
    fn a_client_is_queued_as_its_flags_say() {
        let (stream, _other) = UnixStream::pair().expect("a socket");
        let (mut connections, mut work) = (Connections::default(), WorkQueues::default());
        let c = connections.insert(Box::new(Connection::new(stream.into(), 0, Nanos(0))));
        work.mark_ready(c);
        work.mark_ready(c);
        work.mark_dirty(c);
        work.check_invariants(c).expect("nothing is broken yet");
        c.leave_ready();
        let found = work.check_invariants(c).expect_err("a client without the flag is queued");
        assert_eq!((found.part, found.invariant), ("queues", "a client with input is queued once"));
        connections.check_invariants().expect("nothing is broken yet");
        let id = connections.ids()[0];
        let taken = connections.take(id).expect("a client");
        let found = connections.check_invariants().expect_err("a client is taken out");
        assert_eq!((found.part, found.invariant), ("connections", "open connections"));
        connections.put(taken);
    }

    #[test]
    fn a_request_leaves_the_backlog_when_it_ends() {
        let limits = Limits {
            sector_bytes: 512,
            sectors: 8,
            max_sectors: 8,
            optimal_sectors: 1,
            queue_depth: 1,
            volatile_cache: false,
            atomic: block::AtomicLimits::NONE,
        };
        let action = CommandAction::Flush;
        let command = NbdCommand { action, cookie: 1, offset: 0, length: 0, fua: false };
        let mut in_flight = InFlightRequests::default();
        let flight =
            || InFlightRequest::new(Default::default(), command, true, None, &limits, Nanos(0));
        let [first, second] = [0, 1].map(|_| in_flight.insert(flight()));
        in_flight.enqueue(first);
        in_flight.enqueue(second);
        in_flight.check_invariants().expect("nothing is broken yet");
        in_flight.remove(first);
        in_flight.check_invariants().expect("it left the backlog");
        assert_eq!(in_flight.first_queued(), Some(second));
        in_flight.dequeue();
        assert!(!in_flight.has_backlog() && !in_flight.is_queued(second));
    }

    #[test]
    #[should_panic(expected = "nbd: slot 7 has no request in flight")]
    fn a_completion_without_a_request_stops_the_server() {
        InFlightRequests::default().get_mut(7);
    }
}
