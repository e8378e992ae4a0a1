//! [`PendingLog`]: records and snapshots that are not durable yet, cut into frames.
//!
//! Frame numbers (`seq`) continue through generations as long as the journal lives, so that each
//! copy needs one cursor only. The records of a generation are one stream; each follows its length.
//! A frame says how much of its start belongs to a record of the previous frame.

use crate::ids::{ToIndex, ToU32};

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::capacity::RECORD_HEADER;
use super::frame::FrameKind;

collections::position_type! {
    /// The number of a frame.
    pub(crate) struct FrameSeq(pub(crate) u64), "frame ";
}

/// Buffers of frames kept for the next ones.
const BUFFERS_KEPT: usize = 8;

/// Contents of a run of frames.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum SegmentBody {
    /// One frame without payload.
    Start,
    /// As many frames as it takes.
    Snapshot(Vec<u8>),
    /// One frame.
    Records { payload: Vec<u8>, continues: u32 },
}

/// A run of frames of one generation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LogSegment {
    /// Number of the first frame.
    pub(crate) first_seq: FrameSeq,
    pub(crate) frames: u32,
    pub(crate) generation: u64,
    /// Number of the first frame in its generation.
    pub(crate) index: u32,
    /// The position that is durable when the whole segment is.
    pub(crate) position: u64,
    pub(crate) body: SegmentBody,
}

impl LogSegment {
    /// Returns whether its generation is complete only with it.
    pub(crate) fn is_base(&self) -> bool {
        !matches!(self.body, SegmentBody::Records { .. })
    }

    /// Number of the frame behind.
    pub(crate) fn end(&self) -> FrameSeq {
        self.first_seq + u64::from(self.frames)
    }

    /// Kind, payload and continued bytes of frame number `seq`.
    pub(crate) fn frame(&self, seq: FrameSeq, payload_bytes: usize) -> (FrameKind, &[u8], u32) {
        match &self.body {
            SegmentBody::Start => (FrameKind::Start, &[], 0),
            SegmentBody::Records { payload, continues } => {
                (FrameKind::Records, payload, *continues)
            }
            SegmentBody::Snapshot(bytes) => {
                let part = (seq - self.first_seq).index();
                let start = (part * payload_bytes).min(bytes.len());
                let end = (start + payload_bytes).min(bytes.len());
                let last = seq + 1 == self.end();
                let kind = if last { FrameKind::SnapshotEnd } else { FrameKind::SnapshotPart };
                (kind, &bytes[start..end], 0)
            }
        }
    }
}

/// Records and snapshots that are not durable yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PendingLog {
    segments: VecDeque<LogSegment>,
    /// Records of the open frame, and the number of its first bytes that continue a record.
    open_frame: Vec<u8>,
    continues: u32,
    buffers: Vec<Vec<u8>>,
    payload_bytes: usize,
    /// Number of the next frame.
    end: FrameSeq,
    generation: u64,
    /// Number of the next frame in its generation.
    index: u32,
    position: u64,
    durable: u64,
    /// The first frame of the newest generation, until that is complete.
    base: Option<FrameSeq>,
}

impl PendingLog {
    /// Creates an empty log. The next frame is number `index` of `generation`, and `position` is
    /// durable.
    pub(crate) fn new(
        payload_bytes: usize,
        generation: u64,
        index: u32,
        position: u64,
    ) -> PendingLog {
        PendingLog {
            segments: VecDeque::new(),
            open_frame: Vec::new(),
            continues: 0,
            buffers: Vec::new(),
            payload_bytes,
            end: FrameSeq(0),
            generation,
            index,
            position,
            durable: position,
            base: None,
        }
    }

    /// Returns the position behind everything appended.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the position up to which everything is durable.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// Number of the frame behind the last that is full.
    pub(crate) fn end(&self) -> FrameSeq {
        self.end
    }

    /// Number of the oldest frame.
    pub(crate) fn front(&self) -> Option<FrameSeq> {
        self.segments.front().map(|segment| segment.first_seq)
    }

