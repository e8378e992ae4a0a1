//! Group `block` on a modeled machine: `sluice bench block --machine 8x10`.
//!
//! It reproduces figures 4 and 6 (`sq`, `mq`, `raw`), 7 (latency), 9 and 10 (numbers of queues) of
//! \[SYSTOR13\] by running the block layer's own code on modeled cores. The first rows are the cost
//! model. Each tells whether its value was measured in this run or published, with the source; all
//! other rows are modeled. Results depend on the cost model only.
//!
//! The part `largest` is table 2 of \[SYSTOR13\]: the largest latencies at queue depth 1, and the
//! share of requests above 1 ms, with all cores, beside other work (`OTHER_WORK`). The paper does
//! not say what else its machines did; the work was chosen before the first run, and is the same for
//! all machines and curves.

use event::AllowedCpus;
use machine::Variation;
use time::Nanos;

use super::super::{BenchError, BlockPart, CostSource, Measurement, RunLength, Sink};
use crate::multicore::{
    BackgroundLoad, Cost, CostModel, CostOrigin, Curve, Distance, Load, LoadOutcome, Machine,
    MeasuredCosts, Model, SnoopPolicy,
};

/// Outstanding requests per core for throughput ([SYSTOR13 §4.2]).
const DEPTH: u32 = 32;

/// Other work on each core: 10 % of its time, in one part per period. Linux's fair scheduler divides
/// a part of this length into several slices.
const OTHER_WORK: BackgroundLoad = BackgroundLoad {
    work: Nanos::from_millis(50),
    period: Nanos::from_millis(500),
    // \[Switch07\], as in the models of machines.
    switch: Nanos(3_800),
    measured: Nanos::from_millis(500),
};

/// Curves with latency (figure 7, table 2).
const LATENCY: [Curve; 3] = [Curve::Raw, Curve::Single, Curve::PER_SOCKET];

/// Runs parts of the group on `machine`.
///
/// # Errors
/// What measuring and the block layer return; see [`BenchError`].
pub fn run(
    machine: Machine,
    parts: &[BlockPart],
    sheet: CostSource,
    vary: Option<&Variation>,
    effort: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let mut costs = match sheet {
        CostSource::Given => CostModel::GIVEN,
        CostSource::Measured => {
            let measured = MeasuredCosts::measure(effort, &AllowedCpus::allowed())?;
            let costs = measured.cost_model();
            if let Some(transfer) =
                measured.transfer.filter(|_| costs.read[0].origin == CostOrigin::Given)
            {
                let (origin, what) = (CostOrigin::Measured.as_str(), "a line between two cores");
                let source = "not used: farther than the given other socket";
                sink.push(cost_row(machine, origin, what, source, transfer))?;
            }
            costs
        }
    };
    if let Some(vary) = vary {
        costs = costs.varied(vary).map_err(BenchError::Usage)?;
    }
    push_cost_model(machine, &costs, sink)?;
    let model = Model { machine, cost_model: costs, snoops: SnoopPolicy::Home };
    for part in parts {
        match part {
            BlockPart::Curves => report(&model, effort, sink)?,
            BlockPart::Largest => largest(&model, effort, sink)?,
        }
    }
    Ok(())
}

fn push_cost_model(
    machine: Machine,
    costs: &CostModel,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let CostModel { hit, read, write, socket_shared, application, compute, .. } = costs;
    let [near, board, boards] = Distance::ALL.map(|distance| distance as usize);
    let rows: [(&str, &Cost); 13] = [
        ("a line that the core has", hit),
        ("a line to read, same socket", &read[near]),
        ("a line to read, other socket", &read[board]),
        ("a line to read, other board", &read[boards]),
        ("a line to write, same socket", &write[near]),
        ("a line to write, other socket", &write[board]),
        ("a line to write, other board", &write[boards]),
        ("a shared line of the socket, where that answers for it", socket_shared),
        ("a request outside the block layer", application),
        ("a request on a hardware queue", &compute.raw),
        ("a request through owned queues", &compute.owned),
        ("a request under a lock", &compute.locked),
        ("a poll without result", &compute.idle),
    ];
    for (what, cost) in rows {
        sink.push(cost_row(machine, cost.origin.as_str(), what, cost.source, cost.time))?;
    }
    let link = "a transfer on the link between boards (12 flits over 4 QPI links)";
    let (case, value) = (format!("{machine} given: {link}"), costs.link_ps as f64 / 1e3);
    sink.push(Measurement::new("block", case, "cost", value, "ns"))
}

