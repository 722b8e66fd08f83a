//! The plan: steps from the folder and the cluster. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::Config;
use super::files::{Found, Manifest, is_disabled};
use super::record::{AddOn, Held};

/// All that is known.
pub struct View<'a> {
    /// As told at start.
    pub config: &'a Config,
    /// Whether this server leads: what comes with the program, and what is disabled, is the leader's to look after.
    pub leads: bool,
    /// The folder.
    pub found: &'a Found,
    /// The cluster's AddOns by name.
    pub known: &'a BTreeMap<String, AddOn>,
    /// Checksums as this process judged the files last.
    pub seen: &'a BTreeMap<String, String>,
    /// Failed, not to be tried now.
    pub waiting: &'a BTreeSet<String>,
    /// Failed, to be tried now.
    pub due: &'a BTreeSet<String>,
}

/// One thing to do.
#[derive(Clone, Debug)]
pub enum Step {
    /// Bring what the file says into the cluster.
    Apply(Manifest),
    /// Take an add-on's objects out of the cluster, and its file away if one is named.
    Remove {
        /// The AddOn.
        name: String,
        /// Its file.
        file: Option<PathBuf>,
    },
    /// Another server's file of this name is in force.
    Differs {
        /// Ours.
        manifest: Manifest,
        /// Whose is in force.
        server: String,
    },
}

/// The steps to take: removals first, then the files to apply.
pub fn plan(view: &View<'_>) -> Vec<Step> {
    let mut steps = removals(view);
    for manifest in view.found.manifests.values() {
        if view.found.skipped.contains(&manifest.name)
            || disabled(view, manifest)
            || !view.leads && is_packaged(view, &manifest.name)
        {
            continue;
        }
        let judged = view.seen.get(&manifest.name);
        let unchanged = judged == Some(&manifest.checksum);
        // A new content is tried at once, a failed one when it is due.
        if unchanged && (view.waiting.contains(&manifest.name) || !view.due.contains(&manifest.name)) {
            continue;
        }
        steps.push(match view.known.get(&manifest.name) {
            // At the start what another server has applied stands; a change that is seen is a person's will.
            Some(addon)
                if judged.is_none() && addon.server != view.config.server && !is_packaged(view, &manifest.name) =>
            {
                if addon.checksum == manifest.checksum {
                    continue;
                }
                Step::Differs { manifest: manifest.clone(), server: addon.server.clone() }
            }
            _ => Step::Apply(manifest.clone()),
        });
    }
    steps
}

fn is_packaged(view: &View<'_>, name: &str) -> bool {
    view.config.packaged.iter().any(|packaged| packaged.name == name)
}

fn disabled(view: &View<'_>, manifest: &Manifest) -> bool {
    is_disabled(&view.config.disabled, &view.config.dir, &manifest.path)
}

fn removals(view: &View<'_>) -> Vec<Step> {
    let off =
        |manifest: &&Manifest| view.leads && disabled(view, manifest) && !view.found.skipped.contains(&manifest.name);
    let mut steps: Vec<Step> = view
        .found
        .manifests
        .values()
        .filter(off)
        .map(|manifest| Step::Remove { name: manifest.name.clone(), file: Some(manifest.path.clone()) })
        .collect();
    for (name, addon) in view.known {
        if view.found.manifests.contains_key(name)
            || view.found.skipped.contains(name)
            || view.waiting.contains(&format!("-{name}"))
        {
            continue;
        }
        // Gone from here: it was this server's, or it was seen to go.
        let named = view.config.disabled.contains(name)
            || is_disabled(&view.config.disabled, &view.config.dir, &PathBuf::from(&addon.source));
        if !view.leads && (named || is_packaged(view, name)) {
            continue;
        }
        if addon.server == view.config.server || view.seen.contains_key(name) || named {
            steps.push(Step::Remove { name: name.clone(), file: None });
        }
    }
    steps
}

