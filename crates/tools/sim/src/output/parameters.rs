//! [`parameters`]: the parameters of a scenario as plain keys and values, with defaults and presets
//! resolved.

use block::sched::{GroupChange, GroupThrottle, LimitKind, SchedulerConfig};
use controller::{
    ArbitrationConfig, DriveConfig, PersonalityKind, PmrStore, PuScheduling, SataData,
    SataDriveConfig, SuspendConfig, WriteBuffer,
};
use ftl::{
    ControlChange, FtlConfig, GcReadPriority, LineMetadata, P2lLocation, RateLimiterKind,
    VictimPolicyKind,
};
use media::{CellType, DataStore, MediaConfig, NandConfig, PcmConfig};
use scenario::{
    AhciUplink, Amount, BlockLayerSpec, ChangedSettings, CompletionPolicy, DriveKind, DriveSpec,
    FileDrive, Fill, HostTarget, KernelDrive, Overwrite, PathConfig, PathSpec, Precondition,
    Scenario, SetSpec, TargetSpec, TimedChange,
};
use serde_json::{Map, Value, json};

use crate::output::faults::insert_fault;
use crate::output::rules::{rule_settings, target_rule_settings};

/// Returns the scenario as it is run, without its jobs, which are in fio's part of the results.
pub fn parameters(scenario: &Scenario) -> Value {
    let mut parameters = json!({
        "seed": scenario.seed,
        "drives": scenario.drives.iter().map(drive).collect::<Vec<_>>(),
        "path": path(&scenario.path),
        "host": {
            "submit_ns": scenario.host.submit_cost.unwrap_or_default().0,
            "complete_ns": scenario.host.complete_cost.unwrap_or_default().0,
        },
        "precondition": precondition(&scenario.precondition),
    });
    if let Some(cost) = scenario.host.interrupt_cost {
        parameters["host"]["interrupt_ns"] = json!(cost.0);
    }
    if let Some(machine) = &scenario.host.machine {
        parameters["host"] = json!({
            "machine": machine.model.name(),
            "kernel": machine.kernel.word(),
        });
    }
    if scenario.ahci().is_some() {
        let AhciUplink { bytes_per_sec, link_up } = scenario.host.ahci;
        parameters["ahci"] =
            json!({ "uplink_bytes_per_sec": bytes_per_sec, "link_up_ns": link_up.0 });
    }
    if !scenario.composition.is_empty() {
        let named = &scenario.composition;
        parameters["targets"] = named.targets.iter().map(|t| target(scenario, t)).collect();
        parameters["sets"] = named.sets.iter().map(|s| set(scenario, s)).collect();
        parameters["paths"] = scenario.paths().iter().map(|p| named_path(scenario, p)).collect();
    }
    let (faults, changes): (Vec<&TimedChange>, Vec<&TimedChange>) =
        scenario.changes.iter().partition(|timed| is_fault(timed));
    for (key, timed) in [("changes", changes), ("faults", faults)] {
        if !timed.is_empty() {
            let timed = timed.into_iter().map(|timed| timed_change(scenario, timed));
            parameters[key] = timed.collect();
        }
    }
    parameters
}

fn is_fault(timed: &TimedChange) -> bool {
    matches!(timed.settings, ChangedSettings::Fault { .. })
}

fn timed_change(scenario: &Scenario, timed: &TimedChange) -> Value {
    let mut value = json!({ "time_ns": timed.time.0 });
    match &timed.settings {
        ChangedSettings::Ftl { device, changes } => {
            value["device"] = json!(scenario.device_name(*device));
            for (change, _) in changes {
                match *change {
                    ControlChange::ActivePus(count) => value["active_pus"] = json!(count),
                    ControlChange::RateLimiter(kind) => value["rate_limiter"] = rate_limiter(kind),
                    ControlChange::VictimPolicy(kind) => {
                        value["victim_policy"] = json!(victim_policy(kind));
                    }
                }
            }
        }
        ChangedSettings::Group { path, group, changes } => {
            value["path"] = json!(scenario.paths()[*path].name);
            value["group"] = json!(group.0);
            for (change, _) in changes {
                match *change {
                    GroupChange::Weight(weight) => value["weight"] = json!(weight),
                    GroupChange::Rate { of, per_sec } => value[limit_key(of)] = json!(per_sec),
                }
            }
        }
        ChangedSettings::Fault { drive, fault } => {
            value["drive"] = json!(scenario.drives[*drive].config.name);
            insert_fault(fault, &mut value);
        }
    }
    value
}

