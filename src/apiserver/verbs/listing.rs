//! A list on its way to the client, item by item: the values of one item at a time are in memory, and of a long list
//! only the piece that the client reads next.
//!
//! What a list costs is computed beside the async threads (`heavy.rs`), a piece at a time, so that many lists take
//! turns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use http::{HeaderMap, Response, StatusCode};
use registry::cache::entry::Entry;
use registry::forms;
use registry::negotiate::{Format, Output, Transform};
use registry::status::Status;
use schema::protobuf::ListWriter;
use schema::table::Resource;
use serde_json::{Value, json};
use wire::Body;
use wire::gzip::Packer;

use super::Call;
use super::shape::{self, ListMeta};
use crate::heavy::{Beside, Weight};
use crate::narrow::{self, View};
use crate::respond;

/// Pieces of a list are about this long.
const PIECE_BYTES: usize = 64 * 1024;
/// A list of more stored bytes is written while the client reads.
const WHOLE_BYTES_MAX: usize = 1 << 20;
/// Copying bytes costs about this part of reading them as values.
const COPY_SHARE: usize = 16;

/// An item: an object as it is stored, or in the version of the request.
pub enum Item {
    /// Its bytes.
    Stored(Arc<Entry>),
    /// Its value.
    Made(Value),
}

/// Form of an item.
struct Look {
    stored: Arc<Resource>,
    resource: Arc<Resource>,
    output: Output,
    include: String,
    now: jiff::Timestamp,
    view: Option<View>,
}

impl Look {
    fn of(call: &Call<'_, '_>) -> Look {
        Look {
            stored: Arc::clone(&call.stored),
            resource: Arc::clone(&call.resource),
            output: call.output,
            include: call.x.query.text("includeObject").to_owned(),
            now: call.x.server.objects.clock.now(),
            view: narrow::of(&call.x.attributes.user, &call.resource),
        }
    }

    fn is_converted(&self) -> bool {
        self.stored.group != self.resource.group || self.stored.version != self.resource.version
    }

    /// Whether stored bytes are what the client asked for.
    fn is_plain(&self) -> bool {
        let json = self.output.format == Format::Json && !self.output.pretty;
        json && self.output.transform == Transform::Object && self.view.is_none() && !self.is_converted()
    }

    fn value(&self, item: Item) -> Result<Value, Status> {
        let object = match item {
            Item::Stored(entry) => forms::parse(&entry.json, &self.stored, &self.resource)?,
            Item::Made(value) => value,
        };
        let object = match self.view {
            Some(view) => view(object),
            None => object,
        };
        Ok(match self.output.transform {
            Transform::Object => of_list(&self.resource, object),
            Transform::Metadata => shape::metadata_only(object, self.output),
            Transform::Table => shape::row(&self.resource, object, &self.include, self.output, self.now),
        })
    }

    /// The list without its items.
    fn head(&self, meta: &ListMeta) -> Value {
        let metadata = shape::list_metadata(meta);
        match self.output.transform {
            Transform::Object => {
                json!({ "kind": self.resource.list_kind, "apiVersion": self.resource.api_version(),
                    "metadata": metadata })
            }
            Transform::Metadata => {
                json!({ "kind": "PartialObjectMetadataList", "apiVersion": shape::meta_version(self.output),
                    "metadata": metadata })
            }
            Transform::Table => json!({
                "kind": "Table", "apiVersion": shape::meta_version(self.output), "metadata": metadata,
                "columnDefinitions": schema::print::column_values(&self.resource),
            }),
        }
    }

    fn items_key(&self) -> &'static str {
        if self.output.transform == Transform::Table { "rows" } else { "items" }
    }
}

/// An object as it stands in a list: those of built-in kinds without version and kind, which the list has for all of
/// them.
///
/// Spec: upstream v1.36, whose typed objects lose both when they are decoded from the store.
fn of_list(resource: &Resource, mut object: Value) -> Value {
    if !resource.custom
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    object
}

/// Writes a list as text.
struct Writer {
    look: Look,
    items: std::vec::IntoIter<Item>,
    head: Value,
    /// The two fields that a stored object of the listed version begins with.
    own: String,
    n_written: usize,
    is_begun: bool,
    is_done: bool,
}

