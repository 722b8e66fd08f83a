//! Imports between the files of a crate: circles stay small, and folders stand on floors with no arrow up.
//!
//! An arrow is a `use` or a path in code that names a module of the same crate. Tests are left out: they may look at
//! everything.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use crate::{files_below, none, read, rooms};

/// Files in one circle of imports, at most: a parent, its parts and what they share.
const CIRCLE_MAX: usize = 5;

/// Circles that are larger still, by their crate. They may only shrink, and this table with them.
const LARGER: [(&str, usize); 0] = [];

/// Parts of a crate, the lowest first: none uses one that stands later.
const FLOORS: [&[&str]; 6] = [
    &[
        "src/schema/read.rs",
        "src/schema/print/duration.rs",
        "src/schema/print/cells.rs",
        "src/schema/print/column.rs",
        "src/schema/validate/error.rs",
        "src/schema/behaviour.rs",
        "src/schema/table.rs",
        "src/schema/decode/",
        "src/schema/patch/",
        "src/schema/apply/",
        "src/schema/strategy/",
        "src/schema/defaults/",
        "src/schema/convert/",
        "src/schema/print/",
        "src/schema/quota.rs",
        "src/schema/validate/",
        "src/schema/kinds/",
        "src/schema/rows/",
        "src/schema/catalog.rs",
        "src/schema/openapi/",
        "src/schema/protobuf/",
        "src/schema/discovery.rs",
        "src/schema/declared.rs",
    ],
    &["src/flags/", "src/process/", "src/agent/", "src/server/", "src/commands/", "src/main.rs"],
    &[
        "src/registry/user.rs",
        "src/registry/attributes.rs",
        "src/registry/status.rs",
        "src/registry/keys.rs",
        "src/registry/negotiate.rs",
        "src/registry/forms.rs",
        "src/registry/cache/",
        "src/registry/webhook/",
        "src/registry/conversion.rs",
        "src/registry/objects.rs",
        "src/registry/services/",
        "src/registry/registrar.rs",
    ],
    &[
        "src/apiserver/aggregate/registry.rs",
        "src/apiserver/capabilities.rs",
        "src/apiserver/exchange.rs",
        "src/apiserver/verbs/",
        "src/apiserver/kinds/",
        "src/apiserver/dispatch.rs",
        "src/apiserver/documents.rs",
        "src/apiserver/paths.rs",
        "src/apiserver/pipeline.rs",
        "src/apiserver/guards.rs",
        "src/apiserver/serve.rs",
    ],
    &[
        "src/kubelet/runtime/labels.rs",
        "src/kubelet/runtime/driver.rs",
        "src/kubelet/runtime/cri.rs",
        "src/kubelet/error.rs",
        "src/kubelet/registries/places.rs",
        "src/kubelet/config.rs",
        "src/kubelet/sources/annotations.rs",
        "src/kubelet/cgroups",
        "src/kubelet/machine.rs",
        "src/kubelet/pods/folder.rs",
        "src/kubelet/runtime/",
        "src/kubelet/pods/spec.rs",
        "src/kubelet/container/",
        "src/kubelet/probes/health.rs",
        "src/kubelet/probes/counts.rs",
        "src/kubelet/pods/observed.rs",
        "src/kubelet/pods/desired.rs",
        "src/kubelet/pods/admission.rs",
        "src/kubelet/status/resources.rs",
        "src/kubelet/pods/resizing.rs",
        "src/kubelet/pods/snapshot.rs",
        "src/kubelet/tokens.rs",
        "src/kubelet/known.rs",
        "src/kubelet/devices/allocations.rs",
        "src/kubelet/devices/checkpoint.rs",
        "src/kubelet/devices/registry.rs",
        "src/kubelet/images/pulled.rs",
        "src/kubelet/images/turns.rs",
        "src/kubelet/images/pulls.rs",
        "src/kubelet/csi/data.rs",
        "src/kubelet/csi/mod.rs",
        "src/kubelet/stats/rates.rs",
        "src/kubelet/volumes/refs.rs",
        "src/kubelet/node.rs",
        "src/kubelet/sources/",
        "src/kubelet/pods/",
        "src/kubelet/volumes/payload.rs",
        "src/kubelet/volumes/error.rs",
        "src/kubelet/volumes/group.rs",
        "src/kubelet/volumes/content.rs",
        "src/kubelet/csi/",
        "src/kubelet/volumes/",
        "src/kubelet/sandbox.rs",
        "src/kubelet/images",
        "src/kubelet/preload.rs",
        "src/kubelet/probes/",
        "src/kubelet/devices/",
        "src/kubelet/worker/plan.rs",
        "src/kubelet/status",
        "src/kubelet/worker/",
        "src/kubelet/manager.rs",
        "src/kubelet/plugins/mod.rs",
        "src/kubelet/register.rs",
        "src/kubelet/stats/",
        "src/kubelet/evict.rs",
        "src/kubelet/handle.rs",
        "src/kubelet/server",
    ],
    &[
        "src/store/bounds.rs",
        "src/store/disk.rs",
        "src/store/kv.rs",
        "src/store/error.rs",
        "src/store/txn.rs",
        "src/store/watch.rs",
        "src/store/storage.rs",
        "src/store/member.rs",
        "src/store/config.rs",
        "src/store/codec.rs",
        "src/store/command.rs",
        "src/store/pending.rs",
        "src/store/journal/",
        "src/store/mvcc/",
        "src/store/raft/types.rs",
        "src/store/inspect.rs",
        "src/store/folder.rs",
        "src/store/raft/rpc.rs",
        "src/store/raft/link.rs",
        "src/store/raft/peers.rs",
        "src/store/raft/log.rs",
        "src/store/raft/last_contact.rs",
        "src/store/raft/image.rs",
        "src/store/raft/network.rs",
        "src/store/raft/machine.rs",
        "src/store/raft/node.rs",
        "src/store/raft/election.rs",
        "src/store/raft/grow.rs",
        "src/store/raft/batch.rs",
        "src/store/raft/report.rs",
        "src/store/raft/start.rs",
        "src/store/propose.rs",
        "src/store/lease.rs",
        "src/store/raft/serve.rs",
        "src/store/etcd/convert.rs",
        "src/store/etcd/client.rs",
        "src/store/etcd/bolt.rs",
        "src/store/etcd/export.rs",
        "src/store/store.rs",
        "src/store/membership.rs",
        "src/store/backup.rs",
        "src/store/external.rs",
        "src/store/etcd/",
    ],
];