/// Objects that other add-ons hold: they stay when this one lets go of them.
pub fn held_by_others(known: &BTreeMap<String, AddOn>, name: &str) -> BTreeSet<Held> {
    known.iter().filter(|(other, _)| *other != name).flat_map(|(_, addon)| addon.objects.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addons::Packaged;

    fn manifest(name: &str, checksum: &str) -> (String, Manifest) {
        let path = PathBuf::from(format!("/m/{name}.yaml"));
        (
            name.to_owned(),
            Manifest { name: name.to_owned(), path, text: Ok(String::new()), checksum: checksum.to_owned() },
        )
    }

    fn addon(name: &str, server: &str, checksum: &str) -> (String, AddOn) {
        let source = format!("/m/{name}.yaml");
        (
            name.to_owned(),
            AddOn {
                name: name.to_owned(),
                server: server.to_owned(),
                source,
                checksum: checksum.to_owned(),
                ..AddOn::default()
            },
        )
    }

    fn check(
        files: &[(String, Manifest)],
        known: &[(String, AddOn)],
        seen: &[(&str, &str)],
        disabled: &[&str],
    ) -> Vec<String> {
        check_as(true, files, known, seen, disabled)
    }

    fn check_as(
        leads: bool,
        files: &[(String, Manifest)],
        known: &[(String, AddOn)],
        seen: &[(&str, &str)],
        disabled: &[&str],
    ) -> Vec<String> {
        let config = Config {
            dir: "/m".into(),
            server: "s1".to_owned(),
            packaged: vec![Packaged { name: "coredns", text: String::new() }],
            disabled: disabled.iter().map(|name| (*name).to_owned()).collect(),
        };
        let found = Found { manifests: files.iter().cloned().collect(), skipped: ["skipped".to_owned()].into() };
        let known = known.iter().cloned().collect();
        let seen = seen.iter().map(|(name, sum)| ((*name).to_owned(), (*sum).to_owned())).collect();
        let (waiting, due) = (["waits".to_owned()].into(), ["due".to_owned()].into());
        let view =
            View { config: &config, leads, found: &found, known: &known, seen: &seen, waiting: &waiting, due: &due };
        let say = |step: Step| match step {
            Step::Apply(manifest) => format!("+{}", manifest.name),
            Step::Remove { name, file } => format!("-{name}{}", if file.is_some() { " and file" } else { "" }),
            Step::Differs { manifest, server } => format!("{} is {server}'s", manifest.name),
        };
        plan(&view).into_iter().map(say).collect()
    }

    #[test]
    fn files_are_applied_at_start_and_when_they_change() {
        let files = [
            manifest("new", "1"),
            manifest("same", "1"),
            manifest("changed", "2"),
            manifest("due", "1"),
            manifest("waits", "1"),
        ];
        let seen = [("same", "1"), ("changed", "1"), ("due", "1"), ("waits", "1")];
        assert_eq!(check(&files, &[], &seen, &[]), ["+changed", "+due", "+new"]);
        assert_eq!(check(&[manifest("skipped", "1")], &[addon("skipped", "s1", "0")], &[], &[]), [""; 0]);
    }

    #[test]
    fn a_server_that_does_not_lead_looks_after_its_own_files_alone() {
        let files = [manifest("coredns", "1"), manifest("mine", "1"), manifest("off", "1")];
        assert_eq!(check_as(false, &files, &[], &[], &["off"]), ["+mine"]);
        let known = [
            addon("coredns", "s1", "1"),
            addon("gone", "s1", "1"),
            addon("off", "s1", "1"),
            addon("foreign", "s2", "1"),
        ];
        assert_eq!(check_as(false, &[], &known, &[], &["off"]), ["-gone"]);
    }

    #[test]
    fn what_is_gone_or_disabled_is_taken_back() {
        let known =
            [addon("gone", "s1", "1"), addon("foreign", "s2", "1"), addon("seen", "s2", "1"), addon("off", "s2", "1")];
        assert_eq!(check(&[], &known, &[("seen", "1")], &["off"]), ["-gone", "-off", "-seen"]);
        assert_eq!(check(&[manifest("off", "1")], &[], &[], &["off"]), ["-off and file"]);
    }

    #[test]
    fn another_servers_file_stands_until_ours_is_changed_or_comes_with_a_newer_program() {
        let known = [addon("web", "s2", "1"), addon("coredns", "s2", "1")];
        let files = [manifest("web", "2"), manifest("coredns", "2")];
        assert_eq!(check(&files, &known, &[], &[]), ["+coredns", "web is s2's"]);
        assert_eq!(check(&files, &known, &[("web", "1"), ("coredns", "2")], &[]), ["+web"]);
        assert_eq!(check(&[manifest("web", "1")], &known, &[("coredns", "1")], &[]), ["-coredns"]);
    }

    #[test]
    fn a_file_that_is_skipped_is_neither_applied_nor_taken_back_nor_disabled() {
        let files = [manifest("skipped", "2")];
        let known = [addon("skipped", "s1", "1")];
        assert_eq!(check(&files, &known, &[], &["skipped"]), [""; 0]);
        assert_eq!(check(&[], &known, &[("skipped", "1")], &[]), [""; 0], "its file is gone, and the mark is there");
    }

    #[test]
    fn objects_of_other_add_ons_are_held_and_ones_own_are_not() {
        let held = |name: &str| Held { name: name.to_owned(), ..Held::default() };
        let known: BTreeMap<String, AddOn> = [("a", vec![held("x"), held("y")]), ("b", vec![held("y"), held("z")])]
            .map(|(name, objects)| (name.to_owned(), AddOn { objects, ..AddOn::default() }))
            .into();
        assert_eq!(held_by_others(&known, "a"), [held("y"), held("z")].into());
        assert_eq!(held_by_others(&known, "c").len(), 3);
    }
}
