//! `metadata.managedFields` read, written and kept short.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::apply::set::Set;

/// Which entry: appliers have one per name and subresource, updaters one more per version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManagerId {
    /// `Apply` sorts before `Update`.
    pub operation: Operation,
    /// Name the client gave.
    pub manager: String,
    /// Version in which the paths are written; empty for appliers, whose entry follows their last request.
    pub api_version: String,
    /// Empty for the main resource.
    pub subresource: String,
}

/// How fields came to be owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// By server-side apply.
    Apply,
    /// By any other write.
    Update,
}

impl Operation {
    fn wire(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// The fields that one manager owns.
#[derive(Clone, Debug)]
pub struct Owned {
    /// Version in which the paths are written.
    pub api_version: String,
    /// When it last changed, RFC 3339.
    pub time: Option<String>,
    /// The paths.
    pub set: Set,
}

/// All managers of one object.
pub type Managers = BTreeMap<ManagerId, Owned>;

/// At most so many `Update` entries; older ones are put together under [`ANCIENT`].
const UPDATERS_MAX: usize = 10;
const ANCIENT: &str = "ancient-changes";

impl ManagerId {
    /// As conflicts name it: `"kubectl" using apps/v1`.
    pub fn describe(&self) -> String {
        let subresource = match self.subresource.as_str() {
            "" => String::new(),
            s => format!(" with subresource {s:?}"),
        };
        match self.operation {
            Operation::Apply => format!("{:?}{subresource}", self.manager),
            Operation::Update => format!("{:?}{subresource} using {}", self.manager, self.api_version),
        }
    }
}

/// Reads the entries; None if one is malformed (upstream then starts afresh).
pub fn decode(entries: &[Value]) -> Option<Managers> {
    let mut managers = Managers::new();
    for entry in entries {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let operation = match text("operation").as_str() {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        if !matches!(text("fieldsType").as_str(), "" | "FieldsV1") {
            return None;
        }
        let api_version = text("apiVersion");
        let set = match entry.get("fieldsV1") {
            None | Some(Value::Null) => Set::default(),
            Some(fields) => Set::parse(fields)?,
        };
        let id_version = if operation == Operation::Apply { String::new() } else { api_version.clone() };
        let id = ManagerId {
            operation,
            manager: text("manager"),
            api_version: id_version,
            subresource: text("subresource"),
        };
        let time = entry.get("time").and_then(Value::as_str).map(str::to_owned);
        let owned = managers.entry(id).or_insert(Owned { api_version, time: None, set: Set::default() });
        owned.set.absorb(&set);
        owned.time = owned.time.take().max(time);
    }
    Some(managers)
}

/// Writes the entries in upstream's order: appliers, then updaters by time and name. Empty ones are left out.
pub fn encode(managers: &Managers) -> Vec<Value> {
    let mut order: Vec<_> = managers.iter().filter(|(_, owned)| !owned.set.is_empty()).collect();
    order.sort_by(|(a, x), (b, y)| {
        (a.operation, &x.time, &a.manager, &x.api_version, &a.subresource).cmp(&(
            b.operation,
            &y.time,
            &b.manager,
            &y.api_version,
            &b.subresource,
        ))
    });
    order.into_iter().map(|(id, owned)| entry(id, owned)).collect()
}

fn entry(id: &ManagerId, owned: &Owned) -> Value {
    let mut entry = Map::new();
    entry.insert("manager".into(), json!(id.manager));
    entry.insert("operation".into(), json!(id.operation.wire()));
    entry.insert("apiVersion".into(), json!(owned.api_version));
    if let Some(time) = &owned.time {
        entry.insert("time".into(), json!(time));
    }
    entry.insert("fieldsType".into(), json!("FieldsV1"));
    entry.insert("fieldsV1".into(), owned.set.to_value());
    if !id.subresource.is_empty() {
        entry.insert("subresource".into(), json!(id.subresource));
    }
    Value::Object(entry)
}

/// Puts the oldest updaters of each version together until few enough are left.
pub fn cap(managers: &mut Managers) {
    let mut updaters: Vec<ManagerId> =
        managers.keys().filter(|id| id.operation == Operation::Update).cloned().collect();
    let mut count = updaters.len();
    updaters.sort_by(|a, b| (&managers[a].time, a).cmp(&(&managers[b].time, b)));
    let mut first_of: BTreeMap<String, ManagerId> = BTreeMap::new();
    for id in updaters {
        if count <= UPDATERS_MAX {
            return;
        }
        let Some(first) = first_of.get(&id.api_version).cloned() else {
            first_of.insert(id.api_version.clone(), id);
            continue;
        };
        let bucket = ManagerId { manager: ANCIENT.to_owned(), subresource: String::new(), ..id.clone() };
        if id == bucket {
            continue;
        }
        if !managers.contains_key(&bucket)
            && let Some(owned) = managers.remove(&first)
        {
            managers.insert(bucket.clone(), owned);
        }
        if let (Some(owned), Some(old)) = (managers.remove(&id), managers.get_mut(&bucket)) {
            old.set.absorb(&owned.set);
            old.time = owned.time;
            count -= 1;
        }
    }
}