    /// The newest generation.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns whether no frame is pending, full or open.
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns the number of open frames: one or none.
    pub(crate) fn open_frames(&self) -> u64 {
        u64::from(!self.open_frame.is_empty())
    }

    /// Returns the number of frames that a record of `bytes` bytes adds.
    pub(crate) fn frames_of_record(&self, bytes: usize) -> u64 {
        let stream = self.open_frame.len() + RECORD_HEADER + bytes;
        stream.div_ceil(self.payload_bytes) as u64 - self.open_frames()
    }

    /// The start of the newest generation, as long as it is not durable.
    pub(crate) fn base(&self) -> Option<&LogSegment> {
        self.base.and_then(|first| self.segment_at(first))
    }

    /// The segment with frame number `seq`.
    pub(crate) fn segment_at(&self, seq: FrameSeq) -> Option<&LogSegment> {
        let i = self.segments.partition_point(|s| s.end() <= seq);
        self.segments.get(i).filter(|s| s.first_seq <= seq)
    }

    fn push(&mut self, frames: u32, body: SegmentBody) {
        self.segments.push_back(LogSegment {
            first_seq: self.end,
            frames,
            generation: self.generation,
            index: self.index,
            position: self.position,
            body,
        });
        self.end += u64::from(frames);
        self.index += frames;
    }

    /// Closes the open frame, if it holds data.
    pub(crate) fn seal(&mut self) {
        if self.open_frame.is_empty() {
            return;
        }
        let empty = self.buffers.pop().unwrap_or_default();
        let payload = std::mem::replace(&mut self.open_frame, empty);
        let continues = std::mem::take(&mut self.continues);
        self.push(1, SegmentBody::Records { payload, continues });
    }

    /// Adds a record.
    pub(crate) fn record(&mut self, record: &[u8]) {
        let length = (record.len().to_u32()).to_le_bytes();
        for (part, last) in [(&length[..], false), (record, true)] {
            let mut rest = part;
            while !rest.is_empty() {
                let take = rest.len().min(self.payload_bytes - self.open_frame.len());
                self.open_frame.extend_from_slice(&rest[..take]);
                rest = &rest[take..];
                let ended = rest.is_empty() && (last || record.is_empty());
                if self.open_frame.len() == self.payload_bytes && !ended {
                    self.seal();
                    let left = rest.len() + if last { 0 } else { record.len() };
                    self.continues = left.min(self.payload_bytes).to_u32();
                }
            }
        }
        self.position += 1;
        if self.open_frame.len() == self.payload_bytes {
            self.seal();
        }
    }

    /// Begins a generation, with or without a snapshot.
    pub(crate) fn begin_generation(&mut self, generation: u64, snapshot: Option<Vec<u8>>) {
        self.generation = generation;
        self.index = 0;
        self.base = Some(self.end);
        match snapshot {
            None => self.push(1, SegmentBody::Start),
            Some(bytes) => {
                self.position += 1;
                let frames = bytes.len().div_ceil(self.payload_bytes).max(1).to_u32();
                self.push(frames, SegmentBody::Snapshot(bytes));
            }
        }
    }

    /// Drops the newest generation if none of it was programmed.
    pub(crate) fn discard_base(&mut self) {
        self.discard_open_frame();
        self.base = None;
        while let Some(segment) = self.segments.pop_back() {
            self.end = segment.first_seq;
            if segment.is_base() {
                break;
            }
        }
    }

    /// Drops the open frame.
    pub(crate) fn discard_open_frame(&mut self) {
        self.open_frame.clear();
        self.continues = 0;
    }

    /// Drops the frames before the newest generation, which supersedes them.
    pub(crate) fn discard_older(&mut self) {
        if self.base().is_some() {
            while self.segments.front().is_some_and(|s| s.generation != self.generation) {
                self.segments.pop_front();
            }
        }
    }

