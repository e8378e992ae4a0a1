//! [`EngineStations`]: the time that the engines of a drive take. An input waits for the first engine
//! that is free, in the order of arrival.

use std::collections::VecDeque;

use ftl::ChosenLine;
use nvme::Status;
use rules::AppId;
use time::Nanos;

/// The step that follows the decision of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EngineWork {
    /// The command starts.
    Start(u32),
    /// The command ends with the status of these bits.
    End(u32, u16),
    /// No rule matches an input of the command.
    Miss(u32),
    /// The rules of the command wait for a sector.
    Fetch(u32),
    /// An input of the command waits for a context.
    Wait(u32),
    /// Nothing.
    Nothing,
    /// The FTL learns of its victim.
    Victim,
    /// A line of an application is relocated.
    Relocate(AppId, ChosenLine),
}

impl EngineWork {
    pub(super) fn end(id: u32, status: Status) -> EngineWork {
        EngineWork::End(id, status.to_bits())
    }
}

/// The time of an input in its station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StationTime {
    pub(super) start: Nanos,
    pub(super) end: Nanos,
}

/// An input in an engine.
#[derive(Clone, Copy, Debug)]
struct EnteredInput {
    /// The time at which it leaves.
    end: Nanos,
    /// Its number in the order of arrival.
    arrival: u64,
    work: EngineWork,
}

/// An engine. Its inputs leave in the order of arrival.
#[derive(Clone, Debug, Default)]
struct Station {
    free_at: Nanos,
    inside: VecDeque<EnteredInput>,
}

/// The engines, and the inputs in them.
#[derive(Clone, Debug)]
pub(super) struct EngineStations {
    /// One or more.
    engines: Vec<Station>,
    arrivals: u64,
    /// Time in which engines worked.
    pub(super) busy: Nanos,
}

impl EngineStations {
    pub(super) fn new(engines: u16) -> EngineStations {
        let engines = vec![Station::default(); usize::from(engines.max(1))];
        EngineStations { engines, arrivals: 0, busy: Nanos::ZERO }
    }

    /// Queues an input that takes `time` once an engine is free.
    pub(super) fn enqueue(&mut self, now: Nanos, time: Nanos, work: EngineWork) -> StationTime {
        let first_free = (0..self.engines.len()).min_by_key(|index| self.engines[*index].free_at);
        let engine = &mut self.engines[first_free.unwrap_or(0)];
        let start = now.max(engine.free_at);
        let end = start + time;
        engine.free_at = end;
        self.busy += time;
        self.arrivals += 1;
        engine.inside.push_back(EnteredInput { end, arrival: self.arrivals, work });
        StationTime { start, end }
    }

    /// Returns the index of the engine with the next input that leaves.
    fn next_engine(&self) -> Option<usize> {
        let fronts = self.engines.iter().zip(0..);
        let fronts = fronts.filter_map(|(engine, index)| Some((engine.inside.front()?, index)));
        let next = fronts.min_by_key(|(input, _)| (input.end, input.arrival));
        next.map(|(_, index)| index)
    }

    /// Returns the time at which the next input leaves.
    pub(super) fn next_at(&self) -> Nanos {
        let ends = self.engines.iter().filter_map(|engine| Some(engine.inside.front()?.end));
        ends.min().unwrap_or(Nanos::MAX)
    }

    /// Removes and returns the next input that has left by `now`.
    pub(super) fn pop_due(&mut self, now: Nanos) -> Option<(Nanos, EngineWork)> {
        let engine = self.next_engine()?;
        let inside = &mut self.engines[engine].inside;
        let EnteredInput { end, work, .. } = *inside.front().filter(|input| input.end <= now)?;
        inside.pop_front();
        Some((end, work))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.engines.iter().all(|engine| engine.inside.is_empty())
    }

    /// Removes all inputs.
    pub(super) fn clear(&mut self) {
        self.engines.fill(Station::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_wait_for_the_first_free_engine() {
        let mut stations = EngineStations::new(2);
        let ends: Vec<u64> = [30, 10, 10, 10]
            .into_iter()
            .zip(0..)
            .map(|(time, id)| stations.enqueue(Nanos(5), Nanos(time), EngineWork::Start(id)).end.0)
            .collect();
        assert_eq!(ends, [35, 15, 25, 35]);
        assert_eq!((stations.next_at(), stations.busy), (Nanos(15), Nanos(60)));
        assert_eq!(stations.pop_due(Nanos(14)), None);
        let left: Vec<EngineWork> =
            std::iter::from_fn(|| stations.pop_due(Nanos(100)).map(|(_, work)| work)).collect();
        assert_eq!(left, [1, 2, 0, 3].map(EngineWork::Start), "equal times: first come first");
        assert!(stations.is_empty());
        stations.enqueue(Nanos(0), Nanos(1), EngineWork::Victim);
        stations.clear();
        assert_eq!(stations.next_at(), Nanos::MAX);
    }
}
