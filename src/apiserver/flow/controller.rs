//! Flow control as the stored objects say: read once and kept until one changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::exposition::{self, Metric, Page};
use base::sync::{Mutex, MutexGuard};
use model::meta;
use model::reference::GroupResource;
use registry::attributes::Attributes;
use registry::lookup::Lookup;

use super::GROUP;
use super::classify::FlowSchema;
use super::level::{Kind, Level, Pool, Refusal, Seat, WAIT_MAX};

const DISPATCHED: Metric = Metric { name: "apiserver_flowcontrol_dispatched_requests_total", help: "Requests let in." };
const REJECTED: Metric = Metric { name: "apiserver_flowcontrol_rejected_requests_total", help: "Requests refused." };
const SEATS: Metric = Metric { name: "apiserver_flowcontrol_nominal_limit_seats", help: "Seats of each level." };
const EXECUTING: Metric =
    Metric { name: "apiserver_flowcontrol_current_executing_requests", help: "Requests being answered." };
const IN_QUEUE: Metric = Metric { name: "apiserver_flowcontrol_current_inqueue_requests", help: "Requests that wait." };

#[derive(Default)]
struct State {
    /// Revisions of both resources that this was made from.
    at: (u64, u64),
    schemas: Arc<Vec<FlowSchema>>,
    levels: BTreeMap<String, (String, Arc<Level>)>,
    /// By schema, level and reason; an empty reason was let in.
    counted: BTreeMap<(String, String, &'static str), u64>,
}

/// Lets requests in.
pub struct Flow {
    lookup: Arc<dyn Lookup>,
    /// Seats of the whole server.
    seats: u64,
    pool: Arc<Pool>,
    state: Mutex<State>,
}

/// Objects that a list reads for one seat (apiserver `flowcontrol/request/config.go`, 1.36.2).
const OBJECTS_A_SEAT: u64 = 100;

/// Decision about a request, and the objects that made it.
pub struct Admitted {
    /// Uid of its FlowSchema.
    pub schema_uid: String,
    /// Uid of its PriorityLevelConfiguration.
    pub level_uid: String,
    /// Its seat, held as long as this lives; or why it has none.
    pub seat: Result<Seat, Refusal>,
}

impl Flow {
    /// Shares `seats` among the levels in `lookup`.
    pub fn new(lookup: Arc<dyn Lookup>, seats: usize) -> Flow {
        let state = State { at: (u64::MAX, u64::MAX), ..State::default() };
        Flow { lookup, seats: u64::try_from(seats).unwrap_or(u64::MAX), pool: Arc::default(), state: Mutex::new(state) }
    }

    /// The state, up to date.
    fn state(&self) -> MutexGuard<'_, State> {
        let at = |resource: &str| *self.lookup.changed(GroupResource { group: GROUP, resource }).borrow();
        let now = (at("flowschemas"), at("prioritylevelconfigurations"));
        let mut state = self.state.lock();
        if state.at != now {
            state.at = now;
            self.read(&mut state);
        }
        state
    }

    fn read(&self, state: &mut State) {
        let mut schemas: Vec<FlowSchema> = self
            .lookup
            .list(GroupResource { group: GROUP, resource: "flowschemas" }, None)
            .iter()
            .map(|o| FlowSchema::of(o))
            .collect();
        schemas.sort_by(|a, b| a.precedence.cmp(&b.precedence).then_with(|| a.name.cmp(&b.name)));
        state.schemas = Arc::new(schemas);
        let objects = self.lookup.list(GroupResource { group: GROUP, resource: "prioritylevelconfigurations" }, None);
        let kinds: Vec<(String, String, Kind)> =
            objects.iter().map(|o| (meta::name(o).to_owned(), meta::uid(o).to_owned(), Kind::of(&o["spec"]))).collect();
        let total: u64 = kinds.iter().map(|(_, _, kind)| kind.shares()).sum::<u64>().max(1);
        state.levels.retain(|name, _| kinds.iter().any(|(n, ..)| n == name));
        for (name, uid, kind) in kinds {
            // Rounded up, as upstream: a level with any share has a seat.
            let seats = (self.seats * kind.shares()).div_ceil(total);
            match state.levels.get_mut(&name) {
                Some((known, level)) => {
                    *known = uid;
                    level.set(kind, seats);
                }
                None => drop(state.levels.insert(name, (uid, Level::new(&self.pool, kind, seats, WAIT_MAX)))),
            }
        }
    }

    /// How many seats a request is worth: a list as many as it reads hundreds of objects. `limit` is how many it asks
    /// for, 0 for all.
    fn width(&self, a: &Attributes, limit: u64) -> u64 {
        if a.verb != "list" || !a.name.is_empty() {
            return 1;
        }
        let stored = u64::try_from(self.lookup.count(a.group_resource())).unwrap_or(u64::MAX);
        // A selector looks at all of them, whatever it lets through.
        let picks = !a.label_selector.is_empty() || !a.field_selector.is_empty();
        let read = if limit == 0 || picks { stored } else { stored.min(limit) };
        read.div_ceil(OBJECTS_A_SEAT).max(1)
    }