    /// Drops the frames before `done`, which are durable. Returns the generation that this
    /// completes, if any.
    pub(crate) fn mark_durable_to(&mut self, done: FrameSeq) -> Option<u64> {
        let mut complete = None;
        while let Some(segment) = self.segments.pop_front_if(|s| s.end() <= done) {
            self.durable = segment.position;
            match segment.body {
                SegmentBody::Records { mut payload, .. } if self.buffers.len() < BUFFERS_KEPT => {
                    payload.clear();
                    self.buffers.push(payload);
                }
                SegmentBody::Records { .. } => {}
                SegmentBody::Start | SegmentBody::Snapshot(_) => {
                    complete = Some(segment.generation);
                    self.base = self.base.filter(|first| *first != segment.first_seq);
                }
            }
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_cut_at_frames_and_say_so() {
        let mut backlog = PendingLog::new(10, 3, 7, 100);
        // Lengths with their four bytes: 7, 4, 27, 4: in frames of 10.
        assert_eq!(backlog.frames_of_record(3), 1);
        backlog.record(b"abc");
        assert_eq!((backlog.open_frames(), backlog.frames_of_record(0)), (1, 1));
        assert_eq!(backlog.frames_of_record(23), 3);
        backlog.record(b"");
        backlog.record(&[b'x'; 23]);
        backlog.seal();
        backlog.seal();
        backlog.record(b"");
        backlog.seal();
        let frames: Vec<(u32, u64, usize, u32)> = backlog
            .segments
            .iter()
            .map(|s| {
                let (kind, payload, continues) = s.frame(s.first_seq, 10);
                assert_eq!((kind, s.generation), (FrameKind::Records, 3));
                (s.index, s.position, payload.len(), continues)
            })
            .collect();
        // The second record's length is cut after three bytes.
        let expected = [(7, 101, 10, 0), (8, 102, 10, 1), (9, 102, 10, 10), (10, 103, 8, 8)];
        assert_eq!(frames[..4], expected);
        assert_eq!(frames[4], (11, 104, 4, 0));
        assert_eq!(backlog.mark_durable_to(FrameSeq(2)), None);
        assert_eq!(backlog.durable(), 102);
        assert_eq!(backlog.segment_at(FrameSeq(2)).unwrap().index, 9);
        assert!(
            backlog.segment_at(FrameSeq(1)).is_none() && backlog.segment_at(FrameSeq(5)).is_none()
        );
    }

    #[test]
    fn a_snapshot_is_as_many_frames_as_it_takes() {
        let mut backlog = PendingLog::new(10, 1, 0, 0);
        for (bytes, frames) in [(0, 1), (1, 1), (10, 1), (11, 2), (35, 4)] {
            backlog.begin_generation(backlog.generation() + 1, Some((0..bytes).collect()));
            let segment = backlog.base().unwrap();
            assert_eq!((segment.frames, segment.index), (frames, 0));
            let mut all = Vec::new();
            for seq in segment.first_seq.run(segment.frames.into()) {
                let (kind, payload, _) = segment.frame(seq, 10);
                assert_eq!(kind.is_base_end(), seq + 1 == segment.end());
                all.extend_from_slice(payload);
            }
            assert_eq!(all, (0..bytes).collect::<Vec<u8>>());
        }
        assert_eq!((backlog.position(), backlog.end()), (5, FrameSeq(9)));
        assert_eq!(backlog.mark_durable_to(FrameSeq(4)), Some(4));
        assert_eq!(backlog.durable(), 3);
    }

    #[test]
    fn generations_are_forgotten_from_either_end() {
        let mut backlog = PendingLog::new(10, 1, 4, 0);
        backlog.record(b"old");
        backlog.seal();
        backlog.begin_generation(2, Some(vec![1; 15]));
        backlog.record(b"new");
        backlog.discard_base();
        assert_eq!((backlog.end(), backlog.open_frames()), (FrameSeq(1), 0));
        backlog.begin_generation(2, None);
        assert_eq!(backlog.end(), FrameSeq(2));
        backlog.discard_older();
        assert_eq!(backlog.segments.len(), 1);
        assert_eq!(backlog.durable(), 0);
        assert_eq!(backlog.mark_durable_to(FrameSeq(2)), Some(2));
        assert_eq!((backlog.durable(), backlog.is_empty()), (3, true));
    }
}
