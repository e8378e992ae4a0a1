//! [`NbdConfig`]: limits on everything that a client can make a server hold or wait for.

use time::Nanos;

/// Name, limits and timeouts of an export. The defaults suit clients on one machine.
#[derive(Clone, Debug)]
pub struct NbdConfig {
    /// The export's name. The empty name means the first export at an endpoint. At most 4096 bytes.
    pub name: String,
    /// A description for users, shown by `nbdinfo --list`. At most 4096 bytes.
    pub description: String,
    /// Writes, trims and zeroes are refused with `EPERM`.
    pub read_only: bool,
    /// Bytes of registered memory for payloads of each server, default 64 MiB, in quarters of a power of two of at
    /// least 1 MiB. One quarter is for requests up to 64 KiB, one for those up to 1 MiB, two for
    /// longer ones; two quarters under 32 MiB lower the longest request to their size.
    pub pool_bytes: usize,
    /// Maximum number of clients of the export, on all of its servers; further ones are closed at
    /// once. Default 256.
    pub connections_max: usize,
    /// Maximum number of requests in flight per client; further ones stay in its socket. Default
    /// 128.
    pub in_flight_max: usize,
    /// Maximum bytes of an option. A longer one is skipped with `NBD_REP_ERR_TOO_BIG`; one over 1
    /// MiB ends the connection. Default 16 KiB.
    pub option_bytes_max: u32,
    /// Timeout of the handshake. Default 10 s.
    pub handshake_timeout: Nanos,
    /// A client that holds payload memory for which others wait must move at least 1 MiB in this
    /// time, or is dropped. Default 10 s.
    pub stall_timeout: Nanos,
    /// How long a closing connection, or a stopped server, waits for the client to read its
    /// replies. Default 5 s.
    pub linger: Nanos,
    /// Allows TCP addresses other than loopback. There is no authentication. Default no.
    pub allow_remote: bool,
    /// Allows a client that does not ask for block sizes to use a device with sectors over 512
    /// bytes (for instance, because it learned them otherwise). Default no.
    pub admit_unsized: bool,
}

impl Default for NbdConfig {
    fn default() -> NbdConfig {
        NbdConfig {
            name: String::new(),
            description: String::new(),
            read_only: false,
            pool_bytes: 64 << 20,
            connections_max: 256,
            in_flight_max: 128,
            option_bytes_max: 16 << 10,
            handshake_timeout: Nanos::from_secs(10),
            stall_timeout: Nanos::from_secs(10),
            linger: Nanos::from_secs(5),
            allow_remote: false,
            admit_unsized: false,
        }
    }
}
