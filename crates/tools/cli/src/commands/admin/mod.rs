//! `sluice admin`: access rules, statistics, settings, faults and namespaces of a running
//! `sluice serve` (`docs/sharing.md`).

mod faults;
mod namespaces;
mod settings;
mod stats;

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use scenario::format::{bytes_binary, count};
use scenario::user::subject;
use serde_json::{Value, json};
use share_proto::{
    AclRule, ClientEntry, Grant, KickTarget, ListEntry, PartitionSpan, Principal, ResourceName,
};
use user_io::RemoteDeviceError;
use user_io::remote::Admin;

use crate::args::{AdminArgs, AdminSubcommand, AllowArgs};
use crate::{CliError, print};

/// Error of connecting to a socket of another type.
const EPROTOTYPE: i32 = rustix::io::Errno::PROTOTYPE.raw_os_error();

impl From<RemoteDeviceError> for CliError {
    fn from(error: RemoteDeviceError) -> CliError {
        match &error {
            RemoteDeviceError::Refused(_) | RemoteDeviceError::Name(_) => {
                CliError::Usage(error.to_string())
            }
            RemoteDeviceError::Connect { path, source } => {
                CliError::Other(format!("{error}{}", no_server(path, source)))
            }
            _ => CliError::Other(error.to_string()),
        }
    }
}

/// Returns the reason why no server answers at a path, and the remedy.
fn no_server(path: &Path, source: &io::Error) -> String {
    let is_socket = std::fs::metadata(path).map(|meta| meta.file_type().is_socket());
    let start = "start one with `sluice serve SCENARIO --socket PATH`, or, for `sluice admin stats` of \
                 drives that only NBD serves, with `--nbd ENDPOINT --admin-socket PATH`";
    match (source.raw_os_error(), is_socket) {
        (Some(EPROTOTYPE), _) => format!(
            "; this is a stream socket, such as NBD's: give the path of the server's `--socket` or \
             `--admin-socket`, or {start}"
        ),
        (_, Ok(false)) => "; it is not a socket".into(),
        (_, Ok(true)) if source.kind() == io::ErrorKind::ConnectionRefused => {
            format!("; its server has ended without removing it: {start}")
        }
        (_, Err(_)) if source.kind() == io::ErrorKind::NotFound => format!("; {start}"),
        _ => String::new(),
    }
}

/// Runs `sluice admin …`.
///
/// # Errors
/// [`CliError`] if no server runs at the socket, or if it refuses the command.
pub fn run(args: &AdminArgs) -> Result<(), CliError> {
    let socket = &args.socket;
    match &args.command {
        AdminSubcommand::Allow(args) => allow(socket, args),
        AdminSubcommand::Deny { user, device, partition } => {
            let user = parse_subject(user)?;
            let rules = Admin::connect(socket)?.deny(user, *device, *partition)?;
            let rules = if rules == 1 { "1 rule".into() } else { format!("{rules} rules") };
            print(&format!("{user} denied: {rules} removed\n"))
        }
        AdminSubcommand::List { json } => {
            let entries = Admin::connect(socket)?.list()?;
            print(&if *json { format!("{:#}\n", to_json(&entries)) } else { listing(&entries) })
        }
        AdminSubcommand::Stats(args) => stats::run(socket, args),
        AdminSubcommand::Set { name, key, value } => settings::run(socket, *name, key, value),
        AdminSubcommand::Fault { name, kind, keys } => faults::run(socket, *name, kind, keys),
        AdminSubcommand::Namespace { command } => namespaces::run(socket, command),
        AdminSubcommand::Kick { whom } => {
            let whom = match whom.parse() {
                Ok(client) => KickTarget::Client(client),
                Err(_) => KickTarget::Subject(parse_subject(whom)?),
            };
            let ended = Admin::connect(socket)?.kick(whom)?;
            print(&format!("{ended} connections ended\n"))
        }
    }
}

fn parse_subject(text: &str) -> Result<Principal, CliError> {
    subject(text).map_err(|allowed| CliError::Usage(format!("`{text}`: allowed: {allowed}")))
}

fn allow(socket: &Path, args: &AllowArgs) -> Result<(), CliError> {
    let (subject, device, partition) = (parse_subject(&args.user)?, args.device, args.partition);
    let grant = Grant {
        write: !args.read_only,
        queues: args.queues,
        depth: args.depth.unwrap_or(u16::MAX),
        iops: args.iops,
        bytes_per_sec: args.bandwidth,
    };
    let replaced =
        Admin::connect(socket)?.allow(AclRule { principal: subject, device, partition, grant })?;
    let before = if replaced { ", in place of what was allowed before" } else { "" };
    print(&format!("{subject} may use {device}/{partition}: {}{before}\n", grant_text(grant)))
}

