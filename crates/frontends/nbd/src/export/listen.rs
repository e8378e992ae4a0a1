//! [`NbdExport`]: an export to be served; [`ListenerSet`]: the listeners of several exports, which
//! share those at equal endpoints.

use block::BlockDevice;

use crate::NbdConfig;
use crate::connection::ConnectionId;
use crate::endpoint::{Endpoint, StreamListener};
use crate::pool::PayloadPool;
use crate::protocol::wire::{PAYLOAD_BYTES_MAX, STRING_BYTES_MAX};
use crate::server::NbdError;

/// An export: a device, its name and limits, and its endpoints.
#[derive(Debug)]
pub struct NbdExport<D> {
    /// Queues of one device, each for a server of its own.
    pub devices: Vec<D>,
    /// Where clients find the export. Exports with an equal endpoint share a listener, and clients
    /// select one of them by its name; the first is the default.
    pub endpoints: Vec<Endpoint>,
    /// Name, limits and timeouts. The handshake has those of the first export at an endpoint.
    pub config: NbdConfig,
    /// Exports with the same number end together: a server runs until those of all of them have
    /// flushed. For devices that one drive is beneath.
    pub end_group: usize,
}

impl<D: BlockDevice> NbdExport<D> {
    /// Checks what the protocol and the servers of the export need.
    pub(crate) fn check(&self) -> Result<(), NbdError> {
        let NbdExport { devices, endpoints, config, .. } = self;
        let limits = *devices.first().ok_or(NbdError::NoDevice)?.limits();
        if let Some(queue) = devices.iter().position(|device| *device.limits() != limits) {
            return Err(NbdError::Queues { queue });
        }
        if !limits.sector_bytes.is_power_of_two() || limits.sector_bytes > 1 << 16 {
            return Err(NbdError::SectorSize(limits.sector_bytes));
        }
        for (what, text) in [("name", &config.name), ("description", &config.description)] {
            if text.len() > STRING_BYTES_MAX {
                return Err(NbdError::TooLong { what, bytes: text.len() });
            }
        }
        if endpoints.is_empty() {
            return Err(NbdError::NoEndpoint);
        }
        Ok(())
    }
}

/// Returns the longest request that fits into the payload memory of a server.
pub(crate) fn payload_bytes_max(config: &NbdConfig) -> u32 {
    let quarter = PayloadPool::<ConnectionId>::quarter_bytes(config.pool_bytes);
    (2 * quarter).min(PAYLOAD_BYTES_MAX as usize) as u32
}

/// The listeners of several exports.
#[derive(Debug, Default)]
pub(crate) struct ListenerSet {
    /// The listeners of the first server of each export, each with its index.
    pub(crate) own: Vec<Vec<(usize, StreamListener)>>,
    /// The bound endpoints of each export.
    pub(crate) endpoints: Vec<Vec<Endpoint>>,
    /// Indices of the exports of each listener.
    pub(crate) exports: Vec<Vec<usize>>,
}

impl ListenerSet {
    /// Binds the endpoints of all exports. An export uses the listener of an earlier one with an
    /// equal endpoint.
    ///
    /// # Errors
    /// [`NbdError::Bind`], [`NbdError::DuplicateName`].
    pub(crate) fn bind<D>(exports: &[NbdExport<D>]) -> Result<ListenerSet, NbdError> {
        let mut set = ListenerSet::default();
        // The endpoint of each listener, as given and as bound.
        let mut known: Vec<(Endpoint, Endpoint)> = Vec::new();
        for (index, NbdExport { endpoints, config, .. }) in exports.iter().enumerate() {
            let (mut own, mut bound) = (Vec::new(), Vec::with_capacity(endpoints.len()));
            for endpoint in endpoints {
                let is_earlier =
                    |i: &usize| known[*i].0 == *endpoint && set.exports[*i].last() != Some(&index);
                if let Some(i) = (0..known.len()).find(is_earlier) {
                    if set.exports[i].iter().any(|other| exports[*other].config.name == config.name)
                    {
                        let (endpoint, name) = (endpoint.clone(), config.name.clone());
                        return Err(NbdError::DuplicateName { endpoint, name });
                    }
                    set.exports[i].push(index);
                    bound.push(known[i].1.clone());
                    continue;
                }
                let listener = StreamListener::bind(endpoint, config.allow_remote)?;
                bound.push(listener.endpoint().clone());
                known.push((endpoint.clone(), listener.endpoint().clone()));
                set.exports.push(vec![index]);
                own.push((set.exports.len() - 1, listener));
            }
            set.own.push(own);
            set.endpoints.push(bound);
        }
        Ok(set)
    }
}
