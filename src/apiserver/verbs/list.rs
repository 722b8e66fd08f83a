//! `list`: many objects at one moment.

use std::sync::Arc;

use base::limits::CACHE_FILL_PAGE_KEYS;
use base::url::Query;
use http::Response;
use model::labels::Selector;
use registry::cache::entry::Entry;
use registry::cache::filter::Filter;
use registry::cache::{Cache, Kind};
use registry::selection::Selection;
use registry::status::Status;
use schema::fields::FieldSelector;
use schema::table::Resource;
use schema::validate::error::FieldError;
use store::Revision;
use wire::Body;

use super::Call;
use super::page::Token;
use super::present;
use super::shape::ListMeta;
use crate::heavy::Weight;
use crate::held;

/// Asking one object whether it is wanted costs about as much as reading so many bytes.
pub const FILTER_BYTES: usize = 16;
/// So many bytes of an older list are read in one step.
const STEP_BYTES: usize = 1 << 20;

/// Answers with the list.
pub async fn run(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let kind = call.x.server.objects.cache.kind(call.stored.group_resource());
    let mut filter = filter(&call.resource, &kind, call.namespace(), &call.x.query)?;
    let whole = filter.is_all();
    let selection = Selection::split(&mut filter, &call.x.server.objects, &call.stored, &call.resource);
    if call.x.query.get("sendInitialEvents").is_some() {
        return Err(Status::options(
            "ListOptions",
            FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"),
        ));
    }
    numbers(&call.x.query)?;
    let limit = usize::try_from(call.x.query.number("limit").unwrap_or(0).max(0)).unwrap_or(0);
    let moment = Moment::parse(&call.x.query, limit > 0)?;
    // What a webhook has to convert before it is judged is read whole.
    let enough = if selection.is_some() { 0 } else { limit };
    let Collected { mut entries, rv, start, behind } = collect(call, &filter, &moment, enough).await?;
    call.x.weight.add(entries.len() * FILTER_BYTES).await;
    if let Some(selection) = &selection {
        entries.retain(|e| e.key.as_ref() >= start.as_str() && filter.matches(e));
        entries = selection.keep(entries).await?;
    }
    let mut wanted = entries.iter().filter(|e| e.key.as_ref() >= start.as_str() && filter.matches(e));
    if limit == 0 {
        let meta = ListMeta { rv, next: String::new(), remaining: None };
        return shown(call, wanted.cloned().collect(), &meta).await;
    }
    let page: Vec<Arc<Entry>> = wanted.by_ref().take(limit).cloned().collect();
    let left = wanted.count() as u64 + behind;
    let next = page.last().filter(|_| left > 0).map(|last| Token::after(&last.key, rv).encode()).unwrap_or_default();
    // With a selector upstream does not count what is left.
    let meta = ListMeta { rv, next, remaining: whole.then_some(left) };
    shown(call, page, &meta).await
}

/// Counts the list before it is made of copies.
async fn shown(call: &mut Call<'_, '_>, items: Vec<Arc<Entry>>, meta: &ListMeta) -> Result<Response<Body>, Status> {
    held::count(call.x, items.iter().map(|entry| entry.json.len()).sum())?;
    present::list(call, items, meta).await
}

/// Numbers among the options are numbers.
///
/// Errors: 400 in Go's words.
pub fn numbers(query: &Query) -> Result<(), Status> {
    let bad = ["limit", "timeoutSeconds"]
        .into_iter()
        .find(|key| query.get(key).is_some_and(|v| !v.is_empty()) && query.number(key).is_none());
    match bad {
        Some(key) => {
            Err(Status::bad_request(format!("strconv.ParseInt: parsing {:?}: invalid syntax", query.text(key))))
        }
        None => Ok(()),
    }
}