    /// Waits until the request may be answered or is refused; `None` when no FlowSchema or level is for it (it is let
    /// in then). `limit` is a list's own.
    pub async fn admit(&self, a: &Attributes, limit: u64) -> Option<Admitted> {
        let (schema, level_uid, level) = {
            let state = self.state();
            let schemas = Arc::clone(&state.schemas);
            let schema = schemas.iter().find(|s| s.matches(a)).cloned()?;
            let (uid, level) = state.levels.get(&schema.level).cloned()?;
            (schema, uid, level)
        };
        let seat = level.seat(&format!("{}\0{}", schema.name, schema.flow(a)), self.width(a, limit)).await;
        let reason = seat.as_ref().err().map_or("", |refusal| refusal.reason());
        let key = (schema.name, schema.level, reason);
        *self.state().counted.entry(key).or_default() += 1;
        Some(Admitted { schema_uid: schema.uid, level_uid, seat })
    }

    /// The text for `/metrics`.
    pub fn render(&self) -> String {
        let state = self.state();
        let mut page = Page::default();
        let mut family = page.family(exposition::Kind::Counter, DISPATCHED);
        for ((schema, level, _), n) in state.counted.iter().filter(|((_, _, reason), _)| reason.is_empty()) {
            family.sample(&[("flow_schema", schema), ("priority_level", level)], n);
        }
        let mut family = page.family(exposition::Kind::Counter, REJECTED);
        for ((schema, level, reason), n) in state.counted.iter().filter(|((_, _, reason), _)| !reason.is_empty()) {
            family.sample(&[("flow_schema", schema), ("priority_level", level), ("reason", reason)], n);
        }
        let mut family = page.family(exposition::Kind::Gauge, SEATS);
        for (level, (_, seats)) in &state.levels {
            family.sample(&[("priority_level", level)], seats.seats());
        }
        let mut family = page.family(exposition::Kind::Gauge, EXECUTING);
        for (level, (_, seats)) in &state.levels {
            family.sample(&[("priority_level", level)], seats.counts().0);
        }
        let mut family = page.family(exposition::Kind::Gauge, IN_QUEUE);
        for (level, (_, seats)) in &state.levels {
            family.sample(&[("priority_level", level)], seats.counts().1);
        }
        page.into_text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::defaults;
    use registry::memory::Objects;
    use registry::user::UserInfo;

    #[tokio::test]
    async fn the_masters_pass_where_others_wait() {
        let mut objects = Objects::default();
        for object in defaults::objects() {
            let resource = if object["kind"] == "FlowSchema" { "flowschemas" } else { "prioritylevelconfigurations" };
            objects.put(GroupResource { group: GROUP, resource }, object);
        }
        let flow = Flow::new(Arc::new(objects), 1);
        let ask = |user: UserInfo| Attributes {
            user: user.into(),
            verb: "list".into(),
            resource: "pods".into(),
            is_resource: true,
            ..Attributes::default()
        };
        let bob = ask(UserInfo::new("bob", &[]));
        let held = flow.admit(&bob, 0).await;
        assert!(held.as_ref().is_some_and(|h| h.seat.is_ok()));
        assert_eq!(flow.state().levels["global-default"].1.counts(), (1, 0));
        assert!(flow.admit(&ask(UserInfo::new("root", &["system:masters"])), 0).await.is_some_and(|a| a.seat.is_ok()));
        drop(held);
        assert_eq!(flow.state().levels["global-default"].1.counts(), (0, 0));
        let text = flow.render();
        for line in [
            "# HELP apiserver_flowcontrol_dispatched_requests_total Requests let in.",
            "# TYPE apiserver_flowcontrol_dispatched_requests_total counter",
            "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"global-default\",\
             priority_level=\"global-default\"} 1",
            "# TYPE apiserver_flowcontrol_rejected_requests_total counter",
            "# TYPE apiserver_flowcontrol_nominal_limit_seats gauge",
            "apiserver_flowcontrol_current_executing_requests{priority_level=\"global-default\"} 0",
            "apiserver_flowcontrol_current_inqueue_requests{priority_level=\"global-default\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_list_is_worth_a_seat_a_hundred_objects() {
        let mut objects = Objects::default();
        for n in 0..250 {
            objects.put(
                GroupResource::core("pods"),
                serde_json::json!({"metadata": {"name": format!("p{n}"), "namespace": "a"}}),
            );
        }
        let flow = Flow::new(Arc::new(objects), 600);
        let list =
            Attributes { verb: "list".into(), resource: "pods".into(), is_resource: true, ..Attributes::default() };
        let picks = Attributes { label_selector: "a=b".into(), ..list.clone() };
        let one = Attributes { name: "p1".into(), ..list.clone() };
        let get = Attributes { verb: "get".into(), ..list.clone() };
        let widths =
            [(&list, 0), (&list, 50), (&picks, 50), (&one, 0), (&get, 0)].map(|(a, limit)| flow.width(a, limit));
        assert_eq!(widths, [3, 1, 3, 1, 1]);
    }
}
