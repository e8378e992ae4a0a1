//! NVMe data structures and commands, as encoded on the wire. No I/O, and no allocation on the hot
//! path.
//!
//! An entry of a queue is an [`Sqe`] or a [`Cqe`]. [`IoCommand`] and [`AdminCommand`] are the typed
//! commands parsed from entries. The other modules define identify data, log pages, features,
//! registers, and the address formats of open-channel drives.
//!
//! # References
//!
//! The bibliography (`docs/bibliography.md`) resolves the citations. NVMe 1.4 contains the NVM
//! command set. The Open-Channel SSD specification 2.0 succeeds the interface of [LightNVM17 §3].
//! `docs/format/ppa.md` specifies the vendor-specific parts.

#![forbid(unsafe_code)]

mod cloud_health_log;
mod command;
mod identify;
mod latency_monitor;
pub mod log_page;
mod metadata;
mod namespace;
mod open_channel;
mod persistent_region;
mod protection;
pub mod register;
mod rule_events;
mod rule_misses;
mod sanitize;
mod vendor_extensions;
mod wire;

pub use cloud_health_log::{CLOUD_HEALTH, CloudHealthLog};
pub use command::admin_command::{
    AdminCommand, FeatureSelect, NamespaceChange, QueuePriority, SecureErase,
};
pub use command::cqe::Cqe;
pub use command::io_command::{IoCommand, MAX_BLOCKS, MAX_RANGES, MAX_VECTOR_ADDRESSES, PpaList};
pub use command::named_command::{NamedCommand, NamedOp};
pub use command::range::{CopyRange, DsmRange, LbaStatusDescriptor};
pub use command::rule_command::{RULE_BUFFER_BYTES_MAX, RuleCommand, RuleCommandKind, RuleReply};
pub use command::rule_table::{RULE_TABLE_ENTRIES_MAX, RuleTableAction, RuleTableEntry};
pub use command::sqe::{DataPointer, SglDescriptor, Sqe};
pub use command::status::{Status, StatusType};
pub use command::{feature, opcode};
pub use identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, LbaFormat, NamespaceList, PowerState,
    cns, namespace_descriptors,
};
pub use latency_monitor::{
    LATENCY_BUCKETS, LATENCY_MONITOR, LatencyBucketCounters, LatencyMonitorBuckets,
    LatencyMonitorFeature, LatencyMonitorLog, MonitoredKind,
};
pub use log_page::{CommandEffects, DeviceL2pLog, ErrorEntry, FirmwareLog, HealthLog};
pub use metadata::{MetadataFormat, MetadataTransfer, ProtectionType};
pub use namespace::{
    CommandSetList, ControllerList, IndependentNamespace, NamespaceGranularities, NewNamespace,
};
pub use open_channel::chunk::{ChunkDescriptor, ChunkState};
pub use open_channel::chunk_notification::{
    AsyncEvent, ChunkNotification, ChunkNotificationKind, ChunkNotificationScope,
};
pub use open_channel::flash_geometry::FlashGeometry;
pub use open_channel::flat_id::{ChunkId, PhysSector, PuId};
pub use open_channel::geometry::{Address, Geometry, GeometryError};
pub use open_channel::geometry_page::{GeometryPage, MediaTiming};
pub use open_channel::ppa::{InvalidPpa, Ppa, PpaFormat};
pub use open_channel::vector_hints::{PlaneMode, VectorHints};
pub use persistent_region::{
    PmrBuffer, PmrCap, PmrControl, PmrHealth, PmrSpace, PmrStatus, PmrThroughput,
};
pub use protection::{ProtectionError, ProtectionInfo, ProtectionRequest, guard_of};
pub use register::{Cap, Cc, CcSettings, CmbLocation, CmbSize, Csts, ShutdownRequest};
pub use rule_events::{FoundNameEntry, RuleEvent, RuleEventLog};
pub use rule_misses::{RuleMissEntry, RuleMissLog};
pub use sanitize::{SanitizeAction, SanitizeCommand, SanitizeLog, sanicap};
pub use vendor_extensions::VendorExtensions;