/// Returns the key of a limit in results: operations or bytes per second.
fn limit_key(of: LimitKind) -> &'static str {
    match of {
        LimitKind::ReadOperations => "read_iops",
        LimitKind::ReadBytes => "read_bytes_per_sec",
        LimitKind::WriteOperations => "write_iops",
        LimitKind::WriteBytes => "write_bytes_per_sec",
    }
}

/// Returns the keyword of a victim policy in scenarios and results.
pub fn victim_policy(kind: VictimPolicyKind) -> &'static str {
    match kind {
        VictimPolicyKind::Greedy => "greedy",
        VictimPolicyKind::CostBenefit => "cost-benefit",
        VictimPolicyKind::Fifo => "fifo",
        VictimPolicyKind::CostWear => "cost-wear",
    }
}

/// Returns a rate limiter as in results: its kind, and the gains of its controller.
pub fn rate_limiter(kind: RateLimiterKind) -> Value {
    match kind {
        RateLimiterKind::Proportional => json!({ "kind": "proportional" }),
        RateLimiterKind::Pid { kp, ki, kd } => {
            json!({ "kind": "pid", "kp": kp, "ki": ki, "kd": kd })
        }
    }
}

fn target(scenario: &Scenario, t: &TargetSpec) -> Value {
    let named = &t.target;
    json!({
        "name": named.name,
        "drive": scenario.drives[t.drive].config.name,
        "kind": named.kind.map(|kind| kind.as_str()),
        "pus": named.pus.as_ref().map(|pus| pus.to_string()),
    })
}

fn set(scenario: &Scenario, s: &SetSpec) -> Value {
    let members = s.members.iter().map(|member| scenario.device_name(*member));
    json!({
        "name": s.name,
        "members": members.collect::<Vec<_>>(),
        "stripe_bytes": s.stripe_bytes,
    })
}

fn named_path(scenario: &Scenario, p: &PathSpec) -> Value {
    let mut value = path(&p.config);
    value["name"] = json!(p.name);
    value["over"] = json!(scenario.device_name(p.over));
    value
}

fn precondition(p: &Precondition) -> Value {
    let mut value = json!({
        "fill": match p.fill {
            Fill::None => "none",
            Fill::Sequential => "sequential",
        },
        "overwrite": p.overwrite.iter().map(overwrite).collect::<Vec<_>>(),
        "until": p.until.map(|u| json!({ "kind": "steady", "round": u.round, "rounds": u.rounds_max })),
    });
    if p.sampled {
        value["steady"] = json!("sampled");
    }
    value
}

fn overwrite(o: &Overwrite) -> Value {
    let words = o.words.iter().map(|(key, value)| (key.clone(), json!(value)));
    let mut object: Map<String, Value> = words.collect();
    match o.amount {
        Amount::Times(times) => object.insert("amount_capacities".into(), json!(times)),
        Amount::Bytes(bytes) => object.insert("amount_bytes".into(), json!(bytes)),
    };
    Value::Object(object)
}

/// Returns the parameters of a SATA drive; its sizes and times have the names of the scenario's keys.
fn sata_drive(name: &str, sata: &SataDriveConfig) -> Value {
    json!({
        "name": name,
        "kind": "ahci",
        "capacity_bytes": sata.sectors * u64::from(sata.sector_bytes),
        "data": match sata.data {
            SataData::Memory => "memory",
            SataData::Pattern | SataData::Untouched => "none",
        },
        "sata": {
            "sector_bytes": sata.sector_bytes,
            "queue_depth": sata.queue_depth,
            "read_command_ns": sata.read_command.0,
            "write_command_ns": sata.write_command.0,
            "processor_bytes_per_sec": sata.processor_bytes_per_sec,
            "units": sata.units,
            "unit_bytes": sata.unit_bytes,
            "array_read_ns": sata.array_read.0,
            "link_bytes_per_sec": sata.link_bytes_per_sec,
            "link_command_ns": sata.link_command.0,
            "cache_bytes": sata.cache_bytes,
            "drain_bytes_per_sec": sata.drain_bytes_per_sec,
            "flush_ns": sata.flush_time.0,
            "trim_ns": sata.trim_time.0,
        },
    })
}