fn grant_text(grant: Grant) -> String {
    let mut text =
        format!("{} queues{}", grant.queues, if grant.write { "" } else { ", read only" });
    if grant.depth < u16::MAX {
        text.push_str(&format!(", of {} entries", grant.depth));
    }
    if let Some(iops) = grant.iops {
        text.push_str(&format!(", {} commands/s", count(iops)));
    }
    if let Some(rate) = grant.bytes_per_sec {
        text.push_str(&format!(", {}", scenario::format::rate(rate as f64)));
    }
    text
}

/// Formats the list for people.
fn listing(entries: &[ListEntry]) -> String {
    let [mut partitions, mut rules, mut clients, mut settings] = [const { String::new() }; 4];
    for entry in entries {
        match entry {
            ListEntry::Partition { device, name, span, in_use: taken, clients } => {
                let place = format!("{device}/{name}");
                let by = if *taken { "NBD".into() } else { format!("{clients} clients") };
                partitions.push_str(&format!("  {place:<24} {span}, {by}\n"));
            }
            ListEntry::Rule(AclRule { principal: subject, device, partition, grant }) => {
                let place = format!("{device}/{partition}");
                let (who, how) = (subject.to_string(), grant_text(*grant));
                rules.push_str(&format!("  {place:<24} {who:<12} {how}\n"));
            }
            ListEntry::Client(client) => clients.push_str(&client_line(client)),
            ListEntry::Settings(entry) => {
                settings.push_str(&format!("  {}\n", settings::line(entry)));
            }
        }
    }
    let or_none = |text: String| if text.is_empty() { "  none\n".into() } else { text };
    format!(
        "partitions\n{}rules (a partition without: the server's own user)\n{}clients\n{}settings\n{}",
        or_none(partitions),
        or_none(rules),
        or_none(clients),
        or_none(settings)
    )
}

fn client_line(c: &ClientEntry) -> String {
    let place = format!("{}/{}", c.device, c.partition);
    format!(
        "  {place:<24} client {} uid {} pid {}: {} of {} queues, {} commands, {}, {} under way, \
         {} stalled, {} refused, {} held back, {} registered, {} s\n",
        c.client,
        c.process.uid,
        c.process.pid,
        c.queues,
        c.queues_granted,
        count(c.traffic.commands),
        bytes_binary(c.traffic.bytes),
        c.traffic.outstanding,
        c.traffic.stalled,
        c.traffic.refused,
        c.traffic.throttled,
        bytes_binary(c.registered),
        c.seconds
    )
}

/// Formats the list for programs.
fn to_json(entries: &[ListEntry]) -> Value {
    let [mut partitions, mut rules, mut clients, mut settings] = [const { Vec::new() }; 4];
    for entry in entries {
        match entry {
            ListEntry::Partition { device, name, span, in_use: taken, clients } => {
                let (unit, first, count) = match *span {
                    PartitionSpan::Sectors { first, count } => ("sectors", first, count),
                    PartitionSpan::ParallelUnits { first, count } => {
                        ("pus", first.into(), count.into())
                    }
                };
                partitions.push(json!({
                    "device": device.as_str(), "partition": name.as_str(), "unit": unit,
                    "first": first, "count": count, "nbd": taken, "clients": clients,
                }));
            }
            ListEntry::Rule(rule) => rules.push(json!({
                "device": rule.device.as_str(), "partition": rule.partition.as_str(),
                "user": rule.principal.to_string(), "write": rule.grant.write,
                "queues": rule.grant.queues, "depth": rule.grant.depth,
                "iops": rule.grant.iops, "bytes_per_sec": rule.grant.bytes_per_sec,
            })),
            ListEntry::Client(c) => clients.push(json!({
                "client": c.client, "uid": c.process.uid, "gid": c.process.gid, "pid": c.process.pid,
                "device": c.device.as_str(), "partition": c.partition.as_str(),
                "queues": c.queues, "queues_granted": c.queues_granted,
                "commands": c.traffic.commands, "bytes": c.traffic.bytes, "refused": c.traffic.refused,
                "held": c.traffic.throttled, "outstanding": c.traffic.outstanding, "stalled": c.traffic.stalled,
                "registered_bytes": c.registered, "seconds": c.seconds,
            })),
            ListEntry::Settings(entry) => settings.push(settings::to_json(entry)),
        }
    }
    json!({
        "partitions": partitions, "rules": rules, "clients": clients, "settings": settings,
    })
}

/// Parses a name on the command line.
///
/// # Errors
/// The allowed form.
pub fn name(text: &str) -> Result<ResourceName, String> {
    ResourceName::new(text).map_err(|e| e.to_string())
}

/// Parses a bandwidth on the command line, in bytes per second.
///
/// # Errors
/// The allowed form.
pub fn bandwidth(text: &str) -> Result<u64, String> {
    use scenario::units;
    units::bandwidth(text)
        .filter(|rate| *rate > 0)
        .ok_or_else(|| format!("expected {}", units::BANDWIDTH))
}

/// Parses permissions of a file on the command line, in octal digits.
///
/// # Errors
/// The allowed form.
pub fn mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "expected octal digits from 0 to 777, as for chmod".into())
}
