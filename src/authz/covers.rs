//! Whether the rules that somebody holds cover the rules that they want to give, without writing out what a rule says
//! in all its combinations: a rule of 600 verbs, groups and resources is one of two hundred million.
//!
//! A held rule covers a combination if it matches its verb, its group, its resource and its name. So words that the
//! same held rules match are one class, and only combinations of classes are looked at.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::rule::Rule;

/// Most steps of one judgement: sets of held rules that are looked at, by words of 64. So much memory (of eight bytes)
/// it takes, too.
const STEPS_MAX: usize = 4_000_000;
/// So many verbs of so many resources are named among what is missing; who lacks more is told so.
const NAMED_MAX: usize = 2000;

/// Rights that somebody lacks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Rules of one resource (or path) each, sorted by how they print.
    pub rules: Vec<Rule>,
    /// There is more than `rules` name.
    pub more: bool,
}

/// The rules are too many to be compared.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the rules are too many to be compared with those currently held: use fewer verbs, groups, resources or names in a \
     rule"
)]
pub struct TooMany;

/// Rights of `wanted` that the owner of `held` does not have.
///
/// A combination is had if one held rule covers it whole, as upstream's `ruleCovers` has it: `*` stands for every verb,
/// group, resource or path, and is a name like any other in `resourceNames`.
/// Spec: `Covers` of upstream's component-helpers/auth/rbac/validation/policy_comparator.go (v1.36.2).
/// Errors: [`TooMany`], before any work that would be too dear.
pub fn missing(held: &[Rule], wanted: &[Rule]) -> Result<Missing, TooMany> {
    let index = Index::of(held);
    let words: usize = wanted.iter().flat_map(Rule::lists).map(<[String]>::len).sum();
    let paths: usize = wanted.iter().map(|rule| rule.non_resource_urls.len()).sum();
    let mut steps = words.saturating_mul(index.width).saturating_add(paths.saturating_mul(index.beginnings.len()));
    let mut found = Found::default();
    for rule in wanted {
        if steps > STEPS_MAX {
            return Err(TooMany);
        }
        let verbs = classes(&rule.verbs, |word| index.verbs.matching(word));
        let paths = classes(&rule.non_resource_urls, |word| index.paths(word));
        let groups = classes(&rule.api_groups, |word| index.groups.matching(word));
        let resources = classes(&rule.resources, |word| index.resources(word));
        let names = match rule.resource_names.as_slice() {
            [] => vec![(index.unnamed.clone(), Vec::new())],
            names => classes(names, |word| index.names.matching(word)),
        };
        let things = groups.len().saturating_mul(resources.len()).saturating_mul(names.len());
        steps = steps
            .saturating_add(verbs.len().saturating_mul(things.saturating_add(paths.len())).saturating_mul(index.width));
        if steps > STEPS_MAX {
            return Err(TooMany);
        }
        for (verb_set, verbs) in &verbs {
            lacking_paths(verb_set, verbs, &paths, &mut found);
            lacking_things(verb_set, verbs, (&groups, &resources, &names), &mut found);
        }
    }
    let mut order = HashMap::new();
    for (at, verb) in wanted.iter().flat_map(|rule| &rule.verbs).enumerate() {
        order.entry(verb).or_insert(at);
    }
    Ok(found.into_missing(&order))
}

/// Positions of held rules, one bit each.
type Bits = Vec<u64>;

/// Words that the same held rules match.
type Class<'w> = (Bits, Vec<&'w String>);

fn classes(words: &[String], matching: impl Fn(&str) -> Bits) -> Vec<Class<'_>> {
    let mut found: Vec<Class<'_>> = Vec::new();
    let mut at: HashMap<Bits, usize> = HashMap::new();
    for word in words {
        let bits = matching(word);
        let here = *at.entry(bits.clone()).or_insert_with(|| {
            found.push((bits, Vec::new()));
            found.len() - 1
        });
        found[here].1.push(word);
    }
    found
}

/// Rights that are missing so far: verbs by rules of one thing each that have none yet.
#[derive(Default)]
struct Found {
    rules: BTreeMap<Rule, BTreeSet<String>>,
    n_verbs: usize,
    more: bool,
}

impl Found {
    /// False: there is no room for more.
    fn note(&mut self, thing: Rule, verbs: &[&String]) -> bool {
        let known = self.rules.entry(thing).or_default();
        for verb in verbs {
            if self.n_verbs == NAMED_MAX {
                self.more = true;
                return false;
            }
            self.n_verbs += usize::from(known.insert((*verb).clone()));
        }
        true
    }