/// Reads both selectors.
///
/// Errors: 400 for text that is no selector, or a field that cannot be selected by.
pub fn filter(resource: &Resource, kind: &Kind, namespace: &str, query: &Query) -> Result<Filter, Status> {
    let labels = Selector::parse(query.text("labelSelector")).map_err(|err| Status::bad_request(err.to_string()))?;
    let fields =
        FieldSelector::parse(query.text("fieldSelector")).map_err(|err| Status::bad_request(err.to_string()))?;
    let known = |field: &str| {
        matches!(field, "metadata.name" | "metadata.namespace") || resource.selectable.iter().any(|s| s == field)
    };
    if let Some(term) = fields.terms().iter().find(|t| !known(&t.field)) {
        let message = if matches!(resource.group.as_ref(), "" | "events.k8s.io") && !resource.selectable.is_empty() {
            format!("field label not supported: {}", term.field)
        } else {
            format!("{:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", term.field)
        };
        return Err(Status::bad_request(message));
    }
    let fields = fields.renamed(|field| schema::convert::stored_field(resource, field));
    let namespace = (!namespace.is_empty()).then(|| namespace.to_owned());
    Ok(Filter { namespace, labels, fields, selectable: Arc::clone(&kind.form().selectable) })
}

/// As of when a list is wanted.
pub enum Moment {
    /// The newest.
    Now,
    /// The state that is there.
    Any,
    /// This revision or newer.
    NotOlder(u64),
    /// This revision.
    Exact(u64),
    /// The page behind an earlier one.
    Page(Token),
}

impl Moment {
    /// Reads `resourceVersion`, `resourceVersionMatch` and `continue`.
    ///
    /// Errors: 400 for combinations that make no sense.
    pub fn parse(query: &Query, limited: bool) -> Result<Moment, Status> {
        let (rv, how, token) =
            (query.text("resourceVersion"), query.text("resourceVersionMatch"), query.text("continue"));
        if !matches!(how, "" | "Exact" | "NotOlderThan") {
            let supported = ["Exact", "NotOlderThan", ""];
            return Err(Status::options(
                "ListOptions",
                FieldError::not_supported("resourceVersionMatch", serde_json::Value::from(how), &supported),
            ));
        }
        if !how.is_empty() && rv.is_empty() {
            return Err(forbidden_match("resourceVersionMatch is forbidden unless resourceVersion is provided"));
        }
        if !how.is_empty() && !token.is_empty() {
            return Err(forbidden_match("resourceVersionMatch is forbidden when continue is provided"));
        }
        if how == "Exact" && rv == "0" {
            return Err(forbidden_match("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""));
        }
        if !token.is_empty() {
            if !rv.is_empty() && rv != "0" {
                return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
            }
            return Token::decode(token).map(Moment::Page);
        }
        let number = parse_version(rv)?;
        Ok(match (number, how) {
            (None, _) => Moment::Now,
            (Some(0), _) => Moment::Any,
            (Some(n), "Exact") => Moment::Exact(n),
            (Some(n), "") if limited => Moment::Exact(n),
            (Some(n), _) => Moment::NotOlder(n),
        })
    }
}

fn forbidden_match(text: &str) -> Status {
    Status::options("ListOptions", FieldError::forbidden("resourceVersionMatch", text))
}

/// Reads a resource version; `None` if there is none.
pub fn parse_version(text: &str) -> Result<Option<u64>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        Status::bad_request(format!(
            "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
        ))
    })
}

/// 410 with a token for those who rather have the rest than a consistent list.
fn too_old(token: &Token) -> Status {
    let mut status = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue \
         parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing \
         with the provided \
         token results in an inconsistent list - objects that were created, modified, or deleted between the time the \
         first chunk was \
         returned and now may show up in the list.",
    );
    status.next = token.inconsistent().encode();
    status
}

/// Objects of a list, or of a page of it.
struct Collected {
    entries: Vec<Arc<Entry>>,
    rv: u64,
    /// The page begins here.
    start: String,
    /// Keys behind those that were read.
    behind: u64,
}

