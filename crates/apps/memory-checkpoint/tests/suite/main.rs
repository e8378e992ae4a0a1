//! Tests of both checkpoints.

use memory_checkpoint::{
    CheckpointError, IncrementalCheckpoint, PageMemory, PageSize, fork_checkpoint,
};

/// Returns a checkpoint; skips the test on an old kernel or without the right.
fn incremental(pages: usize, size: PageSize) -> Option<IncrementalCheckpoint> {
    let memory = PageMemory::new(4096 * pages, size).expect("memory");
    match IncrementalCheckpoint::new(memory) {
        Ok(checkpoint) => Some(checkpoint),
        Err(CheckpointError::Unsupported { feature, source }) => {
            testkit::skip!("{feature}: {source}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// guarantee: V-24
#[test]
fn a_checkpoint_copies_what_was_written_and_restores_it() {
    for size in [PageSize::Small, PageSize::Huge] {
        let Some(mut checkpoint) = incremental(4096, size) else { return };
        let mut expected = vec![1; 4096];
        let mut state = 12345_u64;
        for round in 2..40_u8 {
            let mut written = std::collections::BTreeSet::new();
            for _ in 0..u64::from(round) * 40 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let page = (state >> 40) as usize % 4096;
                checkpoint.memory().write_page(page, round);
                written.insert(page);
            }
            let pages = if round % 3 == 0 {
                checkpoint.restore().expect("restored")
            } else {
                for page in &written {
                    expected[*page] = round;
                }
                checkpoint.take().expect("taken")
            };
            // The kernel may remove the protection of a huge page as a whole.
            match size {
                PageSize::Small => assert_eq!(pages, written.len(), "round {round}"),
                PageSize::Huge => assert!(pages >= written.len(), "round {round}"),
            }
            for (page, byte) in expected.iter().enumerate() {
                assert_eq!(checkpoint.memory().read_page(page), *byte, "page {page}");
            }
        }
        assert_eq!(checkpoint.take().expect("taken"), 0);
    }
}

#[test]
fn more_ranges_than_a_call_returns_are_all_found() {
    let Some(mut checkpoint) = incremental(8192, PageSize::Small) else { return };
    for page in (0..8192).step_by(2) {
        checkpoint.memory().write_page(page, 9);
    }
    assert_eq!(checkpoint.take().expect("taken"), 4096);
    assert_eq!(checkpoint.restore().expect("restored"), 0);
    checkpoint.protect_all().expect("protected");
    assert_eq!(checkpoint.take().expect("taken"), 0);
}

#[test]
fn a_clone_is_ended_and_the_writes_are_those_of_this_process() {
    let memory = PageMemory::new(64 * 4096, PageSize::Small).expect("memory");
    for round in 0..20 {
        fork_checkpoint(|| memory.write_page(round, 7)).expect("cloned");
    }
    assert!((0..20).all(|page| memory.read_page(page) == 7));
    assert_eq!(memory.read_page(20), 1);
}

#[test]
#[should_panic(expected = "page 4 of 4")]
fn pages_outside_of_the_memory_are_not_accessed() {
    PageMemory::new(4 * 4096, PageSize::Small).expect("memory").read_page(4);
}