impl Writer {
    fn new(look: Look, items: Vec<Item>, meta: &ListMeta) -> Writer {
        let own =
            json!({ "apiVersion": look.resource.api_version(), "kind": look.resource.kind.to_string() }).to_string();
        let head = look.head(meta);
        Writer {
            look,
            items: items.into_iter(),
            head,
            own: own.replace('}', ","),
            n_written: 0,
            is_begun: false,
            is_done: false,
        }
    }

    /// The next piece; `None` behind the last.
    fn piece(&mut self) -> Result<Option<Bytes>, Status> {
        if self.is_done {
            return Ok(None);
        }
        let mut out = Vec::with_capacity(PIECE_BYTES * 5 / 4);
        if !self.is_begun {
            self.is_begun = true;
            self.begin(&mut out)?;
        }
        while out.len() < PIECE_BYTES {
            let Some(item) = self.items.next() else {
                self.is_done = true;
                self.end(&mut out);
                break;
            };
            self.push(&mut out, item)?;
            self.n_written += 1;
        }
        Ok(Some(out.into()))
    }

    fn begin(&self, out: &mut Vec<u8>) -> Result<(), Status> {
        let key = self.look.items_key();
        match (self.look.output.format, self.look.output.pretty) {
            (Format::Yaml, _) => out.extend_from_slice(yaml(&self.head)?.as_bytes()),
            (_, true) => {
                let head = serde_json::to_vec_pretty(&self.head).map_err(Status::internal)?;
                out.extend_from_slice(head.strip_suffix(b"\n}").unwrap_or(&head));
                out.extend_from_slice(format!(",\n  \"{key}\": [").as_bytes());
            }
            (_, false) => {
                let head = self.head.to_string();
                out.extend_from_slice(head.strip_suffix('}').unwrap_or(&head).as_bytes());
                out.extend_from_slice(format!(",\"{key}\":[").as_bytes());
            }
        }
        Ok(())
    }

    fn push(&self, out: &mut Vec<u8>, item: Item) -> Result<(), Status> {
        let is_first = self.n_written == 0;
        match (self.look.output.format, self.look.output.pretty) {
            (Format::Yaml, _) => {
                if is_first {
                    out.extend_from_slice(format!("{}:\n", self.look.items_key()).as_bytes());
                }
                // A list of one: its lines are those of an item at any place of a longer list.
                let list = Value::Array(vec![self.look.value(item)?]);
                match respond::yaml(&list) {
                    Some(text) => out.extend_from_slice(&text),
                    None => out.extend_from_slice(format!("- {}\n", list[0]).as_bytes()),
                }
            }
            (_, true) => {
                out.extend_from_slice(if is_first { b"\n" } else { b",\n" });
                let text = respond::written(&self.look.value(item)?, Format::Json, true);
                // No text of JSON holds a line break.
                for (n, line) in text.split(|byte| *byte == b'\n').enumerate() {
                    out.extend_from_slice(if n == 0 { b"    " } else { b"\n    " });
                    out.extend_from_slice(line);
                }
            }
            (_, false) => {
                if !is_first {
                    out.push(b',');
                }
                match &item {
                    Item::Stored(entry) if self.look.is_plain() => return self.copy(out, entry),
                    _ => serde_json::to_writer(out, &self.look.value(item)?).map_err(Status::internal)?,
                }
            }
        }
        Ok(())
    }

    /// [`of_list`] of an object's bytes, which are parsed only if they do not begin with the two fields as they are
    /// stored.
    fn copy(&self, out: &mut Vec<u8>, entry: &Entry) -> Result<(), Status> {
        match entry.json.strip_prefix(self.own.as_bytes()) {
            _ if self.look.resource.custom => out.extend_from_slice(&entry.json),
            Some(rest) => {
                out.push(b'{');
                out.extend_from_slice(rest);
            }
            None => {
                serde_json::to_writer(out, &of_list(&self.look.resource, entry.value())).map_err(Status::internal)?
            }
        }
        Ok(())
    }

    fn end(&self, out: &mut Vec<u8>) {
        match (self.look.output.format, self.look.output.pretty, self.n_written) {
            (Format::Yaml, _, 0) => out.extend_from_slice(format!("{}: []\n", self.look.items_key()).as_bytes()),
            (Format::Yaml, ..) => {}
            (_, true, 0) => out.extend_from_slice(b"]\n}"),
            (_, true, _) => out.extend_from_slice(b"\n  ]\n}"),
            (_, false, _) => out.extend_from_slice(b"]}\n"),
        }
    }

