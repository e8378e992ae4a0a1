//! Tests of the list of presets. `analytic` compares their closed forms with the figures that their
//! files quote.

use std::path::Path;

use super::*;
use crate::Scenario;

/// Whether a preset with more keys is a valid drive that holds data.
fn has_capacity(name: &str, more: &str) -> bool {
    let text = format!("[drive]\npreset = \"{name}\"\n{more}");
    let scenario = Scenario::parse(Path::new("test.toml"), &text)
        .unwrap_or_else(|e| panic!("{name} {more}: {e}"));
    scenario.drives[0].capacity.is_some()
}

#[test]
fn open_channel_presets_host_pblk_and_an_ftl() {
    for name in ["ocssd-mlc-128pu", "ocssd-mlc-128pu-small"] {
        for active in [0, 4, 128] {
            let more = format!("[target]\nkind = \"pblk\"\nactive_pus = {active}\n");
            let more =
                if name.ends_with("small") { more + "over_provisioning = 0.25\n" } else { more };
            assert!(has_capacity(name, &more));
        }
        assert!(has_capacity(name, "personality = \"block\"\n"));
    }
    assert!(has_capacity("openssd-jasmine", "[target]\nkind = \"pblk\"\n"));
}

#[test]
fn the_listing_names_every_preset_and_source() {
    let listing = listing();
    for preset in all() {
        assert!(listing.contains(preset.name) && listing.contains(preset.source));
    }
}