fn drive(plan: &DriveSpec) -> Value {
    let config = &plan.config;
    match &plan.kind {
        DriveKind::Nvme => {}
        DriveKind::Ahci(sata) => return sata_drive(&config.name, sata),
        DriveKind::File(FileDrive { path, .. }) | DriveKind::Kernel(KernelDrive { path, .. }) => {
            let path = path.display().to_string();
            return json!({ "name": config.name, "kind": plan.kind.word(), "path": path });
        }
        DriveKind::Pci(pci) => {
            let address = pci.address.to_string();
            return json!({ "name": config.name, "kind": plan.kind.word(), "address": address });
        }
    }
    let mut object = Map::new();
    let mut set = |key: &str, value: Value| {
        object.insert(key.to_owned(), value);
    };
    set("name", json!(config.name));
    set("preset", json!(plan.preset));
    set("personality", json!(personality(config)));
    set("media", media(&config.media));
    if let Some(lba_bytes) = config.lba_bytes {
        set("lba_bytes", json!(lba_bytes));
    }
    if config.protection.is_some() {
        set("protection", json!("type1"));
    }
    if !config.controller.namespaces.is_default() {
        let sizes = config.controller.namespaces.sizes();
        let size = |size: Option<u64>| size.map_or(json!("rest"), |bytes| json!(bytes));
        set("namespaces", sizes.map(size).collect());
    }
    if let Some(rules) = &config.rules {
        set("rules", rule_settings(rules, config.ftl.hot_stream));
    }
    if let HostTarget::Rules(target) = &plan.target {
        set("rules", target_rule_settings(&target.rules, target.ftl.hot_stream));
    }
    set("controller", controller(config));
    set("pu_scheduling", pu_policy(&config.pu_scheduling));
    set("page_register", json!(config.page_register));
    set("cache_program", json!(config.cache_program));
    set("cache_read", json!(config.transfers.cache_read));
    set("dedicated_read_register", json!(config.transfers.dedicated_read_register));
    set("transfer_by_page", json!(config.transfers.by_page));
    set("target", json!(plan.target.label()));
    set("shards", json!(plan.shards));
    match (&plan.target, config.personality) {
        (HostTarget::None, PersonalityKind::Block) => {
            set("write_buffer", write_buffer(&config.write_buffer));
            set("ftl", ftl(&config.ftl));
        }
        (target, _) => set("ftl", target.ftl().map_or(Value::Null, ftl)),
    }
    if let Some(c) = &plan.capacity {
        set("logical_bytes", json!(c.logical_bytes()));
        set("lines", json!(c.lines));
        set("line_sectors", json!(c.line_sectors));
        set("reserved_lines", json!(c.reserved_lines));
    }
    Value::Object(object)
}

fn personality(config: &DriveConfig) -> &'static str {
    match config.personality {
        PersonalityKind::Null => "null",
        PersonalityKind::Block if config.rules.is_some() => "rules",
        PersonalityKind::Block => "block",
        PersonalityKind::OpenChannel => "open-channel",
    }
}

fn data(data: &DataStore) -> Value {
    match data {
        // The results do not depend on when the host allocates memory.
        DataStore::Memory | DataStore::Preallocated(_) => json!("memory"),
        DataStore::None => json!("none"),
        DataStore::File(path) | DataStore::Overlay(path) => {
            json!({ "file": path.display().to_string() })
        }
        DataStore::DurableFile(path) => {
            json!({ "file": path.display().to_string(), "flush": "host" })
        }
    }
}

fn media(media: &MediaConfig) -> Value {
    match media {
        MediaConfig::Nand(nand) => nand_media(nand),
        MediaConfig::Pcm(pcm) => pcm_media(pcm),
        MediaConfig::Null { bytes, sector_bytes } => {
            json!({ "kind": "null", "bytes": bytes, "sector_bytes": sector_bytes })
        }
    }
}

