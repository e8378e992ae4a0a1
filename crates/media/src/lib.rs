//! What stores the bits: NAND, PCM, or nothing, with rules, data, errors and wear (rule R5).
//!
//! | file | noun |
//! |---|---|
//! | [`config`](NandConfig) | the shape, timing and error model of a medium |

#![forbid(unsafe_code)]

mod config;

pub use config::{
    Cell, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming, PcmConfig,
};
