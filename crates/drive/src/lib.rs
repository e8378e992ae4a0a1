//! The drive: a controller that takes commands off queue pairs and runs a personality over media.
//!
//! | file | noun |
//! |---|---|
//! | [`config`](DriveConfig) | what describes a drive |
//! | [`drive`](Drive) | the controller: what commands pass through |
//! | `passage` | how they do: commands in, completions out, in the order of time |
//! | `queues` | submission and completion queues, arbitration |
//! | `ports` | hosts that come and go |
//! | [`access`](Access), `bucket` | what a host may do, and how fast |
//! | `commands` | commands under way |
//! | `payload` | where a command's data is, checked |
//! | `station` | the controller's own costs: fetch, data transfer, completion |
//! | `admin`, `carry_out` | admin commands |
//! | `block` | the personality that manages its flash |
//! | `open_channel` | the personality whose host manages the flash |
//! | `dual_map` | its own map from logical to physical addresses |
//! | `notice`, `events` | what it learns of its media, and who is told |
//! | `null`, `pcm` | no media; phase-change memory |
//! | `flash`, `operation`, `pu` | parallel units and channels in time; hints |
//! | `cmb` | memory of the drive that hosts reach into |
//! | `sidecar` | files beside an image |
//! | [`stats`](DriveStats) | what was done; `tracepoint` has what was done when |
//! | [`power`](PoweredOff) | power cuts |
//! | [`ahci`](AhciController) | another kind of controller: AHCI, with SATA drives |
//!
//! # The path of a read
//!
//! `queues` fetches the entry; `Drive::understand` makes a typed command of it and checks its
//! memory; `block` looks the sectors up and asks `flash` for them; `flash` runs the array and the
//! channel; `block` copies the data to the host; the DMA station takes its time; `queues` posts.

#![forbid(unsafe_code)]

mod access;
mod admin;
mod ahci;
mod block;
mod bucket;
mod carry_out;
mod cmb;
mod commands;
mod config;
mod drive;
mod dual_map;
mod error;
mod events;
mod facts;
mod flash;
mod notice;
mod null;
mod open_channel;
mod operation;
mod passage;
mod patrol;
mod payload;
mod pcm;
mod ports;
mod power;
mod pu;
mod queues;
mod sidecar;
mod station;
mod stats;

pub use access::{Access, AttachError, Part, PortStats};
pub use ahci::{
    AhciConfig, AhciConfigError, AhciController, AhciStats, SataData, SataDriveConfig,
    SataDriveStats, SectorFault,
};
pub use config::{
    Arbitration, CmbConfig, ControllerConfig, DriveConfig, NullConfig, OpenChannelConfig,
    PatrolConfig, PersonalityKind, PuPolicy, SuspendConfig, Transfers, WriteBuffer,
};
pub use drive::Drive;
pub use error::DriveError;
pub use ports::NotAttached;
pub use power::PoweredOff;
pub use stats::{
    CareStats, CommandTimes, DriveStats, HintStats, Lateness, LatenessRecord, MapStats,
    NotificationStats, PuBusy,
};
