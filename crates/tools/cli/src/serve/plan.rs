//! [`ServePlan`]: the paths to serve over NBD, the drives to share at sockets, and where; from the
//! scenario's `[[export]]` sections or from the command line.

use std::collections::BTreeSet;
use std::path::PathBuf;

use nbd::Endpoint;
use scenario::choice::{BLOCK_REQUESTS, Impossible};
use scenario::{Beneath, DriveKind, ExportAddress, HostTarget, PathSpec, Scenario};
use share_server::ShareError;

use super::{ServeError, ServeOptions, SocketOptions, endpoints_of};

/// Maximum number of paths that one process serves over NBD. Each has a thread and 64 MiB of payload
/// memory for every core.
pub const NBD_PATHS_MAX: usize = 256;

/// A path to serve over NBD.
#[derive(Clone, Debug)]
pub(super) struct NbdPlan {
    /// The path, with the indices of the whole scenario.
    pub(super) path: PathSpec,
    /// Name of the export.
    pub(super) name: String,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) read_only: bool,
}

/// A socket, and the indices of the drives that are shared there.
#[derive(Clone, Debug)]
pub(super) struct SocketPlan {
    pub(super) options: SocketOptions,
    pub(super) drives: Vec<usize>,
}

/// The paths and drives to serve.
#[derive(Clone, Debug, Default)]
pub(super) struct ServePlan {
    pub(super) nbd: Vec<NbdPlan>,
    pub(super) sockets: Vec<SocketPlan>,
    /// Whether exports with an equal endpoint share a listener.
    pub(super) shares_listeners: bool,
    /// Names of paths that NBD cannot serve, with the reasons.
    pub(super) unserved: Vec<(String, Impossible)>,
}

impl ServePlan {
    /// # Errors
    /// [`ServeError`] if the command line and the scenario contradict each other, or if there is
    /// nothing to serve.
    pub(super) fn new(
        scenario: &Scenario,
        options: &ServeOptions,
    ) -> Result<ServePlan, ServeError> {
        let mut plan = match scenario.serving.exports.is_empty() {
            true => ServePlan::from_options(scenario, options)?,
            false => ServePlan::from_exports(scenario, options)?,
        };
        if plan.nbd.len() > NBD_PATHS_MAX {
            return Err(ServeError::TooManyPaths { paths: plan.nbd.len() });
        }
        // A socket for administration shares no drive.
        if let Some(socket) = options.socket.as_ref().filter(|socket| !socket.is_shared) {
            plan.sockets.push(SocketPlan { options: socket.clone(), drives: Vec::new() });
        }
        if plan.nbd.is_empty() && plan.sockets.iter().all(|socket| socket.drives.is_empty()) {
            return Err(ServeError::NoAddress);
        }
        if options.allow_remote && plan.nbd.is_empty() {
            return Err(ServeError::RemoteWithoutNbd);
        }
        plan.check(scenario, options)?;
        Ok(plan)
    }

    /// All paths at the endpoints of the command line, and all drives at its socket.
    fn from_options(scenario: &Scenario, options: &ServeOptions) -> Result<ServePlan, ServeError> {
        let is_composed = !scenario.composition.is_empty();
        let mut plan = ServePlan { shares_listeners: is_composed, ..ServePlan::default() };
        if !options.nbd.is_empty() {
            let mut paths = scenario.paths();
            if paths.len() > NBD_PATHS_MAX {
                return Err(ServeError::TooManyPaths { paths: paths.len() });
            }
            if is_composed {
                paths.retain(|path| match without_blocks(scenario, path) {
                    Some(why) => {
                        plan.unserved.push((path.name.clone(), why));
                        false
                    }
                    None => true,
                });
            }
            for (index, path) in paths.into_iter().enumerate() {
                let endpoints = match is_composed {
                    true => options.nbd.clone(),
                    false => endpoints_of(scenario, index, &options.nbd)?,
                };
                let name = path.name.clone();
                plan.nbd.push(NbdPlan { path, name, endpoints, read_only: false });
            }
            if let ([], [(_, why), ..]) = (&plan.nbd[..], &plan.unserved[..]) {
                return Err(ServeError::Impossible { why: why.clone() });
            }
        }
        if let Some(socket) = options.socket.as_ref().filter(|socket| socket.is_shared) {
            let drives = (0..scenario.drives.len()).collect();
            plan.sockets.push(SocketPlan { options: socket.clone(), drives });
        }
        Ok(plan)
    }

    /// The paths and drives of the `[[export]]` sections.
    fn from_exports(scenario: &Scenario, options: &ServeOptions) -> Result<ServePlan, ServeError> {
        if !options.nbd.is_empty() {
            return Err(ServeError::AddressTwice { option: "--nbd" });
        }
        if options.socket.as_ref().is_some_and(|socket| socket.is_shared) {
            return Err(ServeError::AddressTwice { option: "--socket" });
        }
        let mut plan = ServePlan { shares_listeners: true, ..ServePlan::default() };
        let paths = scenario.paths();
        for export in &scenario.serving.exports {
            // The reader has found the path.
            let Some(path) = paths.iter().find(|path| path.name == export.path) else { continue };
            match &export.address {
                ExportAddress::Nbd { endpoint, name, read_only } => {
                    let known = plan.nbd.iter_mut().find(|one| one.path.name == path.name);
                    if let Some(known) = known {
                        known.endpoints.push(endpoint.clone());
                        continue;
                    }
                    let (name, endpoints) = (name.clone(), vec![endpoint.clone()]);
                    let path = path.clone();
                    plan.nbd.push(NbdPlan { path, name, endpoints, read_only: *read_only });
                }
                ExportAddress::Socket(file) => {
                    let drive = scenario.drive_of(path.over);
                    let known = plan.sockets.iter_mut().find(|one| one.options.path == *file);
                    if let Some(known) = known {
                        known.drives.push(drive);
                        continue;
                    }
                    let options = SocketOptions { is_shared: true, ..SocketOptions::new(file) };
                    plan.sockets.push(SocketPlan { options, drives: vec![drive] });
                }
            }
        }
        Ok(plan)
    }

