//! `sluice admin namespace`: the namespaces of a drive while it is served.

use std::fmt::Write;
use std::path::Path;

use scenario::format::bytes_binary;
use serde_json::{Value, json};
use share_proto::{NamespaceAction, NamespaceEntry, ResourceName};
use user_io::remote::Admin;

use crate::args::NamespaceSubcommand;
use crate::{CliError, print};

/// Runs `sluice admin namespace …`.
///
/// # Errors
/// [`CliError`] if no server runs, or if the drive refuses the change.
pub(super) fn run(socket: &Path, command: &NamespaceSubcommand) -> Result<(), CliError> {
    let mut admin = Admin::connect(socket)?;
    let (name, action) = match command {
        NamespaceSubcommand::List { name, json } => {
            let (namespaces, unallocated) = admin.namespaces(*name)?;
            return print(&match json {
                true => format!("{:#}\n", to_json(*name, &namespaces, unallocated)),
                false => listing(*name, &namespaces, unallocated),
            });
        }
        NamespaceSubcommand::Create { name, size } => (*name, *size),
        NamespaceSubcommand::Delete { name, nsid } => (*name, *nsid),
        NamespaceSubcommand::Attach { name, nsid } => (*name, NamespaceAction::Attach(*nsid)),
        NamespaceSubcommand::Detach { name, nsid } => (*name, NamespaceAction::Detach(*nsid)),
    };
    let created = admin.change_namespaces(name, action)?;
    print(&match action {
        NamespaceAction::Create { .. } => format!("{name}: namespace {created} created\n"),
        NamespaceAction::Delete(None) => format!("{name}: all namespaces deleted\n"),
        NamespaceAction::Delete(Some(nsid)) => format!("{name}: namespace {nsid} deleted\n"),
        NamespaceAction::Attach(nsid) => format!("{name}: namespace {nsid} attached\n"),
        NamespaceAction::Detach(nsid) => format!("{name}: namespace {nsid} detached\n"),
    })
}

fn nguid_text(nguid: [u8; 16]) -> String {
    nguid.iter().fold(String::with_capacity(32), |mut text, byte| {
        // Formatting into a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn bytes_of(entry: &NamespaceEntry, blocks: u64) -> u64 {
    blocks.saturating_mul(entry.block_bytes.into())
}

/// Formats the namespaces for people.
fn listing(name: ResourceName, namespaces: &[NamespaceEntry], unallocated: u64) -> String {
    let mut text = format!("{name}: {} unallocated\n", bytes_binary(unallocated));
    for entry in namespaces {
        text.push_str(&format!(
            "  namespace {}: {} blocks of {} bytes ({}), capacity {}, {} used, {}, NGUID {}\n",
            entry.nsid,
            entry.blocks,
            entry.block_bytes,
            bytes_binary(bytes_of(entry, entry.blocks)),
            bytes_binary(entry.allocated_bytes),
            bytes_binary(bytes_of(entry, entry.used_blocks)),
            if entry.is_attached { "attached" } else { "not attached" },
            nguid_text(entry.nguid),
        ));
    }
    text
}

/// Formats the namespaces for programs.
fn to_json(name: ResourceName, namespaces: &[NamespaceEntry], unallocated: u64) -> Value {
    let entry = |entry: &NamespaceEntry| {
        json!({
            "namespace": entry.nsid, "blocks": entry.blocks, "block_bytes": entry.block_bytes,
            "bytes": bytes_of(entry, entry.blocks), "capacity_bytes": entry.allocated_bytes,
            "used_bytes": bytes_of(entry, entry.used_blocks), "attached": entry.is_attached,
            "nguid": nguid_text(entry.nguid),
        })
    };
    let namespaces: Vec<Value> = namespaces.iter().map(entry).collect();
    json!({
        "device": name.as_str(), "unallocated_bytes": unallocated, "namespaces": namespaces,
    })
}