fn cost_row(machine: Machine, origin: &str, what: &str, source: &str, time: Nanos) -> Measurement {
    let case = format!("{machine} {origin}: {what} ({source})");
    Measurement::new("block", case, "cost", time.0 as f64, "ns")
}

/// One curve: a result per number of cores.
struct Points {
    name: String,
    curve: Curve,
    points: Vec<(usize, LoadOutcome)>,
}

impl Points {
    fn iops_at(&self, cores: usize) -> f64 {
        self.points.iter().find(|(at, _)| *at == cores).map_or(f64::NAN, |(_, o)| o.iops)
    }

    /// Returns the number of cores with the maximum, and the maximum.
    fn peak(&self) -> (usize, f64) {
        let higher = |best: (usize, f64), (cores, outcome): &(usize, LoadOutcome)| {
            if outcome.iops > best.1 { (*cores, outcome.iops) } else { best }
        };
        self.points.iter().fold((0, f64::NAN), |best, point| {
            if best.1.is_nan() { (point.0, point.1.iops) } else { higher(best, point) }
        })
    }
}

/// Returns the load for this many cores.
fn load(depth: u32, cores: usize, effort: RunLength) -> Load {
    let count = (effort.choose(8_000, 600) / cores as u64).max(effort.choose(100, 30));
    Load { depth, warm: effort.choose(40, 20), count, shared_counter: false }
}

/// Returns every number of cores of the first socket, then the first, the middle and the last core
/// of each socket. A quick run has fewer.
fn core_counts(machine: Machine, effort: RunLength) -> Vec<usize> {
    let per = machine.cores_per_socket();
    let mut counts: Vec<usize> = effort.choose((1..=per).collect(), vec![1, 2.min(per), per]);
    for socket in 1..machine.sockets() {
        let before = socket * per;
        counts.extend(effort.choose(vec![before + 1, before + per.div_ceil(2)], Vec::new()));
        counts.push(before + per);
    }
    counts.dedup();
    counts
}

fn report(model: &Model, effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let machine = model.machine;
    let counts = core_counts(machine, effort);
    let mut curves = Vec::new();
    for curve in Curve::ALL {
        let row = |cores| load(DEPTH, cores, effort);
        curves.push(throughput(model, curve, &curve.name(), &counts, row, sink)?);
    }
    let sockets: Vec<usize> =
        (1..=machine.sockets()).map(|s| s * machine.cores_per_socket()).collect();
    // Figure 6: an application whose requests all modify one counter.
    for curve in [Curve::Raw, Curve::PER_SOCKET] {
        let name = format!("{}, application with a shared counter", curve.name());
        let row = |cores| Load { shared_counter: true, ..load(DEPTH, cores, effort) };
        let counts = effort.choose(&counts, &sockets);
        curves.push(throughput(model, curve, &name, counts, row, sink)?);
    }
    // Effect of the snoop policy.
    let filtered = Model { snoops: SnoopPolicy::Filtered, ..*model };
    for curve in [Curve::Single, Curve::PER_SOCKET] {
        let name = format!("{}, sockets answer for their lines", curve.name());
        let row = |cores| load(DEPTH, cores, effort);
        curves.push(throughput(&filtered, curve, &name, &sockets, row, sink)?);
    }
    for curve in LATENCY {
        latency(model, curve, effort.choose(&counts, &sockets), effort, sink)?;
    }
    summary(machine, &curves, sink)
}

fn case(machine: Machine, name: &str, cores: usize) -> String {
    let word = if cores == 1 { "core" } else { "cores" };
    format!("{machine} modelled: {name}, {cores} {word}")
}

fn throughput(
    model: &Model,
    curve: Curve,
    name: &str,
    counts: &[usize],
    load: impl Fn(usize) -> Load,
    sink: &mut Sink<'_>,
) -> Result<Points, BenchError> {
    let mut points = Vec::new();
    for cores in counts {
        let case = case(model.machine, name, *cores);
        let Some((outcome, traffic)) = model.run(curve, *cores, load(*cores))? else {
            return Err(BenchError::NoValue { case, metric: "iops" });
        };
        sink.push(Measurement::new("block", case.clone(), "iops", outcome.iops, "IOPS"))?;
        let fetched = (traffic.in_socket + traffic.on_board + traffic.across) as f64;
        if *cores == model.machine.cores() {
            let fetches = fetched / outcome.count as f64;
            sink.push(Measurement::new(
                "block",
                case.clone(),
                "lines_fetched",
                fetches,
                "per I/O",
            ))?;
            if model.machine.has_boards() {
                let busy = traffic.link_ps as f64 / (outcome.time.0 as f64 * 10.0);
                sink.push(Measurement::new("block", case, "board_link_busy", busy, "%"))?;
            }
        }
        points.push((*cores, outcome));
    }
    Ok(Points { name: name.to_owned(), curve, points })
}

