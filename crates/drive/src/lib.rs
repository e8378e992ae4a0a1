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
//! | [`power`](PoweredOffController) | power cuts |
//! | [`ahci`](AhciController) | another kind of controller: AHCI, with SATA drives |
//!
//! # The path of a read
//!
//! `queues` fetches the entry; `Controller::parse_and_validate` makes a typed command of it and checks its
//! memory; `block` looks the sectors up and asks `flash` for them; `flash` runs the array and the
//! channel; `block` copies the data to the host; the DMA station takes its time; `queues` posts.

#![forbid(unsafe_code)]

mod access;
mod admin;
mod admin_exec;
mod ahci;
mod async_events;
mod block;
mod cmb;
mod command_path;
mod commands;
mod config;
mod controller;
mod data_buffer;
mod device_l2p;
mod error;
mod hosts;
mod identity;
mod media_events;
mod media_scrub;
mod nand_array;
mod null;
mod open_channel;
mod operation;
mod pcm;
mod power;
mod pu;
mod queues;
mod sidecar;
mod stage;
mod stats;
mod token_bucket;

pub use access::{AccessPolicy, AccessScope, AttachError, PortStats};
pub use ahci::{
    AhciConfig, AhciConfigError, AhciController, AhciStats, InjectedSectorError, SataData,
    SataDriveConfig, SataDriveStats,
};
pub use config::{
    Arbitration, CmbConfig, ControllerConfig, DriveConfig, MediaScrubConfig, NullConfig,
    OpenChannelConfig, PersonalityKind, PuScheduling, SuspendConfig, TransferConfig, WriteBuffer,
};
pub use controller::Controller;
pub use error::DriveError;
pub use hosts::NotAttached;
pub use power::PoweredOffController;
pub use stats::{
    CommandTimes, DeviceL2pStats, DriveStats, HintStats, Lateness, LatenessRecord, MediaScrubStats,
    NotificationStats, PuBusy,
};
