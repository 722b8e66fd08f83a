//! Signatures: arguments that can be swapped by mistake and flags without a name are counted by room, and the counts
//! may only shrink. Errors that are only text are refused.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};

use crate::floors::is_of_tests;
use crate::{files_below, is_test, none, read, room_of};

/// A habit that is counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Habit {
    /// Two `&str` arguments side by side.
    TextPairs,
    /// A `bool` argument.
    BoolArguments,
    /// `Result<_, String>`.
    TextErrors,
}

impl Habit {
    fn remedy(self) -> &'static str {
        match self {
            Habit::TextPairs => {
                "functions with two `&str` arguments side by side, which a caller can swap: take a type that says \
                 which \
                 is which, such as model::reference::NamespacedName, or a struct with two fields"
            }
            Habit::BoolArguments => {
                "functions with a `bool` argument, which a call does not explain: take an enum of two words, or write \
                 two functions"
            }
            Habit::TextErrors => {
                "signatures with Result<_, String>, which a caller cannot match: return an enum that derives \
                 thiserror::Error, with the cause in #[source]"
            }
        }
    }
}

/// By room, at most: pairs of texts and bool arguments. They may only shrink, and this table with them. Errors that are
/// only text are nowhere.
const MOST: &[(&str, [usize; 2])] = &[
    ("src/admission", [1, 1]),
    ("src/apiserver", [4, 20]),
    ("src/authn", [9, 0]),
    ("src/authz", [6, 0]),
    ("src/base", [0, 2]),
    ("src/cel", [5, 9]),
    ("src/client", [4, 2]),
    ("src/cluster", [1, 1]),
    ("src/cni", [1, 0]),
    ("src/model", [7, 0]),
    ("src/network", [3, 0]),
    ("src/pki", [3, 2]),
    ("src/registry", [0, 4]),
    ("src/scheduler", [0, 1]),
    ("src/schema", [16, 20]),
    ("src/store", [1, 10]),
    ("src/wire", [2, 4]),
];

/// Counts the habits of one file; tests are left out.
#[derive(Default)]
struct Signatures {
    found: Vec<(Habit, String)>,
}

/// Whether a type is `Result<_, String>`, or has one in it (a future, an option).
#[derive(Default)]
struct TextError(bool);

impl<'ast> Visit<'ast> for TextError {
    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        if segment.ident == "Result"
            && let syn::PathArguments::AngleBracketed(arguments) = &segment.arguments
            && let Some(syn::GenericArgument::Type(syn::Type::Path(error))) = arguments.args.iter().nth(1)
        {
            self.0 |= error.path.is_ident("String");
        }
        visit::visit_path_segment(self, segment);
    }
}

fn is_named(ty: &syn::Type, name: &str) -> bool {
    matches!(ty, syn::Type::Path(path) if path.path.is_ident(name))
}

fn is_text(ty: &syn::Type) -> bool {
    matches!(ty, syn::Type::Reference(reference) if is_named(&reference.elem, "str"))
}

impl<'ast> Visit<'ast> for Signatures {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attrs = match item {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_of_tests(attrs) {
            visit::visit_item(self, item);
        }
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        let types: Vec<&syn::Type> = signature
            .inputs
            .iter()
            .filter_map(|input| match input {
                syn::FnArg::Typed(typed) => Some(&*typed.ty),
                syn::FnArg::Receiver(_) => None,
            })
            .collect();
        let name = signature.ident.to_string();
        if types.windows(2).any(|pair| pair.iter().all(|ty| is_text(ty))) {
            self.found.push((Habit::TextPairs, name.clone()));
        }
        if types.iter().any(|ty| is_named(ty, "bool")) {
            self.found.push((Habit::BoolArguments, name.clone()));
        }
        let mut error = TextError::default();
        error.visit_return_type(&signature.output);
        if error.0 {
            self.found.push((Habit::TextErrors, name));
        }
        visit::visit_signature(self, signature);
    }
}

#[test]
fn signatures_say_what_is_what() {
    let mut counted: BTreeMap<(String, Habit), Vec<String>> = BTreeMap::new();
    for path in files_below("src").iter().filter(|path| path.ends_with(".rs") && !is_test(path)) {
        let file = syn::parse_file(&read(path)).unwrap_or_else(|err| panic!("{path}: {err}"));
        let mut signatures = Signatures::default();
        signatures.visit_file(&file);
        for (habit, name) in signatures.found {
            counted.entry((room_of(path), habit)).or_default().push(format!("{path} {name}"));
        }
    }
    let most: BTreeMap<&str, [usize; 2]> = MOST.iter().copied().collect();
    let mut found = Vec::new();
    for ((room, habit), places) in &counted {
        let most = most.get(room.as_str()).and_then(|most| most.get(*habit as usize)).copied().unwrap_or_default();
        if places.len() > most {
            let list = places.join("\n      ");
            found.push(format!("{room}: {} {}. At most {most}:\n      {list}", places.len(), habit.remedy()));
        }
    }
    none("signatures that leave out what a name would say", &found);
}
