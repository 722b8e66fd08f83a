//! Names that a certificate for a person may carry, and how long it may live.

use std::time::Duration;

use pki::identity::REGISTERED;

/// Of a name of a user or a group.
const NAME_BYTES_MAX: usize = 253;
const GROUPS_MAX: usize = 32;
/// CertificateSigningRequests take no shorter life.
const LIFE_MIN: Duration = Duration::from_secs(600);
/// The signers give no longer one.
const LIFE_MAX: Duration = Duration::from_secs(365 * 86_400);

/// A user and its groups, which are fit for a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) user: String,
    /// Without the one that all of them get.
    pub(super) groups: Vec<String>,
}

/// A life of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life(pub(super) Duration);

/// Why nobody gets such a certificate.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubjectError {
    #[error("--{flag}: a name must not be empty")]
    Empty { flag: &'static str },
    #[error("--{flag}: a name must not have more than {NAME_BYTES_MAX} bytes, and this one has {n_bytes}")]
    Long { flag: &'static str, n_bytes: usize },
    #[error("--{flag}: {name:?} must not have control characters, nor blanks at its ends")]
    Unprintable { flag: &'static str, name: String },
    #[error(
        "--{flag}: '{name}' begins with {prefix}, as names of the system's own parts do; give people names of their \
         own, and rights by a ClusterRoleBinding, such as: kubectl create clusterrolebinding NAME \
         --clusterrole=cluster-admin --user=NAME"
    )]
    System { flag: &'static str, name: String, prefix: &'static str },
    #[error("--group: more than {GROUPS_MAX} groups")]
    ManyGroups,
    #[error("--namespace: '{0}' is no name of a namespace")]
    Namespace(String),
}

impl Subject {
    /// Judges the names.
    pub(super) fn of(user: &str, groups: &[String]) -> Result<Subject, SubjectError> {
        check(Named { flag: "user", name: user })?;
        if groups.len() > GROUPS_MAX {
            return Err(SubjectError::ManyGroups);
        }
        groups.iter().try_for_each(|name| check(Named { flag: "group", name }))?;
        Ok(Subject { user: user.to_owned(), groups: groups.to_vec() })
    }

    /// The groups as they stand in the certificate.
    pub(super) fn organizations(&self) -> Vec<String> {
        self.groups.iter().cloned().chain([REGISTERED.to_owned()]).collect()
    }
}

/// A name, by the flag that gives it.
#[derive(Clone, Copy)]
struct Named<'a> {
    flag: &'static str,
    name: &'a str,
}

fn check(Named { flag, name }: Named<'_>) -> Result<(), SubjectError> {
    if name.is_empty() {
        return Err(SubjectError::Empty { flag });
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(SubjectError::Long { flag, n_bytes: name.len() });
    }
    if name.chars().any(char::is_control) || name.trim() != name {
        return Err(SubjectError::Unprintable { flag, name: name.to_owned() });
    }
    // In any spelling: what looks like the system's would be taken for it by a person.
    let prefix = ["system:", "kedge:"].into_iter().find(|prefix| name.to_lowercase().starts_with(prefix));
    match prefix {
        Some(prefix) => Err(SubjectError::System { flag, name: name.to_owned(), prefix }),
        None => Ok(()),
    }
}

/// A namespace's name is a DNS label.
pub(super) fn check_namespace(name: &str) -> Result<(), SubjectError> {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_label =
        (1..=63).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('-') && !name.ends_with('-');
    if is_label { Ok(()) } else { Err(SubjectError::Namespace(name.to_owned())) }
}

/// A life that cannot be; clap names the flag.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LifeFault {
    #[error("'{0}' is not a duration such as 12h or 30d")]
    Unread(String),
    #[error("want at least 10m: the signers give no shorter one")]
    Short,
    #[error("want at most 365d: the signers give no longer one")]
    Long,
}

