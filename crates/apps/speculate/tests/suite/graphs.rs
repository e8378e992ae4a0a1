//! Graphs: the results are those of one read at a time, with any depth.

use nvme::Status;
use rng::Rng;
use speculate::{GraphLookup, GraphRead, GraphStep, ReadGraph};
use user_io::Buffer;

use crate::late_file::{LateFile, SECTOR, file};

/// Sectors of a level of the tree, and of a run of the merge tree.
const FANOUT: u64 = 8;
const RUN: u64 = 16;

fn word(page: &Buffer, at: usize) -> u64 {
    let mut bytes = [0; 8];
    page.read(8 * at, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// A lookup in a tree of nodes whose words are the sectors of their children; a leaf has values.
struct TreeLookup {
    key: u64,
    levels: u32,
}

impl GraphLookup for TreeLookup {
    type Output = u64;

    fn begin(&mut self, reads: &mut Vec<GraphRead>) {
        reads.push(GraphRead { lba: 0 });
    }

    fn step(&mut self, page: &Buffer, reads: &mut Vec<GraphRead>) -> GraphStep<u64> {
        let child = word(page, (self.key / FANOUT.pow(self.levels) % FANOUT) as usize);
        if self.levels == 0 {
            return GraphStep::Done(child);
        }
        self.levels -= 1;
        reads.push(GraphRead { lba: child });
        GraphStep::Next
    }
}

/// A lookup in runs: the first one with the key counts. A page of a run has the key's value plus
/// 1, or 0.
struct RunsLookup {
    key: u64,
    runs: u64,
}

impl GraphLookup for RunsLookup {
    type Output = u64;

    fn begin(&mut self, reads: &mut Vec<GraphRead>) {
        reads.extend((0..self.runs).map(|run| GraphRead { lba: run * RUN + self.key }));
    }

    fn step(&mut self, page: &Buffer, _: &mut Vec<GraphRead>) -> GraphStep<u64> {
        match word(page, 0) {
            0 => GraphStep::Next,
            value => GraphStep::Done(value - 1),
        }
    }
}

fn write(path: &std::path::Path, sector: u64, words: &[u64]) {
    use std::os::unix::fs::FileExt as _;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&bytes, sector * SECTOR as u64).unwrap();
}

#[test]
fn lookups_in_a_tree_have_the_results_of_one_read_at_a_time() {
    let levels = 2;
    let (device, media) = file(1 + FANOUT + FANOUT * FANOUT);
    let path = media.path();
    write(path, 0, &(1..=FANOUT).collect::<Vec<_>>());
    for node in 0..FANOUT {
        let first = 1 + FANOUT + node * FANOUT;
        write(path, 1 + node, &(first..first + FANOUT).collect::<Vec<_>>());
        for leaf in 0..FANOUT {
            let values = (0..FANOUT).map(|at| 1000 + (node * FANOUT + leaf) * FANOUT + at);
            write(path, first + leaf, &values.collect::<Vec<_>>());
        }
    }
    for (seed, depth) in [(1, 1), (2, 2), (3, 7), (4, 64)] {
        let mut rng = Rng::new(seed);
        let keys: Vec<u64> = (0..300).map(|_| rng.below(FANOUT.pow(levels + 1))).collect();
        // The queue of the device is shorter than the graph is deep.
        let (handle, control) = LateFile::handle(&device, seed, 16);
        let mut graph = ReadGraph::new(&device, handle, 1, depth).unwrap();
        let lookups = keys.iter().map(|key| TreeLookup { key: *key, levels });
        let found = graph.run(lookups).unwrap();
        let expected: Vec<Option<u64>> = keys.iter().map(|key| Some(1000 + key)).collect();
        assert_eq!(found, expected, "depth {depth}");
        let stats = graph.stats();
        assert_eq!((stats.lookups, stats.reads, stats.unused), (300, 900, 0));
        assert_eq!(control.taken.borrow().len(), 900);
        assert_eq!(graph.run(std::iter::empty::<TreeLookup>()).unwrap(), []);
    }
}

#[test]
fn runs_are_read_early_and_the_newest_counts() {
    let (device, media) = file(4 * RUN);
    // Key k is in the runs from k % 5 on: that of the newest run, the first one, counts.
    for run in 0..4 {
        for key in (0..RUN).filter(|key| key % 5 <= run) {
            write(media.path(), run * RUN + key, &[100 * run + key + 1]);
        }
    }
    let expected = |key: u64| Some(100 * (key % 5) + key).filter(|_| key % 5 < 4);
    let mut reads = Vec::new();
    for depth in [1, 4, 64] {
        let (handle, _) = LateFile::handle(&device, u64::from(depth), 64);
        let mut graph = ReadGraph::new(&device, handle, 1, depth).unwrap();
        for _ in 0..3 {
            let keys = || (0..RUN).map(|key| RunsLookup { key, runs: 4 });
            let found = graph.run(keys()).unwrap();
            assert_eq!(found, (0..RUN).map(expected).collect::<Vec<_>>(), "depth {depth}");
        }
        let stats = graph.stats();
        assert!(stats.unused <= stats.reads);
        reads.push((stats.reads, stats.unused));
        assert_eq!(graph.into_handle().outstanding(), 0);
    }
    let wanted: u64 = (0..RUN).map(|key| (key % 5 + 1).min(4)).sum();
    assert_eq!(reads[0], (3 * wanted, 0), "one at a time reads what it needs");
    assert_eq!(reads[2].0 - reads[2].1, 3 * wanted);
    assert!(reads[2].1 > 0, "early reads of older runs are not used");
}

#[test]
fn a_page_that_is_wanted_and_cannot_be_read_is_an_error() {
    let (device, media) = file(4 * RUN);
    write(media.path(), 3, &[8]);
    for fails_at in 0..4 {
        let (handle, control) = LateFile::handle(&device, fails_at, 64);
        control.fails_at.set(Some(fails_at));
        let mut graph = ReadGraph::new(&device, handle, 1, 8).unwrap();
        // The key is in the first run: of the four reads one is wanted.
        match graph.run([RunsLookup { key: 3, runs: 4 }]) {
            Ok(found) => assert_eq!(found, [Some(7)]),
            Err(error) => assert_eq!(error.status(), Some(Status::WRITE_FAULT)),
        }
        // The buffers are all there again.
        control.fails_at.set(None);
        assert_eq!(graph.run([RunsLookup { key: 3, runs: 4 }]).unwrap(), [Some(7)]);
    }
    // Without a read a lookup has no result.
    let (handle, _) = LateFile::handle(&device, 9, 64);
    let mut graph = ReadGraph::new(&device, handle, 1, 1).unwrap();
    assert_eq!(graph.run([RunsLookup { key: 0, runs: 0 }]).unwrap(), [None]);
}