/// The files of one crate and what each is called in paths.
#[derive(Default)]
struct Tree {
    /// Module path, without the crate's name, to its file.
    modules: BTreeMap<Vec<String>, String>,
    /// Which files a file uses, and by which name first.
    arrows: BTreeMap<String, BTreeMap<String, String>>,
}

impl Tree {
    fn of(root: &str) -> Tree {
        let mut tree = Tree::default();
        let mut parsed = Vec::new();
        let mut waiting = vec![(Vec::new(), root.to_owned())];
        while let Some((module, path)) = waiting.pop() {
            let text = read(&path);
            let file = syn::parse_file(&text).unwrap_or_else(|err| panic!("{path}: {err}"));
            tree.modules.insert(module.clone(), path.clone());
            note(&mut tree.modules, &mut waiting, &module, &path, &file.items);
            parsed.push((module, path, file));
        }
        for (module, path, file) in parsed {
            let mut uses = Uses { tree: &tree, module, path: path.clone(), found: BTreeMap::new() };
            uses.visit_file(&file);
            let found = uses.found;
            tree.arrows.insert(path, found);
        }
        tree
    }

    /// The file that a path names from within `module`, if it is one of this crate.
    fn file_of(&self, module: &[String], path: &[String]) -> Option<&String> {
        let mut at = module.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                at.pop();
            }
            child => {
                at.push(child.to_owned());
                self.modules.get(&at)?;
            }
        }
        rest = &rest[1..];
        while rest.first().is_some_and(|word| word == "super") {
            at.pop();
            rest = &rest[1..];
        }
        for word in rest {
            at.push(word.clone());
            if !self.modules.contains_key(&at) {
                at.pop();
                break;
            }
        }
        self.modules.get(&at)
    }

    /// Circles of more than one file.
    fn circles(&self) -> Vec<BTreeSet<&str>> {
        let reached = |from: &str| {
            let mut seen = BTreeSet::new();
            let mut waiting = vec![from.to_owned()];
            while let Some(file) = waiting.pop() {
                let next = self.arrows.get(&file).into_iter().flat_map(BTreeMap::keys);
                waiting.extend(next.filter(|file| seen.insert((*file).clone())).cloned());
            }
            seen
        };
        let reach: BTreeMap<&str, BTreeSet<String>> =
            self.arrows.keys().map(|file| (file.as_str(), reached(file))).collect();
        let circle = |file: &str| -> BTreeSet<&str> {
            let both = |other: &&str| reach[file].contains(*other) && reach[other].contains(file);
            reach.keys().copied().filter(both).collect()
        };
        let all: BTreeSet<BTreeSet<&str>> =
            reach.keys().map(|file| circle(file)).filter(|circle| circle.len() > 1).collect();
        all.into_iter().collect()
    }
}

/// Notes the modules that a file declares: those in files of their own are read next, those within it are itself.
fn note(
    modules: &mut BTreeMap<Vec<String>, String>,
    waiting: &mut Vec<(Vec<String>, String)>,
    module: &[String],
    path: &str,
    items: &[syn::Item],
) {
    for item in items {
        let syn::Item::Mod(declared) = item else { continue };
        if is_of_tests(&declared.attrs) {
            continue;
        }
        let name = declared.ident.to_string();
        let child = [module, std::slice::from_ref(&name)].concat();
        let Some((_, items)) = &declared.content else {
            waiting.push((child, file_of_module(path, module.is_empty(), &name, &declared.attrs)));
            continue;
        };
        modules.insert(child.clone(), path.to_owned());
        note(modules, waiting, &child, path, items);
    }
}