    /// All pieces.
    async fn whole(mut self) -> Result<Vec<Bytes>, Status> {
        let mut pieces = Vec::new();
        while let Some(piece) = self.piece()? {
            pieces.push(piece);
            if !self.is_done {
                tokio::task::yield_now().await;
            }
        }
        Ok(pieces)
    }
}

fn yaml<T: serde::Serialize>(value: &T) -> Result<String, Status> {
    serde_saphyr::to_string(value).map_err(Status::internal)
}

/// Answers with a list.
pub async fn answer(call: &Call<'_, '_>, items: Vec<Item>, meta: &ListMeta) -> Result<Response<Body>, Status> {
    let (look, headers) = (Look::of(call), &call.x.parts.headers);
    let n_bytes: usize =
        items.iter().map(|item| if let Item::Stored(entry) = item { entry.json.len() } else { 0 }).sum();
    let is_long = n_bytes > WHOLE_BYTES_MAX;
    let packs = wire::gzip::accepted(headers);
    call.x.weight.add(if look.is_plain() && !packs { n_bytes / COPY_SHARE } else { n_bytes }).await;
    if look.output.format == Format::Protobuf {
        return protobuf(look, items, meta, headers).await;
    }
    let content_type = look.output.format.content_type();
    // What may fail on the way is made before it is promised.
    let may_fail = look.is_converted();
    let writer = Writer::new(look, items, meta);
    if is_long && !may_fail {
        let packer = packs.then(Packer::begin);
        return Ok(respond::streamed(StatusCode::OK, content_type, packs, pieces(writer, packer)));
    }
    Ok(respond::chunks(StatusCode::OK, content_type, writer.whole().await?, headers))
}

/// The list as the client reads it.
fn pieces(writer: Writer, packer: Option<Packer>) -> Body {
    let is_copied = writer.look.is_plain() && packer.is_none();
    let made = futures_util::stream::unfold(Some((writer, packer)), move |state| async move {
        let (mut writer, mut packer) = state?;
        let step = async move {
            // A panic ends this list, and not the other streams of the connection.
            let made = catch_unwind(AssertUnwindSafe(|| next(&mut writer, &mut packer)));
            let made = made.unwrap_or_else(|_| Err(std::io::Error::other("an item of the list cannot be shown")));
            (made, writer, packer)
        };
        let (made, writer, packer) = if is_copied {
            // Others get a turn: a quick client is never waited for.
            tokio::task::yield_now().await;
            step.await
        } else {
            Beside::new(step.boxed(), Weight::heavy()).await
        };
        match made {
            Ok(Some(bytes)) => Some((Ok(bytes), Some((writer, packer)))),
            Ok(None) => None,
            Err(why) => Some((Err(why), None)),
        }
    });
    wire::body::stream(made.boxed())
}

/// The next bytes of a list, packed where that is wanted; `None` at its end.
fn next(writer: &mut Writer, packer: &mut Option<Packer>) -> Result<Option<Bytes>, std::io::Error> {
    loop {
        let piece = writer.piece().map_err(|status| std::io::Error::other(status.message.clone()))?;
        let Some(open) = packer else { return Ok(piece) };
        let packed = match piece {
            Some(piece) => open.pack(&piece)?,
            None => match packer.take() {
                Some(open) => return open.finish().map(Some),
                None => return Ok(None),
            },
        };
        if !packed.is_empty() {
            return Ok(Some(packed));
        }
    }
}

