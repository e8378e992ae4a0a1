//! `sluice admin set`: a setting of an FTL that changes while it is served; and the settings in force.

use std::path::Path;

use scenario::read_change;
use serde_json::{Value, json};
use share_proto::{LimiterSetting, ResourceName, SettingChange, SettingsEntry};
use share_server::WireSetting;
use user_io::remote::Admin;

use crate::{CliError, print};

/// Runs `sluice admin set`.
///
/// # Errors
/// [`CliError`] for a key or value that a scenario would not accept, if no server runs, or if it
/// refuses the change.
pub(super) fn run(
    socket: &Path,
    name: ResourceName,
    key: &str,
    value: &str,
) -> Result<(), CliError> {
    let change = read_change(key, value).map_err(|error| CliError::Usage(error.problem_text()))?;
    let settings = Admin::connect(socket)?.set(name, SettingChange::from_setting(change))?;
    print(&format!("{}\n", line(&settings)))
}

/// Returns the settings in force, for people.
pub(super) fn line(entry: &SettingsEntry) -> String {
    let SettingsEntry { device, shards, active_pus, active_pus_max, rate_limiter, .. } = entry;
    let each = if *shards > 1 { format!(" in each of {shards} shards") } else { String::new() };
    let limiter = match rate_limiter {
        LimiterSetting::Proportional => "proportional".to_owned(),
        LimiterSetting::Pid { kp, ki, kd } => format!("pid (kp {kp}, ki {ki}, kd {kd})"),
    };
    let policy = sim::victim_policy(entry.victim_policy.into_setting());
    format!(
        "{device}: active_pus {active_pus} of {active_pus_max}{each}, rate_limiter {limiter}, \
         victim_policy {policy}"
    )
}

/// Returns the settings in force, for programs.
pub(super) fn to_json(entry: &SettingsEntry) -> Value {
    json!({
        "device": entry.device.as_str(), "shards": entry.shards,
        "active_pus": entry.active_pus, "active_pus_max": entry.active_pus_max,
        "rate_limiter": sim::rate_limiter(entry.rate_limiter.into_setting()),
        "victim_policy": sim::victim_policy(entry.victim_policy.into_setting()),
    })
}