/// Reads what may be wanted: `enough` objects that the filter lets through, where they come from the store; 0 is all.
async fn collect(call: &Call<'_, '_>, filter: &Filter, moment: &Moment, enough: usize) -> Result<Collected, Status> {
    let cache = &call.x.server.objects.cache;
    let kind = cache.ready(call.stored.group_resource()).await?;
    match moment {
        Moment::Now => cache.wait_for_now().await?,
        Moment::Page(token) if token.revision().is_none() => cache.wait_for_now().await?,
        Moment::Any => {}
        Moment::NotOlder(n) | Moment::Exact(n) => {
            if !cache.wait_for(*n).await {
                return Err(Status::future(*n, cache.seen()));
            }
        }
        Moment::Page(_) => {}
    }
    let seen = cache.seen();
    let snapshot = kind.snapshot(filter.namespace.as_deref()).whole()?;
    let now = seen.max(snapshot.newest);
    let (rv, start, is_past) = match moment {
        Moment::Exact(n) => (*n, "", true),
        Moment::Page(token) => (token.revision().unwrap_or(now), token.start.as_str(), token.revision().is_some()),
        _ => (now, "", false),
    };
    // When nothing has changed since then the cache is that moment.
    if !is_past || snapshot.newest <= rv {
        return Ok(Collected { entries: snapshot.items, rv, start: start.to_owned(), behind: 0 });
    }
    drop(snapshot);
    past((cache, &call.x.weight), &kind, filter, (rv, start), enough).await.map_err(|err| match (err, moment) {
        (store::error::Error::Compacted { .. }, Moment::Page(token)) => too_old(token),
        (err, _) => err.into(),
    })
}