fn latency(
    model: &Model,
    curve: Curve,
    counts: &[usize],
    effort: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    for cores in counts {
        let case = case(model.machine, &format!("{}, QD 1", curve.name()), *cores);
        let Some((outcome, _)) = model.run(curve, *cores, load(1, *cores, effort))? else {
            return Err(BenchError::NoValue { case, metric: "latency_mean" });
        };
        let us = |time: Nanos| time.0 as f64 / 1e3;
        for (metric, time) in [("latency_mean", outcome.mean), ("latency_max", outcome.max)] {
            sink.push(Measurement::new("block", case.clone(), metric, us(time), "us"))?;
        }
    }
    Ok(())
}

/// Measures the largest latencies and the shares above 1 ms beside other work (table 2).
fn largest(model: &Model, effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let (machine, cores) = (model.machine, model.machine.cores());
    let work = effort.choose(
        OTHER_WORK,
        BackgroundLoad {
            work: Nanos::from_millis(2),
            period: Nanos::from_millis(10),
            measured: Nanos::from_millis(10),
            ..OTHER_WORK
        },
    );
    for (what, time) in [
        ("other work on each core, in each period", work.work),
        ("period of the other work", work.period),
        ("a switch between two threads (Switch07)", work.switch),
    ] {
        let case = format!("{machine} chosen: {what}");
        sink.push(Measurement::new("block", case, "cost", time.0 as f64, "ns"))?;
    }
    for curve in LATENCY {
        let case =
            format!("{machine} modelled: {}, QD 1, all cores, beside other work", curve.name());
        let load = Load { depth: 1, warm: effort.choose(40, 20), count: 0, shared_counter: false };
        let Some((outcome, _)) = model.run_beside(curve, cores, load, Some(work))? else {
            return Err(BenchError::NoValue { case, metric: "latency_max" });
        };
        let LoadOutcome { iops, mean, max, count, slow, .. } = outcome;
        for (metric, value, unit) in [
            ("iops", iops, "IOPS"),
            ("latency_mean", mean.0 as f64 / 1e3, "us"),
            ("latency_max", max.0 as f64 / 1e6, "ms"),
            ("above_1_ms", slow as f64 * 100.0 / count as f64, "%"),
        ] {
            sink.push(Measurement::new("block", case.clone(), metric, value, unit))?;
        }
    }
    Ok(())
}

fn summary(machine: Machine, curves: &[Points], sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let (all, per) = (machine.cores(), machine.cores_per_socket());
    let single = curves.iter().find(|c| c.name == Curve::Single.name()).map(|c| c.iops_at(all));
    let mut row = |what: String, metric, value, against: Option<(String, f64)>| {
        let case = format!("{machine} summary: {what}");
        let row = Measurement::new("block", case, metric, value, "IOPS");
        sink.push(match against {
            Some((what, value)) => row.with_reference(what, value),
            None => row,
        })
    };
    for curve in curves {
        let (cores, most) = curve.peak();
        row(format!("{}, most, with {cores} cores", curve.name), "iops_most", most, None)?;
        let against = single.map(|single| (format!("sq, {all} cores"), single));
        let full = format!("{}, all {all} cores", curve.name);
        row(full, "iops_all_cores", curve.iops_at(all), against)?;
        // Gain per socket, before and after the fifth, for curves that grow.
        let grows = [Curve::PER_CORE, Curve::PER_SOCKET].contains(&curve.curve);
        if machine.has_boards() && grows {
            let last = machine.sockets().min(8);
            let added = |from: usize, to: usize| {
                (curve.iops_at(to * per) - curve.iops_at(from * per)) / (to - from) as f64
            };
            row(
                format!("{}, a socket of the second board adds", curve.name),
                "iops_per_socket",
                added(4, last),
                Some(("a socket of the first board".to_owned(), added(1, 4))),
            )?;
        }
    }
    Ok(())
}
