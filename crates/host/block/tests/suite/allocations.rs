//! Verifies with a counting allocator that the path of a request does not allocate memory
//! (ARCHITECTURE.md, R9).

// guarantee: B-05

use crate::reads;

use driver::NullQueue;
use reads::{MQ, SQ, layer, work};
use sluice_block::Queue;

#[test]
fn no_request_allocates() {
    let check = |name: &str, queues: &mut [Queue<NullQueue>]| {
        let cores = queues.len() as u64;
        work(queues, 200);
        let made = allocation_counter::measure(|| {
            assert_eq!(work(queues, 2000), 2000 * 32 * cores, "{name}");
        });
        assert_eq!(made.count_total, 0, "{name}");
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
