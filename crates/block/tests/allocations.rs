//! Rule R9: the way of a request does not allocate. A counting allocator watches.

mod reads;

use std::alloc::{GlobalAlloc, Layout as Size, System};
use std::sync::atomic::{AtomicU64, Ordering};

use driver::NullQueue;
use reads::{MQ, SQ, layer, work};
use sluice_block::Queue;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is the system's allocator's; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, size: Size) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
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
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        assert_eq!(work(queues, 2000), 2000 * 32 * cores, "{name}");
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "{name}");
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