pub(crate) fn is_of_tests(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        attr.path().is_ident("test") || attr.path().is_ident("cfg") && words_of(&attr.meta).contains("test")
    })
}

fn words_of(meta: &syn::Meta) -> BTreeSet<String> {
    let syn::Meta::List(list) = meta else { return BTreeSet::new() };
    list.tokens.to_string().split(|c: char| !c.is_alphanumeric()).map(str::to_owned).collect()
}

fn file_of_module(parent: &str, is_root: bool, name: &str, attrs: &[syn::Attribute]) -> String {
    let (dir, file) = parent.rsplit_once('/').unwrap();
    let named = attrs.iter().find_map(|attr| match &attr.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    });
    if let Some(named) = named {
        return format!("{dir}/{named}");
    }
    let dir = if is_root || file == "mod.rs" { dir.to_owned() } else { parent.trim_end_matches(".rs").to_owned() };
    let flat = format!("{dir}/{name}.rs");
    if crate::root().join(&flat).exists() { flat } else { format!("{dir}/{name}/mod.rs") }
}

/// The modules that one file uses.
struct Uses<'a> {
    tree: &'a Tree,
    module: Vec<String>,
    path: String,
    found: BTreeMap<String, String>,
}

impl Uses<'_> {
    fn add(&mut self, path: &[String]) {
        let Some(file) = self.tree.file_of(&self.module, path) else { return };
        if *file != self.path {
            self.found.entry(file.clone()).or_insert_with(|| path.join("::"));
        }
    }

    fn add_tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |word: &syn::Ident| [before, &[word.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.add_tree(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) if name.ident == "self" => self.add(before),
            syn::UseTree::Name(name) => self.add(&with(&name.ident)),
            syn::UseTree::Rename(name) => self.add(&with(&name.ident)),
            syn::UseTree::Glob(_) => self.add(before),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_tree(before, tree)),
        }
    }
}

impl<'ast> Visit<'ast> for Uses<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attrs = match item {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_of_tests(attrs) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let words: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.add(&words);
        }
        visit::visit_path(self, path);
    }

    /// A macro's words are no paths yet: those that begin at the crate are found by their looks.
    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        let text = called.tokens.to_string().replace(" :: ", "::");
        for path in
            text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).filter(|word| word.contains("::"))
        {
            let words: Vec<String> = path.split("::").map(str::to_owned).collect();
            self.add(&words);
        }
        visit::visit_macro(self, called);
    }
}

/// Every crate by its name.
fn crates() -> BTreeMap<String, Tree> {
    let rooms = rooms().into_iter().map(|room| (room.clone(), Tree::of(&format!("src/{room}/lib.rs"))));
    rooms.chain([("kedge".to_owned(), Tree::of("src/main.rs"))]).collect()
}

#[test]
fn circles_of_imports_stay_small() {
    let crates = crates();
    let n: usize = crates.values().map(|tree| tree.arrows.len()).sum();
    let all = files_below("src").iter().filter(|path| path.ends_with(".rs") && !path.ends_with("tests.rs")).count();
    assert!(n * 10 > all * 9, "{n} of {all} files were found");
    let mut larger = Vec::new();
    for (name, tree) in &crates {
        for circle in tree.circles().iter().filter(|circle| circle.len() > CIRCLE_MAX) {
            larger.push((name.as_str(), circle.len(), circle.iter().copied().collect::<Vec<_>>().join(" ")));
        }
    }
    let found: Vec<(&str, usize)> = larger.iter().map(|(name, n, _)| (*name, *n)).collect();
    let files: Vec<&String> = larger.iter().map(|(_, _, files)| files).collect();
    assert_eq!(
        found, LARGER,
        "circles of more than {CIRCLE_MAX} files (left) and those that are known (right): carry what several files \
         share into one below \
         them, or, if a circle has shrunk, write its new size down: {files:#?}"
    );
}

#[test]
fn no_arrow_goes_up() {
    let crates = crates();
    let arrows: Vec<(&String, &String, &String)> = crates
        .values()
        .flat_map(|tree| &tree.arrows)
        .flat_map(|(from, to)| to.iter().map(move |(to, name)| (from, to, name)))
        .collect();
    let mut up = Vec::new();
    for floors in FLOORS {
        let floor = |path: &str| floors.iter().position(|part| path.starts_with(part));
        for (from, to, name) in &arrows {
            if let (Some(low), Some(high)) = (floor(from), floor(to))
                && low < high
            {
                up.push(format!("{from} uses {name} of {to}"));
            }
        }
    }
    none("a part that uses one above it: carry what it uses down, or hand it in", &up);
}