/// A list in protobuf begins with its length: it is made as a whole.
async fn protobuf(
    look: Look,
    items: Vec<Item>,
    meta: &ListMeta,
    headers: &HeaderMap,
) -> Result<Response<Body>, Status> {
    let mut head = look.head(meta);
    let fields = head.as_object_mut().map(std::mem::take).unwrap_or_default();
    let mut writer = match ListWriter::new(fields) {
        Ok(writer) => writer,
        Err(why) => return Ok(respond::unencodable(&why, headers)),
    };
    for item in items {
        match writer.push(&look.value(item)?) {
            Ok(false) => {}
            Ok(true) => tokio::task::yield_now().await,
            Err(why) => return Ok(respond::unencodable(&why, headers)),
        }
    }
    let pieces = writer.finish().into_iter().map(Bytes::from).collect();
    Ok(respond::chunks(StatusCode::OK, Format::Protobuf.content_type(), pieces, headers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::reference::GroupResource;
    use registry::cache::entry::Form;

    fn look(output: Output) -> Look {
        let pods = forms::stored(GroupResource::core("pods")).unwrap();
        let (stored, resource, now) = (Arc::clone(&pods), pods, "2026-11-23T00:00:00Z".parse().unwrap());
        Look { stored, resource, output, include: "Object".to_owned(), now, view: None }
    }

    fn pods(n: usize) -> Vec<Item> {
        let pod = |n: usize| {
            let text = "two\nlines: # and - more\n".repeat(400);
            let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": format!("p{n}"),
                "namespace": "d", "annotations": { "a": text } } });
            let entry = Entry::build(&format!("d/p{n}"), pod.to_string().as_bytes(), 7, &Form::default()).unwrap();
            Item::Stored(Arc::new(entry))
        };
        (0..n).map(pod).collect()
    }

    fn meta() -> ListMeta {
        ListMeta { rv: 9, next: "t".to_owned(), remaining: Some(3) }
    }

    /// The list as it would be made in one.
    fn whole(output: Output, n: usize) -> Value {
        let look = look(output);
        let mut list = look.head(&meta());
        list[look.items_key()] = pods(n).into_iter().map(|item| look.value(item).unwrap()).collect();
        list
    }

    fn written(output: Output, n: usize) -> (usize, Vec<u8>) {
        let mut writer = Writer::new(look(output), pods(n), &meta());
        let (mut n_pieces, mut all) = (0, Vec::new());
        while let Some(piece) = writer.piece().unwrap() {
            n_pieces += 1;
            all.extend_from_slice(&piece);
        }
        (n_pieces, all)
    }

    #[test]
    fn a_list_in_pieces_is_the_list_in_one_in_every_form() {
        for transform in [Transform::Object, Transform::Metadata, Transform::Table] {
            for (format, pretty) in [(Format::Json, false), (Format::Json, true), (Format::Yaml, false)] {
                for n in [0, 1, 30] {
                    let output = Output { format, transform, beta: false, pretty };
                    let (n_pieces, text) = written(output, n);
                    let read: Value = match format {
                        Format::Yaml => serde_saphyr::from_slice(&text).unwrap(),
                        Format::Json | Format::Protobuf => serde_json::from_slice(&text).unwrap(),
                    };
                    assert_eq!(read, whole(output, n), "{output:?} {n}");
                    assert!(n_pieces > 1 || n < 30, "{n_pieces} pieces");
                }
            }
        }
        let output = Output { pretty: true, ..Output::default() };
        let (_, text) = written(output, 2);
        let lines = |text: &[u8]| -> std::collections::BTreeSet<String> {
            String::from_utf8_lossy(text).lines().map(|l| l.trim_end_matches(',').to_owned()).collect()
        };
        assert_eq!(lines(&text), lines(&serde_json::to_vec_pretty(&whole(output, 2)).unwrap()), "indented as in one");
    }

    #[test]
    fn a_list_in_protobuf_is_the_list_in_one() {
        for transform in [Transform::Object, Transform::Metadata] {
            let output = Output { format: Format::Protobuf, transform, ..Output::default() };
            let mut head = look(output).head(&meta());
            let mut writer = ListWriter::new(head.as_object_mut().map(std::mem::take).unwrap()).unwrap();
            for item in pods(20) {
                writer.push(&look(output).value(item).unwrap()).unwrap();
            }
            assert_eq!(writer.finish().concat(), schema::protobuf::encode(&whole(output, 20)).unwrap());
        }
    }

    #[test]
    fn a_packed_list_opens_to_what_was_written() {
        let output = Output::default();
        let mut writer = Writer::new(look(output), pods(30), &meta());
        let (mut packer, mut all) = (Some(Packer::begin()), Vec::new());
        while let Some(bytes) = next(&mut writer, &mut packer).unwrap() {
            all.extend_from_slice(&bytes);
        }
        assert_eq!(wire::gzip::decompress(&all, 1 << 20).unwrap(), written(output, 30).1);
    }
}
