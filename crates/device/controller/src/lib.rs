//! The emulated drive: a controller that fetches commands from queue pairs and executes them on
//! emulated media, as a block, open-channel or null personality.
//!
//! [`Controller`] is a polled component: it has no thread, and each poll executes the work that is
//! due. [`DriveConfig`] describes a drive, [`AccessPolicy`] the rights of one host, and
//! [`DriveStats`] the counters. [`AhciController`] is a second kind of controller: AHCI, with SATA
//! drives behind it.
//!
//! # The path of a read
//!
//! `queues` fetches the entry. `Controller::parse_and_validate` turns it into a typed command and
//! checks its memory. `block` looks the sectors up and submits reads to `nand_array`, which models
//! the array and the channel. `block` copies the data to the host, the DMA stage charges the
//! transfer time, and `queues` posts the completion.

#![forbid(unsafe_code)]

mod admin;
mod ahci;
mod check;
mod command;
mod config;
mod controller;
mod doorbell_wait;
mod error;
mod faults;
mod host_interface;
mod lateness;
mod media_health;
mod namespaces;
mod nand_array;
mod persistence;
mod personality;
mod stats;

pub use admin::latency_monitor::LatencyMonitorStats;
pub use ahci::{
    AhciConfig, AhciConfigError, AhciController, AhciStats, InjectedSectorError, SataData,
    SataDriveConfig, SataDriveStats,
};
pub use check::{DrivePart, DriveViolation};
pub use config::{
    ArbitrationConfig, CmbConfig, ControllerConfig, DriveConfig, MediaScrubConfig, NullConfig,
    OpenChannelConfig, PersonalityKind, PmrConfig, PmrStore, PuScheduling, RegisterConfig,
    SuspendConfig, TransferConfig, WriteBuffer,
};
pub use controller::Controller;
pub use doorbell_wait::{
    DoorbellRecord, DoorbellToFetch, DoorbellWaitUnknown, UnmeasuredDoorbells,
};
pub use error::DriveError;
pub use faults::{
    CorruptedPart, Fault, FaultError, FaultRecord, FaultScope, FaultSector, SanitizeMethod,
};
pub use host_interface::access::{AccessPolicy, AccessScope, AttachError, PortStats};
pub use host_interface::hosts::NotAttached;
pub use host_interface::pmr::PmrStats;
pub use host_interface::registers::RegisterStats;
pub use lateness::{Lateness, LatenessPart, LatenessRecord};
pub use namespaces::layout::{
    NAMESPACES_MAX, NamespaceInfo, NamespaceLayout, NamespaceLayoutError,
};
pub use namespaces::request::{NamespaceError, NamespaceReply, NamespaceRequest};
pub use persistence::power::PoweredOffController;
pub use persistence::saved_state::SavedDrive;
pub use personality::recovery::name_sectors;
pub use personality::rules::config::{DriveRulesConfig, DriveRulesError, check_executable};
pub use personality::rules::fetches::{RULE_CONTEXTS, RULE_READ_AHEAD, RuleFetchStats};
pub use personality::rules::misses::{RuleMissConfig, RuleMissRecord};
pub use personality::rules::needs_names;
pub use personality::rules::tables::{
    RuleTableEdit, RuleTableInfo, edit_table, table_named, table_value,
};
pub use personality::rules::upload::RuleUpload;
pub use personality::rules::{AppRuleStats, DriveRuleStats, NamedRuleStats};
pub use transport::RegionCosts;

pub use stats::{
    BlockCommandStats, CommandSum, CommandTimes, DeviceL2pStats, DriveStats, HintStats,
    MediaScrubStats, NotificationStats, OnTimeCommands, ProtectionErrors, PuBusy,
    ReadModifyWriteStats,
};
