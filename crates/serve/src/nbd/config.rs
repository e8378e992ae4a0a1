//! [`NbdConfig`]: a limit on everything a client can make the server hold or wait for.

use clock::Nanos;

/// Name, limits and time-outs of a server. The defaults suit one machine's programs.
#[derive(Clone, Debug)]
pub struct NbdConfig {
    /// The export's name. The empty name always means this export too. At most 4096 bytes.
    pub name: String,
    /// A line for people, shown by `nbdinfo --list`. At most 4096 bytes.
    pub description: String,
    /// Writes, trims and zeroes are refused with `EPERM`.
    pub read_only: bool,
    /// Bytes of registered memory for payloads, default 64 MiB, in quarters of a power of two of at
    /// least 1 MiB. One quarter is for requests up to 64 KiB, one for those up to 1 MiB, two for
    /// longer ones; two quarters under 32 MiB lower the longest request to their size.
    pub pool_bytes: usize,
    /// Clients at a time; further ones are closed at once. Default 256.
    pub connections_max: usize,
    /// Requests of one client under way at a time; further ones stay in its socket. Default 128.
    pub in_flight_max: usize,
    /// Bytes of an option; a longer one is skipped with `NBD_REP_ERR_TOO_BIG`, and one over 1 MiB
    /// ends the connection. Default 16 KiB.
    pub option_bytes_max: u32,
    /// How long the handshake may take. Default 10 s.
    pub handshake_timeout: Nanos,
    /// A client that holds payload memory which others wait for must move at least 1 MiB in this
    /// time, or is dropped. Default 10 s.
    pub stall_timeout: Nanos,
    /// How long a client that is leaving, or a server that was stopped, waits for replies to be
    /// taken. Default 5 s.
    pub linger: Nanos,
    /// TCP addresses other than loopback are allowed. There is no authentication. Default no.
    pub allow_remote: bool,
    /// A client that does not ask for block sizes may use a device with sectors over 512 bytes
    /// (say, because it was told about them otherwise). Default no.
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