    /// Returns the paths over a drive that NBD serves.
    pub(super) fn nbd_over<'a>(
        &'a self,
        scenario: &'a Scenario,
        drive: usize,
    ) -> impl Iterator<Item = &'a NbdPlan> {
        self.nbd.iter().filter(move |plan| {
            let members = scenario.members(plan.path.over);
            members.iter().any(|member| scenario.drive_of(*member) == drive)
        })
    }

    /// Checks that all addresses can be listened on, before the drives are preconditioned, which
    /// takes time; and that no drive is given to two owners.
    fn check(&self, scenario: &Scenario, options: &ServeOptions) -> Result<(), ServeError> {
        let (mut taken, mut seen) = (BTreeSet::new(), BTreeSet::new());
        for NbdPlan { path, endpoints, .. } in &self.nbd {
            if scenario.has_names(path.over) {
                let why = scenario.check_blocks(path.over, BLOCK_REQUESTS);
                return why.map_err(|why| ServeError::Impossible { why });
            }
            let mut own = BTreeSet::new();
            for endpoint in endpoints {
                let any_port = matches!(endpoint, Endpoint::Tcp { port: 0, .. });
                let text = endpoint.to_string();
                let is_new = own.insert(text.clone());
                let is_first = taken.insert(text);
                if !any_port && !(is_new && (is_first || self.shares_listeners)) {
                    return Err(ServeError::DuplicateEndpoint { endpoint: endpoint.clone() });
                }
                if is_first || any_port {
                    endpoint.check(options.allow_remote).map_err(|source| ServeError::Nbd {
                        drive: path.name.clone(),
                        source: source.into(),
                    })?;
                }
            }
        }
        for SocketPlan { options: socket, drives } in &self.sockets {
            let endpoint = Endpoint::Unix(socket.path.clone());
            if taken.contains(&endpoint.to_string()) || !seen.insert(socket.path.clone()) {
                return Err(ServeError::DuplicateEndpoint { endpoint });
            }
            share_server::check(&socket.path, socket.mode).map_err(ShareError::Listen)?;
            for drive in drives {
                let plan = &scenario.drives[*drive];
                if plan.has_names() {
                    let (drive, user) = (plan.config.name.clone(), "partitions of a socket");
                    return Err(ServeError::Impossible {
                        why: Impossible::NamedSectors { drive, user },
                    });
                }
                self.check_shared(scenario, *drive)?;
            }
        }
        Ok(())
    }

    /// Checks that a drive of a composition is given to clients of a socket as a whole.
    fn check_shared(&self, scenario: &Scenario, drive: usize) -> Result<(), ServeError> {
        if scenario.composition.is_empty() {
            return Ok(());
        }
        let targets = scenario.composition.targets.iter().filter(|target| target.drive == drive);
        let target = targets.map(|target| format!("target {}", target.target.name)).next();
        let path = self.nbd_over(scenario, drive).next();
        match target.or(path.map(|plan| format!("path {}", plan.path.name))) {
            Some(owner) => Err(ServeError::SharedOwner {
                drive: scenario.drives[drive].config.name.clone(),
                owner,
            }),
            None => Ok(()),
        }
    }
}

/// Returns why a path has no logical blocks; `None` if it has.
fn without_blocks(scenario: &Scenario, path: &PathSpec) -> Option<Impossible> {
    scenario.check_blocks(path.over, BLOCK_REQUESTS).err()
}

impl SocketOptions {
    /// Returns the options of a socket for this user alone, without stored rules.
    pub fn new(path: impl Into<PathBuf>) -> SocketOptions {
        SocketOptions { path: path.into(), is_shared: false, mode: 0o600, acl: None }
    }
}

/// Returns the description of a path's export for `nbdinfo`.
pub(super) fn describe(scenario: &Scenario, path: &PathSpec) -> String {
    if let Beneath::Set(_) = path.over {
        let count = scenario.members(path.over).len();
        let set = scenario.device_name(path.over);
        return format!("a set of {count} emulated drives or targets, {set}");
    }
    let plan = scenario.drive_spec(path.over);
    let by = match &plan.target {
        HostTarget::Pblk(_) => "its flash managed by pblk on the host".to_owned(),
        HostTarget::Rrpc(_) => "its flash managed by rrpc on the host".to_owned(),
        HostTarget::Rules(_) => "its flash managed by rules on the host".to_owned(),
        HostTarget::None => "managed by itself".to_owned(),
        HostTarget::Named(named) => {
            format!("target {} of its partition table", named.name)
        }
    };
    match &plan.kind {
        DriveKind::Nvme => {}
        DriveKind::Ahci(_) => return "an emulated SATA drive at an AHCI controller".into(),
        DriveKind::File(file) => return format!("{} of this machine", file.path.display()),
        DriveKind::Kernel(kernel) => return format!("{} of this machine", kernel.path.display()),
        DriveKind::Pci(pci) => return format!("the controller {} of this machine", pci.address),
    }
    match &plan.preset {
        Some(preset) => format!("an emulated drive from the preset {preset}, {by}"),
        None => format!("an emulated drive, {by}"),
    }
}
