//! Rule R9: the way of a request does not allocate. A counting allocator watches.

mod reads;

use std::alloc::{GlobalAlloc, Layout as Size, System};
use std::cell::Cell;

use driver::NullQueue;
use reads::{MQ, SQ, layer, work};
use sluice_block::Queue;

struct Counting;

thread_local! {
    /// Of this thread alone: the test harness's own allocates when it likes.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is the system's allocator's; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, size: Size) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(size) }
    }
    unsafe fn dealloc(&self, at: *mut u8, size: Size) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn no_request_allocates() {
    let check = |name: &str, queues: &mut [Queue<NullQueue>]| {
        let cores = queues.len() as u64;
        work(queues, 200);
        let before = ALLOCATIONS.get();
        assert_eq!(work(queues, 2000), 2000 * 32 * cores, "{name}");
        assert_eq!(ALLOCATIONS.get() - before, 0, "{name}");
    };
    for merge in [false, true] {
        check("mq", &mut layer(MQ, 1, "none", merge));
        check("sq", &mut layer(SQ, 1, "none", merge));
        check("mq, two cores on one queue", &mut layer(MQ, 2, "none", merge));
        check("sq, two cores", &mut layer(SQ, 2, "none", merge));
        check("mq, deadline", &mut layer(MQ, 1, "deadline", merge));
        check("sq, fair", &mut layer(SQ, 2, "fair", merge));
    }
}