/// `90m`, `12h`, `30d`.
pub(super) fn parse_life(text: &str) -> Result<Life, LifeFault> {
    let unread = || LifeFault::Unread(text.to_owned());
    let (mut secs, mut digits) = (0_u64, String::new());
    for c in text.chars() {
        let unit = match c {
            '0'..='9' => {
                digits.push(c);
                continue;
            }
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return Err(unread()),
        };
        if digits.is_empty() {
            return Err(unread());
        }
        // One with more digits than a number has is long, too.
        let n: u64 = digits.parse().unwrap_or(u64::MAX);
        digits.clear();
        secs = secs.saturating_add(n.saturating_mul(unit));
    }
    match Duration::from_secs(secs) {
        _ if !digits.is_empty() && digits.bytes().any(|b| b != b'0') => Err(unread()),
        _ if text.is_empty() => Err(unread()),
        life if life < LIFE_MIN => Err(LifeFault::Short),
        life if life > LIFE_MAX => Err(LifeFault::Long),
        life => Ok(Life(life)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_system_and_names_that_cannot_be_read_are_refused() {
        let long = "x".repeat(10_000);
        for (name, part) in [
            ("", "must not be empty"),
            (long.as_str(), "and this one has 10000"),
            ("a\nb", "must not have control characters"),
            ("a\0b", "must not have control characters"),
            ("a\u{85}b", "must not have control characters"),
            (" ann", "nor blanks at its ends"),
            ("system:masters", "begins with system:"),
            ("System:Masters", "begins with system:"),
            ("system:admin", "begins with system:"),
            ("kedge:registered", "begins with kedge:"),
        ] {
            let user = Subject::of(name, &[]).unwrap_err().to_string();
            assert!(user.starts_with("--user: ") && user.contains(part), "{user}");
            let group = Subject::of("ann", &["dev".to_owned(), name.to_owned()]).unwrap_err().to_string();
            assert!(group.starts_with("--group: ") && group.contains(part), "{group}");
        }
        assert_eq!(Subject::of("ann", &vec!["g".to_owned(); 33]), Err(SubjectError::ManyGroups));
        for name in ["ann", "ann@example.com", "https://idp#ann", "dev/ops", "Änne", "a,O=system:masters"] {
            assert_eq!(Subject::of(name, &[]).unwrap().organizations(), ["kedge:registered"]);
        }
    }

    #[test]
    fn a_comma_smuggles_no_group_into_a_certificate() {
        let subject = Subject::of("ann,O=system:masters", &["dev,O=system:masters".to_owned()]).unwrap();
        let spec = pki::leaf::LeafSpec {
            common_name: subject.user.clone(),
            organizations: subject.organizations(),
            sans: std::collections::BTreeSet::new(),
            usage: pki::leaf::Usage::Client,
        };
        let request = pki::csr::parse(&pki::csr::create(&spec).unwrap().1).unwrap();
        assert_eq!(request.common_name, "ann,O=system:masters");
        assert_eq!(request.organizations, ["dev,O=system:masters", "kedge:registered"]);
    }

    #[test]
    fn a_life_is_neither_nothing_nor_for_ever() {
        let secs = |text: &str| parse_life(text).map(|life| life.0.as_secs());
        assert_eq!((secs("10m"), secs("1h30m"), secs("365d")), (Ok(600), Ok(5400), Ok(31_536_000)));
        for text in ["0", "0s", "9m", "599s"] {
            assert_eq!(secs(text), Err(LifeFault::Short), "{text}");
        }
        for text in ["366d", "365000000000d", "99999999999999999999999999d"] {
            assert_eq!(secs(text), Err(LifeFault::Long), "{text}");
        }
        for text in ["", "-1h", "30", "d", "1000000000y", "1.5h", "forever"] {
            assert!(matches!(secs(text), Err(LifeFault::Unread(_))), "{text}");
        }
    }

    #[test]
    fn a_namespace_is_a_label() {
        assert!(check_namespace("team-a").is_ok());
        for name in ["", "-a", "a-", "A", "a/b", "a\nb", &"x".repeat(64)] {
            assert!(check_namespace(name).is_err(), "{name:?}");
        }
    }
}