/// Reads the store as it was, from `start` on and no further than is wanted: a page costs what it shows, however many
/// are stored.
async fn past(
    (cache, weight): (&Cache, &Weight),
    kind: &Kind,
    filter: &Filter,
    (rv, start): (u64, &str),
    enough: usize,
) -> Result<Collected, store::error::Error> {
    let prefix = format!("{}{}", kind.prefix, filter.namespace.as_ref().map(|ns| format!("{ns}/")).unwrap_or_default());
    let mut key = format!("{}{start}", kind.prefix).max(prefix.clone());
    // With a selector nobody knows how far that is.
    let limit = match u64::try_from(enough) {
        Ok(enough @ 1..CACHE_FILL_PAGE_KEYS) if filter.is_all() => enough,
        _ => CACHE_FILL_PAGE_KEYS,
    };
    let (mut entries, mut n_bytes) = (Vec::new(), 0);
    loop {
        let page = cache.read_page(&prefix, key, Some(Revision(rv)), limit).await?;
        weight.add(page.kvs.iter().map(|kv| kv.value.len()).sum()).await;
        for kv in &page.kvs {
            let local = std::str::from_utf8(&kv.key).ok().and_then(|key| key.strip_prefix(kind.prefix.as_str()));
            let entry = local.and_then(|local| Entry::build(local, &kv.value, kv.mod_revision.0, kind.form()).ok());
            entries.extend(entry.filter(|entry| filter.matches(entry)).map(Arc::new));
            n_bytes += kv.value.len();
            if n_bytes > STEP_BYTES {
                n_bytes = 0;
                tokio::task::yield_now().await;
            }
        }
        let behind = page.count.saturating_sub(page.kvs.len() as u64);
        let last = page.kvs.last().and_then(|kv| std::str::from_utf8(&kv.key).ok());
        match last.filter(|_| page.more && (enough == 0 || entries.len() < enough)) {
            Some(last) => key = format!("{last}\0"),
            None => return Ok(Collected { entries, rv, start: start.to_owned(), behind }),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::rng::Rng;
    use base::task::Group;
    use store::{Op, Txn};

    use super::*;
    use model::reference::GroupResource;

    // issue 12: a list of one object of yesterday's was read, and built, with all others.
    #[tokio::test]
    async fn a_page_of_an_old_moment_reads_what_it_shows_and_no_more() {
        let (group, _reports) = Group::root("test");
        let dir = tempfile::tempdir().unwrap();
        let bootstrap = store::member::Bootstrap::First;
        let config = store::Config {
            dir: dir.path().join("db"),
            bootstrap,
            network: None,
            rng: Rng::from_seed(3),
            bounds: store::bounds::Bounds::SHIPPED,
        };
        let storage: Arc<dyn store::Storage> = store::store::Store::open(config, &group).await.unwrap();
        let put = |ns: &str, n: usize| {
            let label = if n.is_multiple_of(10) { "ten" } else { "other" };
            let value = format!(r#"{{"metadata":{{"labels":{{"l":"{label}"}},"name":"c{n:02}","namespace":"{ns}"}}}}"#);
            let key = format!("/registry/core/configmaps/{ns}/c{n:02}");
            Op::Put { key: key.into(), value: value.into(), lease: 0, prev_kv: false }
        };
        let ops = ["a", "b"].iter().flat_map(|ns| (0..50).map(move |n| put(ns, n))).collect();
        let rv = storage.txn(Txn { success: ops, ..Txn::default() }).await.unwrap().revision;
        storage.txn(Txn { success: vec![put("a", 99)], ..Txn::default() }).await.unwrap();
        let cache = Cache::start(storage, Arc::default(), &group);
        let kind = cache.kind(GroupResource::core("configmaps"));
        let page = |filter: Filter, start: &'static str, enough: usize| {
            let (cache, kind) = (&cache, &kind);
            async move {
                let got = past((cache, &Weight::default()), kind, &filter, (rv.0, start), enough).await.unwrap();
                (got.entries.iter().map(|entry| entry.key.to_string()).collect::<Vec<_>>(), got.behind)
            }
        };
        let of_b = Filter { namespace: Some("b".to_owned()), ..Filter::default() };
        assert_eq!(page(Filter::default(), "", 2).await, (vec!["a/c00".to_owned(), "a/c01".to_owned()], 98));
        assert_eq!(page(Filter::default(), "a/c49\0", 1).await, (vec!["b/c00".to_owned()], 49));
        assert_eq!(page(of_b.clone(), "a/c01\0", 1).await, (vec!["b/c00".to_owned()], 49));
        assert_eq!(page(of_b, "b/c49\0", 1).await, (Vec::new(), 0));
        assert_eq!(page(Filter::default(), "", 0).await.0.len(), 100);
        let tens = Filter { labels: Selector::parse("l=ten").unwrap(), ..Filter::default() };
        assert_eq!(
            page(tens, "", 3).await,
            (
                ["00", "10", "20", "30", "40"]
                    .iter()
                    .flat_map(|n| ["a", "b"].map(|ns| format!("{ns}/c{n}")))
                    .collect::<std::collections::BTreeSet<_>>()
                    .into_iter()
                    .collect(),
                0
            )
        );
        group.shutdown().await;
    }

    /// A moment as a word and its number.
    fn told(moment: &Moment) -> String {
        match moment {
            Moment::Now => "now".to_owned(),
            Moment::Any => "any".to_owned(),
            Moment::NotOlder(n) => format!("not older than {n}"),
            Moment::Exact(n) => format!("exactly {n}"),
            Moment::Page(token) => format!("page at {:?} of {:?}", token.start, token.revision()),
        }
    }

    // The table of https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
    #[test]
    fn version_match_and_limit_say_as_of_when_a_list_is() {
        for (query, unlimited, limited) in [
            ("", "now", "now"),
            ("resourceVersion=0", "any", "any"),
            ("resourceVersion=7", "not older than 7", "exactly 7"),
            ("resourceVersion=7&resourceVersionMatch=Exact", "exactly 7", "exactly 7"),
            ("resourceVersion=7&resourceVersionMatch=NotOlderThan", "not older than 7", "not older than 7"),
            ("resourceVersion=0&resourceVersionMatch=NotOlderThan", "any", "any"),
        ] {
            let moment = |limited| told(&Moment::parse(&Query::parse(query), limited).ok().unwrap());
            assert_eq!((moment(false).as_str(), moment(true).as_str()), (unlimited, limited), "{query}");
        }
        let token = Token::after("a/b", 7).encode();
        for query in [format!("continue={token}"), format!("continue={token}&resourceVersion=0")] {
            let moment = Moment::parse(&Query::parse(&query), true).ok().unwrap();
            assert_eq!(told(&moment), "page at \"a/b\\0\" of Some(7)");
        }
    }

    #[test]
    fn options_of_a_list_that_make_no_sense_together_are_refused() {
        let token = Token::after("a", 7).encode();
        let matching = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: ";
        for (query, code, expected) in [
            (
                "resourceVersionMatch=Exact".to_owned(),
                422,
                format!("{matching}Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"),
            ),
            (
                format!("resourceVersionMatch=Exact&resourceVersion=1&continue={token}"),
                422,
                format!("{matching}Forbidden: resourceVersionMatch is forbidden when continue is provided"),
            ),
            (
                "resourceVersionMatch=Exact&resourceVersion=0".to_owned(),
                422,
                format!("{matching}Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""),
            ),
            (
                "resourceVersionMatch=Newest&resourceVersion=1".to_owned(),
                422,
                format!("{matching}Unsupported value: \"Newest\": supported values: \"Exact\", \"NotOlderThan\", \"\""),
            ),
            (
                format!("resourceVersion=1&continue={token}"),
                400,
                "specifying resource version is not allowed when using continue".to_owned(),
            ),
            (
                "resourceVersion=x".to_owned(),
                400,
                "resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\": invalid syntax".to_owned(),
            ),
        ] {
            let status = Moment::parse(&Query::parse(&query), false).err().unwrap();
            assert_eq!((status.code, status.message.as_str()), (code, expected.as_str()), "{query}");
        }
    }

    #[test]
    fn numbers_among_the_options_are_numbers() {
        for query in ["", "limit=", "limit=5", "timeoutSeconds=30&limit=-1"] {
            assert!(numbers(&Query::parse(query)).is_ok(), "{query}");
        }
        for query in ["limit=x", "limit=1&timeoutSeconds=x"] {
            let status = numbers(&Query::parse(query)).unwrap_err();
            assert_eq!(
                (status.code, status.message.as_str()),
                (400, "strconv.ParseInt: parsing \"x\": invalid syntax")
            );
        }
    }

    #[test]
    fn only_fields_of_the_row_select_and_others_are_named() {
        let catalog = schema::catalog::Catalog::builtin();
        let kind = Kind::new("/registry/x/".to_owned(), registry::cache::entry::Form::default());
        let read = |group: &str, version: &str, plural: &str, query: &str| {
            let resource = catalog.resource(schema::table::GroupVersion { group, version }, plural).unwrap();
            filter(resource, &kind, "", &Query::parse(query)).map(|_| ()).map_err(|status| status.message.clone())
        };
        for (group, version, plural, field) in [
            ("", "v1", "pods", "metadata.name"),
            ("", "v1", "pods", "metadata.namespace"),
            ("", "v1", "pods", "spec.nodeName"),
            ("", "v1", "pods", "status.phase"),
            ("apps", "v1", "deployments", "metadata.name"),
        ] {
            assert_eq!(read(group, version, plural, &format!("fieldSelector={field}%3Dx")), Ok(()), "{plural} {field}");
        }
        for (group, plural, expected) in [
            ("", "pods", "field label not supported: spec.odd"),
            (
                "apps",
                "deployments",
                "\"spec.odd\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
            ),
        ] {
            assert_eq!(read(group, "v1", plural, "fieldSelector=spec.odd%3Dx"), Err(expected.to_owned()));
        }
        assert!(read("", "v1", "pods", "labelSelector=a%3Db%3Dc").is_err());
        assert!(read("", "v1", "pods", "fieldSelector=a").is_err());
    }
}
