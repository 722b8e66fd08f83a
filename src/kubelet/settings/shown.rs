//! The settings in force as KubeletConfiguration, for `/configz`: what was said over the defaults.

use serde_json::{Map, Value, json};

use super::Settings;
use super::row::Stand;
use super::{table, tree};

impl Settings {
    /// Each field with the value that is in force. It can be given back as a file, and means the same.
    pub(crate) fn in_force(&self) -> Map<String, Value> {
        let mut shown = Map::new();
        for row in table::all().filter(|row| !row.field.is_empty()) {
            let said = tree::get(&self.given, row.field).cloned();
            // What is so in any case is shown as it is, whatever word it was asked for by.
            let value = if matches!(row.stand, Stand::Fixed { .. }) { row.default() } else { said.or(row.default()) };
            if let Some(value) = value {
                tree::set(&mut shown, row.field, value);
            }
        }
        // A default that is switched off is told, too.
        let off = Settings::default().eviction_hard.into_keys().map(|name| (name, json!("0%")));
        let on = self.eviction_hard.iter().map(|(name, at)| (name.clone(), json!(at.to_string())));
        let hard: Map<String, Value> = off.chain(on).collect();
        for (field, value) in [
            ("evictionHard", Value::Object(hard)),
            ("serializeImagePulls", json!(self.parallel_pulls() == 1)),
            ("maxParallelImagePulls", json!(self.parallel_pulls())),
            ("podPidsLimit", json!(self.pod_max_pids.unwrap_or(-1))),
            ("enforceNodeAllocatable", if self.enforce_allocatable { json!(["pods"]) } else { json!(["none"]) }),
        ] {
            tree::set(&mut shown, field, value);
        }
        shown
    }
}
