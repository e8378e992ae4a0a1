//! Feature identifiers and the encoding of their values [NVMe1.4 §5.21.1].

/// Arbitration: burst and weights ([`Arbitration`]).
pub const ARBITRATION: u8 = 0x01;
/// Power management: the power state.
pub const POWER_MANAGEMENT: u8 = 0x02;
/// Temperature threshold, in kelvins.
pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
/// Error recovery: time limit of retries, and errors for unwritten sectors ([`ErrorRecovery`]).
pub const ERROR_RECOVERY: u8 = 0x05;
/// Volatile write cache: bit 0 enables it.
pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
/// Number of queues ([`NumberOfQueues`]).
pub const NUMBER_OF_QUEUES: u8 = 0x07;
/// Interrupt coalescing: threshold `[7:0]`, zero-based, and time `[15:8]` in 100 µs.
pub const INTERRUPT_COALESCING: u8 = 0x08;
/// Interrupt vector configuration: vector `[15:0]`, coalescing disabled `[16]`.
pub const INTERRUPT_VECTOR: u8 = 0x09;
/// Write atomicity normal: bit 0 limits atomicity to power failures.
pub const WRITE_ATOMICITY: u8 = 0x0a;
/// Asynchronous event configuration: which events are reported. Bits 7:0 are critical warnings of the
/// health log, the bits above are those of OAES.
pub const ASYNC_EVENT: u8 = 0x0b;
/// The bits of [`ASYNC_EVENT`] for critical warnings that the health log may have.
pub const ASYNC_EVENT_WARNINGS: u32 = 0x1f;
/// Keep alive timer: the timeout in milliseconds; 0 for none.
pub const KEEP_ALIVE_TIMER: u8 = 0x0f;
/// Sanitize config: bit 0 has operations deallocate blocks that were to stay allocated (NODRM).
pub const SANITIZE_CONFIG: u8 = 0x17;
/// Latency monitor: its settings are data ([`LatencyMonitorFeature`](crate::LatencyMonitorFeature)).
pub const LATENCY_MONITOR: u8 = 0xc5;

/// Feature capabilities: the result of Get Features with
/// [`FeatureSelect::Capabilities`](crate::FeatureSelect::Capabilities) [NVMe1.4 §5.13].
pub mod capability {
    /// The value can be saved.
    pub const SAVEABLE: u32 = 1 << 0;
    /// Each namespace has its own value.
    pub const PER_NAMESPACE: u32 = 1 << 1;
    /// The value can be changed.
    pub const CHANGEABLE: u32 = 1 << 2;
}

/// Numbers of I/O queues, the value of [`NUMBER_OF_QUEUES`] [NVMe1.4 §5.21.1.7]: requested by
/// Set Features, and granted in its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberOfQueues {
    /// Number of submission queues, 1 to 65,535.
    pub submission: u16,
    /// Number of completion queues, 1 to 65,535.
    pub completion: u16,
}

impl NumberOfQueues {
    /// Encodes the value: both counts are zero-based; a count of 0 is encoded as 1.
    pub fn to_value(self) -> u32 {
        u32::from(self.submission.saturating_sub(1))
            | u32::from(self.completion.saturating_sub(1)) << 16
    }

    /// Decodes the value; `None` for 65,535 in either half, which is not allowed.
    pub fn from_value(value: u32) -> Option<NumberOfQueues> {
        Some(NumberOfQueues {
            submission: (value as u16).checked_add(1)?,
            completion: ((value >> 16) as u16).checked_add(1)?,
        })
    }
}

/// Weighted arbitration, the value of [`ARBITRATION`] [NVMe1.4 §5.21.1.1].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arbitration {
    /// Maximum number of commands fetched from one queue in a row, as a power of two; 7 for no
    /// limit.
    pub burst_log2: u8,
    /// Commands of low-priority queues per round, 1 to 256.
    pub low: u16,
    /// Commands of medium-priority queues per round, 1 to 256.
    pub medium: u16,
    /// Commands of high-priority queues per round, 1 to 256.
    pub high: u16,
}

impl Arbitration {
    /// Encodes the value; weights out of range are clamped.
    pub fn to_value(self) -> u32 {
        let weight = |w: u16| u32::from(w.clamp(1, 256) - 1);
        u32::from(self.burst_log2.min(7))
            | weight(self.low) << 8
            | weight(self.medium) << 16
            | weight(self.high) << 24
    }

    /// Decodes the value.
    pub fn from_value(value: u32) -> Arbitration {
        let weight = |shift: u32| (value >> shift & 0xff) as u16 + 1;
        Arbitration {
            burst_log2: (value & 7) as u8,
            low: weight(8),
            medium: weight(16),
            high: weight(24),
        }
    }
}

/// Error recovery, the value of [`ERROR_RECOVERY`] [NVMe1.4 §5.21.1.5].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorRecovery {
    /// Time limit of retries in units of 100 ms; 0 for none.
    pub time_limit: u16,
    /// Reads of unmapped sectors fail instead of returning zeros (DULBE).
    pub unwritten_is_error: bool,
}

impl ErrorRecovery {
    /// Encodes the value.
    pub fn to_value(self) -> u32 {
        u32::from(self.time_limit) | u32::from(self.unwritten_is_error) << 16
    }

    /// Decodes the value.
    pub fn from_value(value: u32) -> ErrorRecovery {
        ErrorRecovery { time_limit: value as u16, unwritten_is_error: value & 1 << 16 != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_the_wire() {
        let counts = NumberOfQueues { submission: 1, completion: 128 };
        assert_eq!(counts.to_value(), 127 << 16);
        assert_eq!(NumberOfQueues::from_value(counts.to_value()), Some(counts));
        assert_eq!(NumberOfQueues::from_value(0xffff), None);
        assert_eq!(NumberOfQueues::from_value(0xffff_0000), None);

        let weights = Arbitration { burst_log2: 3, low: 1, medium: 2, high: 256 };
        assert_eq!(weights.to_value(), 0xff01_0003);
        assert_eq!(Arbitration::from_value(weights.to_value()), weights);

        let recovery = ErrorRecovery { time_limit: 10, unwritten_is_error: true };
        assert_eq!(recovery.to_value(), 0x1_000a);
        assert_eq!(ErrorRecovery::from_value(recovery.to_value()), recovery);
    }
}