fn nand_media(nand: &NandConfig) -> Value {
    let (g, t, e) = (&nand.geometry, &nand.timing, &nand.errors);
    let bits = nand.cell.bits() as usize;
    let mut media = json!({
        "kind": "nand",
        "cell": cell(nand.cell),
        "one_shot": nand.one_shot,
        "paired_page_distance": nand.paired_page_distance,
        "data": data(&nand.data),
        "seed": nand.seed,
        "geometry": {
            "channels": g.channels,
            "pus": g.pus,
            "planes": g.planes,
            "chunks": g.chunks,
            "pages": g.pages,
            "page_bytes": g.page_bytes,
            "sector_bytes": g.sector_bytes,
            "oob_bytes": g.oob_bytes,
        },
        "timing": {
            "read_ns": t.read[..bits.min(4)].iter().map(|t| t.0).collect::<Vec<_>>(),
            "program_ns": t.program[..bits.min(4)].iter().map(|t| t.0).collect::<Vec<_>>(),
            "erase_ns": t.erase.0,
            "channel_bytes_per_sec": t.channel_bytes_per_sec,
        },
        "errors": {
            "factory_bad_ratio": e.factory_bad,
            "program_failure_rate": e.program_fail,
            "erase_failure_rate": e.erase_fail,
            "rber": e.rber,
            "rber_growth": e.rber_growth,
            "ecc_bits": e.ecc_bits,
            "endurance": e.endurance,
            "read_retries": e.read_retries,
            "retry_error_fraction": e.retry_error_fraction,
            "retention_doubling_time_ns": e.retention.0,
            "read_disturb_doubling": e.disturb_reads,
        },
    });
    if e.die_fail > 0.0 {
        media["errors"]["die_failure_rate"] = json!(e.die_fail);
    }
    media
}

fn cell(cell: CellType) -> &'static str {
    match cell.bits() {
        1 => "slc",
        2 => "mlc",
        3 => "tlc",
        _ => "qlc",
    }
}

fn pcm_media(pcm: &PcmConfig) -> Value {
    json!({
        "kind": "pcm",
        "channels": pcm.channels,
        "pus": pcm.pus,
        "bytes": pcm.bytes,
        "sector_bytes": pcm.sector_bytes,
        "read_ns": pcm.read.0,
        "write_ns": pcm.write.0,
        "channel_bytes_per_sec": pcm.channel_bytes_per_sec,
        "data": data(&pcm.data),
    })
}

fn controller(config: &DriveConfig) -> Value {
    let c = &config.controller;
    let arbitration = match c.arbitration {
        ArbitrationConfig::RoundRobin { burst } => json!({ "kind": "round-robin", "burst": burst }),
        ArbitrationConfig::Weighted { burst, high, medium, low } => {
            json!({ "kind": "weighted", "burst": burst, "high": high, "medium": medium, "low": low })
        }
    };
    let mut value = json!({
        "fetch_latency_ns": c.fetch_latency.0,
        "completion_latency_ns": c.completion_latency.0,
        "dma_bytes_per_sec": c.dma_bytes_per_sec,
        "dma_in_bytes_per_sec": c.dma_to_device_bytes_per_sec,
        "max_io_queues": c.max_io_queues,
        "queue_depth": c.queue_depth,
        "arbitration": arbitration,
        "cmb_bytes": c.cmb.map(|cmb| cmb.bytes),
        "doorbell_buffer": c.doorbell_buffer,
        "scrub_sectors_per_sec": c.scrub.map(|p| p.sectors_per_sec),
    });
    if let Some(pmr) = &config.pmr {
        let bytes = match &pmr.store {
            PmrStore::Emulated { bytes } => Some(bytes),
            PmrStore::Dax { .. } => None,
        };
        value["pmr"] = json!({
            "bytes": bytes,
            "store_ns": pmr.costs.store.0,
            "persist_ns": pmr.costs.persist.0,
        });
    }
    if let Some(registers) = c.registers {
        value["registers"] = json!({
            "ready_time_ns": registers.ready_time.0,
            "timeout_ns": registers.timeout.0,
        });
    }
    if let Some(thresholds) = c.latency_monitor {
        value["latency_monitor_ns"] = json!(thresholds.map(|t| t.0));
    }
    value
}

fn pu_policy(policy: &PuScheduling) -> Value {
    match policy {
        PuScheduling::Fifo => json!({ "kind": "fifo" }),
        PuScheduling::ReadPriority { suspend } => json!({
            "kind": "read-priority",
            "suspend": suspend.map(|SuspendConfig { suspend, resume, max_per_operation }| json!({
                "suspend_ns": suspend.0,
                "resume_ns": resume.0,
                "max_per_operation": max_per_operation,
            })),
        }),
    }
}

fn write_buffer(buffer: &WriteBuffer) -> Value {
    match buffer {
        WriteBuffer::None => json!({ "kind": "none" }),
        WriteBuffer::Volatile { bytes } => json!({ "kind": "volatile", "bytes": bytes }),
        WriteBuffer::PowerLossProtected { bytes } => {
            json!({ "kind": "power-loss-protected", "bytes": bytes })
        }
    }
}

