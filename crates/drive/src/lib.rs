//! The drive: a controller that takes commands off queue pairs and runs a personality over media.
//!
//! | file | noun |
//! |---|---|
//! | [`config`](DriveConfig) | what describes a drive |

#![forbid(unsafe_code)]

mod config;

pub use config::{
    Arbitration, ControllerConfig, DriveConfig, NullConfig, PersonalityKind, PuPolicy, SuspendConfig,
    WriteBuffer,
};