    /// `order` is where each verb stands in what is wanted.
    fn into_missing(self, order: &HashMap<&String, usize>) -> Missing {
        let with_verbs = |(rule, verbs): (Rule, BTreeSet<String>)| {
            let mut verbs: Vec<String> = verbs.into_iter().collect();
            verbs.sort_by_key(|verb| order.get(verb));
            Rule { verbs, ..rule }
        };
        let mut rules: Vec<Rule> =
            self.rules.into_iter().filter(|(_, verbs)| !verbs.is_empty()).map(with_verbs).collect();
        rules.sort_by_cached_key(Rule::compact);
        Missing { rules, more: self.more }
    }
}

fn both(a: &Bits, b: &Bits) -> Bits {
    a.iter().zip(b).map(|(a, b)| a & b).collect()
}

fn is_empty(bits: &Bits) -> bool {
    bits.iter().all(|word| *word == 0)
}

fn one(word: &str) -> Vec<String> {
    vec![word.to_owned()]
}

fn lacking_paths(verb_set: &Bits, verbs: &[&String], paths: &[Class<'_>], found: &mut Found) {
    for (_, paths) in paths.iter().filter(|(set, _)| is_empty(&both(verb_set, set))) {
        for path in paths {
            if !found.note(Rule { non_resource_urls: one(path), ..Rule::default() }, verbs) {
                return;
            }
        }
    }
}

fn lacking_things(
    verb_set: &Bits,
    verbs: &[&String],
    (groups, resources, names): (&[Class<'_>], &[Class<'_>], &[Class<'_>]),
    found: &mut Found,
) {
    for (group_set, groups) in groups {
        let in_group = both(verb_set, group_set);
        for (resource_set, resources) in resources {
            let in_resource = both(&in_group, resource_set);
            for (_, names) in names.iter().filter(|(set, _)| is_empty(&both(&in_resource, set))) {
                let things = groups.iter().flat_map(|group| resources.iter().map(move |resource| (group, resource)));
                for (group, resource) in things {
                    let thing = Rule { api_groups: one(group), resources: one(resource), ..Rule::default() };
                    let noted = match names.as_slice() {
                        [] => found.note(thing, verbs),
                        names => names
                            .iter()
                            .all(|name| found.note(Rule { resource_names: one(name), ..thing.clone() }, verbs)),
                    };
                    if !noted {
                        return;
                    }
                }
            }
        }
    }
}

/// The held rules by the words they match.
struct Index {
    /// Words of 64 bits in a set of rules.
    width: usize,
    verbs: Words,
    groups: Words,
    resources: Words,
    names: Words,
    urls: Words,
    /// Rules for every name.
    unnamed: Bits,
    /// Beginnings of paths, from `/healthz/*`.
    beginnings: Vec<(String, usize)>,
}

/// Which rules have a word. `everything` have `*`, where that stands for all words.
struct Words {
    of: HashMap<String, Vec<usize>>,
    everything: Bits,
}

impl Words {
    fn matching(&self, word: &str) -> Bits {
        let mut bits = self.everything.clone();
        for at in self.of.get(word).into_iter().flatten() {
            set(&mut bits, *at);
        }
        bits
    }
}

fn set(bits: &mut Bits, at: usize) {
    bits[at / 64] |= 1 << (at % 64);
}

impl Index {
    fn of(held: &[Rule]) -> Index {
        let width = held.len().div_ceil(64).max(1);
        let words = |list: fn(&Rule) -> &[String], star: bool, absent: bool| {
            let mut words = Words { of: HashMap::new(), everything: vec![0; width] };
            for (at, rule) in held.iter().enumerate() {
                if absent && list(rule).is_empty() {
                    set(&mut words.everything, at);
                }
                for word in list(rule) {
                    if star && word == "*" {
                        set(&mut words.everything, at);
                    }
                    words.of.entry(word.clone()).or_default().push(at);
                }
            }
            words
        };
        let names = words(|rule| &rule.resource_names, false, true);
        let urls =
            held.iter().enumerate().flat_map(|(at, rule)| rule.non_resource_urls.iter().map(move |url| (at, url)));
        Index {
            width,
            verbs: words(|rule| &rule.verbs, true, false),
            groups: words(|rule| &rule.api_groups, true, false),
            resources: words(|rule| &rule.resources, true, false),
            unnamed: names.everything.clone(),
            names,
            urls: words(|rule| &rule.non_resource_urls, false, false),
            beginnings: urls.filter_map(|(at, url)| url.strip_suffix('*').map(|head| (head.to_owned(), at))).collect(),
        }
    }

    /// Rules for a resource: by its own name, or `*/sub` for a subresource.
    fn resources(&self, wanted: &str) -> Bits {
        let mut bits = self.resources.matching(wanted);
        if let Some((_, sub)) = wanted.split_once('/') {
            let others = self.resources.of.get(&format!("*/{sub}"));
            others.into_iter().flatten().for_each(|at| set(&mut bits, *at));
        }
        bits
    }

    fn paths(&self, wanted: &str) -> Bits {
        let mut bits = self.urls.matching(wanted);
        for (_, at) in self.beginnings.iter().filter(|(head, _)| wanted.starts_with(head.as_str())) {
            set(&mut bits, *at);
        }
        bits
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rule(value: Value) -> Rule {
        Rule::from_value(&value)
    }

    fn lacks(held: &[Rule], wanted: &[Rule]) -> Vec<String> {
        missing(held, wanted).unwrap().rules.iter().map(Rule::compact).collect()
    }

    fn pods(verbs: &[&str], names: &[&str]) -> Rule {
        rule(json!({"verbs": verbs, "apiGroups": [""], "resources": ["pods"], "resourceNames": names}))
    }

    #[test]
    fn what_is_missing_is_put_together_by_resource() {
        let held = [pods(&["get"], &[])];
        let wanted =
            [rule(json!({"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods", "secrets"]}))];
        let pods_missing = r#"{APIGroups:[""], Resources:["pods"], Verbs:["list" "watch"]}"#;
        let secrets = r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list" "watch"]}"#;
        assert_eq!(lacks(&held, &wanted), [pods_missing, secrets]);
        assert!(lacks(&[rule(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}))], &wanted).is_empty());
        assert_eq!(lacks(&[pods(&["get"], &["a"])], &held).len(), 1);
    }

    #[test]
    fn a_star_among_names_is_a_name() {
        let star = [pods(&["get"], &["*"])];
        assert_eq!(lacks(&star, &[pods(&["get"], &["a"])]).len(), 1);
        assert_eq!(lacks(&star, &[pods(&["get"], &[])]).len(), 1);
        assert!(lacks(&star, &star).is_empty());
        assert!(lacks(&[pods(&["get"], &[])], &star).is_empty());
    }

    #[test]
    fn two_rules_together_cover_what_neither_does_alone() {
        let held = [
            pods(&["get"], &["a"]),
            pods(&["list"], &[]),
            rule(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*/scale"]})),
        ];
        assert!(lacks(&held, &[pods(&["get", "list"], &["a"])]).is_empty());
        assert_eq!(
            lacks(&held, &[pods(&["get", "list"], &["a", "b"])]),
            [r#"{APIGroups:[""], Resources:["pods"], ResourceNames:["b"], Verbs:["get"]}"#]
        );
        assert!(
            lacks(&held, &[rule(json!({"verbs": ["get"], "apiGroups": ["apps"], "resources": ["deployments/scale"]}))])
                .is_empty()
        );
        assert_eq!(
            lacks(&held, &[rule(json!({"verbs": ["get"], "apiGroups": ["apps"], "resources": ["deployments"]}))]).len(),
            1
        );
        // Parts of two rules make no whole: this group from one, that verb from the other.
        let halves = [
            rule(json!({"verbs": ["get"], "apiGroups": ["a"], "resources": ["x"]})),
            rule(json!({"verbs": ["list"], "apiGroups": ["b"], "resources": ["x"]})),
        ];
        let crossed = [rule(json!({"verbs": ["get"], "apiGroups": ["b"], "resources": ["x"]}))];
        assert_eq!(lacks(&halves, &crossed).len(), 1);
    }

    #[test]
    fn paths_are_covered_by_their_beginnings() {
        let urls = |urls: &[&str]| rule(json!({"verbs": ["get"], "nonResourceURLs": urls}));
        assert!(
            lacks(&[urls(&["/healthz", "/healthz/*"])], &[urls(&["/healthz", "/healthz/etcd", "/healthz/*"])])
                .is_empty()
        );
        assert_eq!(lacks(&[urls(&["/healthz/*"])], &[urls(&["/healthz", "*"])]).len(), 2);
        assert!(lacks(&[urls(&["*"])], &[urls(&["/x", "*"])]).is_empty());
    }

    #[test]
    fn a_rule_of_millions_of_combinations_is_judged_at_once() {
        let many = |what: &str| (0..600).map(|n| format!("{what}{n}")).collect::<Vec<_>>();
        let huge = Rule {
            verbs: many("v"),
            api_groups: many("g"),
            resources: many("r"),
            resource_names: many("n"),
            ..Rule::default()
        };
        let told = missing(&[pods(&["get"], &[])], std::slice::from_ref(&huge)).unwrap();
        assert!(told.more && told.rules.iter().map(|rule| rule.verbs.len()).sum::<usize>() == NAMED_MAX);
        let all = rule(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        assert_eq!(missing(&[all], std::slice::from_ref(&huge)).unwrap(), Missing::default());
        // Each word in a rule of its own: as many classes as words, and no way to look at all of them.
        let held: Vec<Rule> = (0..600)
            .map(|n| Rule {
                verbs: vec![format!("v{n}")],
                api_groups: vec![format!("g{n}")],
                resources: vec![format!("r{n}")],
                ..Rule::default()
            })
            .collect();
        assert_eq!(missing(&held, &[huge]), Err(TooMany));
    }
}