fn ftl(config: &FtlConfig) -> Value {
    let mut value = json!({
        "over_provisioning": config.over_provisioning,
        "active_pus": config.active_pus,
        "victim_policy": victim_policy(config.victim_policy),
        "separate_gc_stream": config.hot_cold,
        "gc_low_watermark_lines": config.gc_low_watermark_lines,
        "gc_high_watermark_lines": config.gc_high_watermark_lines,
        "gc_queue_depth_units": config.gc_queue_depth_units,
        "write_buffer_sectors": config.write_buffer_sectors,
        "checkpoint_sectors": config.checkpoint_sectors,
        "l2p_cache_sectors": config.map_cache_sectors,
        "dynamic_wear_leveling": config.dynamic_wear_leveling,
        "static_wear_leveling": config.static_wear_leveling,
        "line_metadata": match config.line_metadata {
            LineMetadata::Off => "off",
            LineMetadata::Auto => "auto",
            LineMetadata::On => "on",
        },
        "p2l": match config.p2l_location {
            P2lLocation::Memory => "memory",
            P2lLocation::Media => "media",
        },
        "rate_limiter": rate_limiter(config.rate_limiter),
        "gc_read_priority": match config.gc_read_priority {
            GcReadPriority::Off => "off",
            GcReadPriority::PerPu => "per-pu",
            GcReadPriority::Global => "global",
        },
    });
    if config.vector_copy {
        value["vector_copy"] = json!(true);
    }
    if config.atomic_writes {
        value["atomic"] = json!(true);
    }
    value
}

fn path(path: &PathConfig) -> Value {
    let CompletionPolicy { method, poll_interval } = path.completion.unwrap_or_default();
    let mut value = json!({ "queue_model": path.queue_model.word(), "completion": method.word() });
    if let Some(interval) = poll_interval {
        value["poll_interval_ns"] = json!(interval.0);
    }
    if let Some(namespace) = path.namespace {
        value["namespace"] = json!(namespace);
    }
    if let Some(app) = &path.app {
        value["app"] = json!(app);
    }
    if let Some(bytes) = path.log {
        value["log_bytes"] = json!(bytes);
    }
    let Some(layer) = &path.block_layer else { return value };
    let settings = json!({
        "sockets": layer.topology.sockets,
        "cores_per_socket": layer.topology.cores,
        "hardware_queues": layer.queues,
        "queue_depth": layer.queue_depth,
        "merge": layer.merge,
        "scheduler": scheduler(&layer.scheduler),
        "limits": limits(layer),
    });
    if let (Value::Object(path), Value::Object(settings)) = (&mut value, settings) {
        path.extend(settings);
    }
    value
}

fn scheduler(config: &SchedulerConfig) -> Value {
    let settings = match config {
        SchedulerConfig::None => Value::Null,
        SchedulerConfig::Deadline(c) => json!({
            "read_expire_ns": c.read_expire.0,
            "write_expire_ns": c.write_expire.0,
            "fifo_batch": c.fifo_batch,
            "writes_starved": c.writes_starved,
            "front_merges": c.front_merges,
        }),
        SchedulerConfig::Kyber(c) => json!({
            "read_target_ns": c.target.read.0,
            "write_target_ns": c.target.write.0,
            "read_batch": c.batch.read,
            "write_batch": c.batch.write,
            "read_depth_percent": c.depth_percent.read,
            "write_depth_percent": c.depth_percent.write,
            "window_ns": c.window.0,
        }),
        SchedulerConfig::Fair(c) => json!({
            "weights": c.weights,
            "default_weight": c.default_weight,
            "request_cost_sectors": c.request_cost_sectors,
            "work_conserving": c.work_conserving,
        }),
        SchedulerConfig::Priority(c) => json!({
            "classes": c.classes.iter().map(|(g, class)| (g.0, *class)).collect::<Vec<_>>(),
            "default_class": c.default_class,
            "prio_aging_expire_ns": c.prio_aging_expire.0,
        }),
    };
    json!({ "kind": config.name(), "settings": settings })
}

fn limits(layer: &BlockLayerSpec) -> Value {
    let rates = |limits: &GroupThrottle| {
        let rate = |r: Option<block::sched::RateLimit>| r.map(|r| r.per_sec);
        json!({
            "read_iops": rate(limits.read.operations),
            "read_bytes_per_sec": rate(limits.read.bytes),
            "write_iops": rate(limits.write.operations),
            "write_bytes_per_sec": rate(limits.write.bytes),
        })
    };
    let of = layer.limits.iter();
    of.map(|(group, limits)| json!({ "group": group.0, "limits": rates(limits) })).collect()
}
