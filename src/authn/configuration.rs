//! AuthenticationConfiguration: issuers of tokens with their rules, and whom nobody vouches for.

use std::collections::BTreeSet;

use cel::Program;
use cel::types::{BOOL, Object, TEXT, Ty};
use registry::strict::{UnknownField, known};
use schema::read;
use schema::validate::error::FieldError;
use serde_json::Value;

use super::jwt::{Mapping, Rule, Settings};
use super::oidc::ALGORITHMS;

/// The versions of the file that are read.
const VERSIONS: [&str; 3] =
    ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];
const ISSUERS_MAX: usize = 64;

/// Paths that are open to a request without credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Anonymous {
    /// Those that are open to everybody: health.
    #[default]
    Health,
    /// All that the authorizer allows.
    Any,
    /// Nothing.
    Nothing,
    /// These, as far as the authorizer allows.
    Paths(Vec<String>),
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// It is no YAML. The parser's text has its causes in it, so they are no source.
    #[error("{0}")]
    Syntax(Box<serde_saphyr::Error>),
    /// It is something else.
    #[error("no kind {kind:?} is registered for version {version:?}")]
    Kind { kind: String, version: String },
    /// It has a field that nobody reads.
    #[error(transparent)]
    Unknown(#[from] UnknownField),
    /// A field of it is wrong.
    #[error(transparent)]
    Field(#[from] FieldError),
}

impl From<serde_saphyr::Error> for ConfigurationError {
    fn from(err: serde_saphyr::Error) -> ConfigurationError {
        ConfigurationError::Syntax(Box::new(err))
    }
}

/// A file, read.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// Issuers, in order.
    pub issuers: Vec<Settings>,
    /// `anonymous`; `None` if the file does not say.
    pub anonymous: Option<Anonymous>,
}

impl Configuration {
    /// Reads the file's text.
    ///
    /// Errors: upstream's text, with the path of what is wrong.
    pub fn parse(text: &str) -> Result<Configuration, ConfigurationError> {
        let value: Value = serde_saphyr::from_str(text)?;
        let (version, kind) = (read::text(&value, "apiVersion"), read::text(&value, "kind"));
        if kind != "AuthenticationConfiguration" || !VERSIONS.contains(&version) {
            return Err(ConfigurationError::Kind { kind: kind.to_owned(), version: version.to_owned() });
        }
        known(&value, "", &["apiVersion", "kind", "jwt", "anonymous"])?;
        let all = read::list(&value, "jwt");
        if all.len() > ISSUERS_MAX {
            return Err(FieldError::too_many("jwt", all.len(), ISSUERS_MAX).into());
        }
        let (mut issuers, mut urls) = (Vec::new(), BTreeSet::new());
        for (idx, one) in all.iter().enumerate() {
            let issuer = issuer(one, &format!("jwt[{idx}]"))?;
            if !urls.insert(issuer.issuer_url.clone()) {
                return Err(FieldError::duplicate(format!("jwt[{idx}].issuer.url"), issuer.issuer_url).into());
            }
            issuers.push(issuer);
        }
        let anonymous = value.get("anonymous").filter(|a| a.is_object()).map(anonymous).transpose()?;
        Ok(Configuration { issuers, anonymous })
    }
}

fn anonymous(value: &Value) -> Result<Anonymous, ConfigurationError> {
    known(value, "anonymous", &["enabled", "conditions"])?;
    let paths: Vec<String> = read::list(value, "conditions").iter().map(|c| read::text(c, "path").to_owned()).collect();
    match (value["enabled"].as_bool().unwrap_or(false), paths.is_empty()) {
        (false, false) => {
            let why = "enabled should be set to true when conditions are defined";
            // As upstream, which shows no value here.
            Err(FieldError { bad_value: None, ..FieldError::invalid("anonymous.conditions", "", why) }.into())
        }
        (false, true) => Ok(Anonymous::Nothing),
        (true, true) => Ok(Anonymous::Any),
        (true, false) => Ok(Anonymous::Paths(paths)),
    }
}

fn issuer(one: &Value, path: &str) -> Result<Settings, ConfigurationError> {
    known(one, path, &["issuer", "claimValidationRules", "claimMappings", "userValidationRules"])?;
    let (of, at) = (&one["issuer"], format!("{path}.issuer"));
    known(
        of,
        &at,
        &["url", "discoveryURL", "certificateAuthority", "audiences", "audienceMatchPolicy", "egressSelectorType"],
    )?;
    let url = https(read::text(of, "url"), &format!("{at}.url"))?;
    let discovery_url = match read::some_text(of, "discoveryURL") {
        None | Some("") => None,
        Some(text) if text.trim_end_matches('/') == url.trim_end_matches('/') => {
            return Err(FieldError::invalid(
                format!("{at}.discoveryURL"),
                text,
                "discoveryURL must be different from URL",
            )
            .into());
        }
        Some(text) => Some(https(text, &format!("{at}.discoveryURL"))?),
    };
    if !read::text(of, "egressSelectorType").is_empty() {
        return Err(FieldError::forbidden(format!("{at}.egressSelectorType"), "kedge has no egress selectors").into());
    }
    let audiences = audiences(of, &at)?;
    let rules = one["claimValidationRules"].as_array().into_iter().flatten().enumerate();
    let rules = rules
        .map(|(idx, rule)| claim_rule(rule, &format!("{path}.claimValidationRules[{idx}]")))
        .collect::<Result<Vec<_>, _>>()?;
    let (mappings, at) = (&one["claimMappings"], format!("{path}.claimMappings"));
    known(mappings, &at, &["username", "groups", "uid", "extra"])?;
    let username = mapping(&mappings["username"], &format!("{at}.username"), Kind::Name)?;
    if matches!(username, Mapping::None) {
        return Err(FieldError::required(format!("{at}.username"), "claim or expression is required").into());
    }
    let extra = extra(mappings, &at)?;
    verified_email(&username, &extra, &rules, &at)?;
    Ok(Settings {
        issuer_url: url,
        discovery_url,
        ca_pem: read::text(of, "certificateAuthority").to_owned(),
        audiences,
        signing_algs: ALGORITHMS.map(str::to_owned).to_vec(),
        rules,
        username,
        groups: mapping(&mappings["groups"], &format!("{at}.groups"), Kind::List)?,
        uid: mapping(&mappings["uid"], &format!("{at}.uid"), Kind::Id)?,
        extra,
        user_rules: user_rules(one, path)?,
    })
}

fn audiences(of: &Value, at: &str) -> Result<Vec<String>, ConfigurationError> {
    let audiences: Vec<String> = read::texts(of, "audiences").into_iter().map(str::to_owned).collect();
    if audiences.is_empty() {
        return Err(FieldError::required(
            format!("{at}.audiences"),
            "at least one jwt[*].issuer.audiences is required",
        )
        .into());
    }
    match (read::text(of, "audienceMatchPolicy"), audiences.len()) {
        ("MatchAny", _) | ("", 1) => {}
        (other, n) if n > 1 => {
            return Err(FieldError::invalid(
                format!("{at}.audienceMatchPolicy"),
                other,
                "audienceMatchPolicy must be MatchAny for multiple audiences",
            )
            .into());
        }
        (other, _) => {
            return Err(FieldError::invalid(
                format!("{at}.audienceMatchPolicy"),
                other,
                "audienceMatchPolicy must be empty or MatchAny for single audience",
            )
            .into());
        }
    }
    Ok(audiences)
}

fn https(text: &str, path: &str) -> Result<String, ConfigurationError> {
    if text.is_empty() {
        return Err(FieldError::required(path, "URL is required").into());
    }
    if !text.starts_with("https://") {
        return Err(FieldError::invalid(path, text, "URL scheme must be https").into());
    }
    for (mark, what) in [
        ('@', "URL must not contain a username or password"),
        ('?', "URL must not contain a query"),
        ('#', "URL must not contain a fragment"),
    ] {
        if text.contains(mark) {
            return Err(FieldError::invalid(path, text, what).into());
        }
    }
    Ok(text.to_owned())
}

fn compile(text: &str, name: &str, of: Ty, path: &str) -> Result<Program, ConfigurationError> {
    Program::compile(text, &[(name.to_owned(), of)])
        .map_err(|why| FieldError::invalid(path, text, format!("compilation failed: {why}")).into())
}

fn claims() -> Ty {
    Ty::Map(Box::new(TEXT), Box::new(Ty::Dyn))
}

fn user() -> Ty {
    let texts = || Ty::List(Box::new(TEXT));
    let extra = Ty::Map(Box::new(TEXT), Box::new(texts()));
    let fields = [("username", TEXT), ("uid", TEXT), ("groups", texts()), ("extra", extra)];
    let fields = fields.into_iter().map(|(name, ty)| (name.to_owned(), ty)).collect();
    Ty::Object(std::sync::Arc::new(Object { name: "kubernetes.UserInfo".to_owned(), fields }))
}

fn bool_of(text: &str, name: &str, of: Ty, path: &str) -> Result<Program, ConfigurationError> {
    let program = compile(text, name, of, path)?;
    if program.makes(&BOOL) {
        Ok(program)
    } else {
        Err(FieldError::invalid(path, text, "must evaluate to bool").into())
    }
}

fn claim_rule(rule: &Value, path: &str) -> Result<Rule, ConfigurationError> {
    known(rule, path, &["claim", "requiredValue", "expression", "message"])?;
    let (claim, expression) = (read::text(rule, "claim"), read::text(rule, "expression"));
    let (value, message) = (read::text(rule, "requiredValue"), read::text(rule, "message"));
    match (claim.is_empty(), expression.is_empty()) {
        (false, false) => Err(FieldError::invalid(path, claim, "claim and expression can't both be set").into()),
        (true, true) => Err(FieldError::required(path, "claim or expression is required").into()),
        (false, true) if !message.is_empty() => {
            Err(FieldError::invalid(format!("{path}.message"), message, "message can't be set when claim is set")
                .into())
        }
        (false, true) => Ok(Rule::Value(claim.to_owned(), value.to_owned())),
        (true, false) if !value.is_empty() => Err(FieldError::invalid(
            format!("{path}.requiredValue"),
            value,
            "requiredValue can't be set when expression is set",
        )
        .into()),
        (true, false) => Ok(Rule::Expression(
            bool_of(expression, "claims", claims(), &format!("{path}.expression"))?,
            message.to_owned(),
        )),
    }
}

fn user_rules(one: &Value, path: &str) -> Result<Vec<(Program, String)>, ConfigurationError> {
    let rule = |(idx, rule): (usize, &Value)| {
        let path = format!("{path}.userValidationRules[{idx}]");
        known(rule, &path, &["expression", "message"])?;
        let text = read::text(rule, "expression");
        if text.is_empty() {
            return Err(FieldError::required(format!("{path}.expression"), "expression is required").into());
        }
        Ok((bool_of(text, "user", user(), &format!("{path}.expression"))?, read::text(rule, "message").to_owned()))
    };
    read::list(one, "userValidationRules").iter().enumerate().map(rule).collect()
}

/// Target of a mapping, and whether a prefix goes before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Name,
    List,
    Id,
}

fn mapping(of: &Value, path: &str, kind: Kind) -> Result<Mapping, ConfigurationError> {
    let fields: &[&str] = if kind == Kind::Id { &["claim", "expression"] } else { &["claim", "prefix", "expression"] };
    known(of, path, fields)?;
    let (claim, expression, prefix) =
        (read::text(of, "claim"), read::text(of, "expression"), of.get("prefix").and_then(Value::as_str));
    match (claim.is_empty(), expression.is_empty()) {
        (false, false) => Err(FieldError::invalid(path, "", "claim and expression can't both be set").into()),
        (true, true) => Ok(Mapping::None),
        (true, false) => {
            if prefix.is_some() {
                return Err(FieldError::invalid(
                    format!("{path}.prefix"),
                    prefix.unwrap_or_default(),
                    "prefix can't be set when expression is set",
                )
                .into());
            }
            let program = compile(expression, "claims", claims(), &format!("{path}.expression"))?;
            // What a claim holds is known when it is there.
            let list =
                kind == Kind::List && matches!(&program.result, Ty::List(item) if matches!(**item, TEXT | Ty::Dyn));
            if matches!(program.result, TEXT | Ty::Dyn) || list {
                return Ok(Mapping::Expression(program));
            }
            let wanted = if kind == Kind::List {
                "must evaluate to a string or a list of strings"
            } else {
                "must evaluate to string"
            };
            Err(FieldError::invalid(format!("{path}.expression"), expression, wanted).into())
        }
        (false, true) if kind != Kind::Id && prefix.is_none() => Err(FieldError::required(
            format!("{path}.prefix"),
            "prefix is required when claim is set. It can be set to an empty string to disable prefixing",
        )
        .into()),
        (false, true) => Ok(Mapping::Claim(claim.to_owned(), prefix.unwrap_or_default().to_owned())),
    }
}

fn extra(mappings: &Value, path: &str) -> Result<Vec<(String, Program)>, ConfigurationError> {
    let mut seen = BTreeSet::new();
    let mut out = Vec::new();
    for (idx, one) in read::list(mappings, "extra").iter().enumerate() {
        let path = format!("{path}.extra[{idx}]");
        known(one, &path, &["key", "valueExpression"])?;
        let (key, text) = (read::text(one, "key"), read::text(one, "valueExpression"));
        if !key.contains('/') {
            return Err(FieldError::invalid(
                format!("{path}.key"),
                key,
                "must be a domain-prefixed path (such as \"acme.io/foo\")",
            )
            .into());
        }
        if key != key.to_lowercase() {
            return Err(FieldError::invalid(format!("{path}.key"), key, "key must be lowercase").into());
        }
        if !seen.insert(key) {
            return Err(FieldError::duplicate(format!("{path}.key"), key).into());
        }
        if text.is_empty() {
            return Err(FieldError::required(format!("{path}.valueExpression"), "valueExpression is required").into());
        }
        out.push((key.to_owned(), compile(text, "claims", claims(), &format!("{path}.valueExpression"))?));
    }
    Ok(out)
}

/// A configuration that names users by their e-mail must look at whether it was verified.
fn verified_email(
    username: &Mapping,
    extra: &[(String, Program)],
    rules: &[Rule],
    path: &str,
) -> Result<(), ConfigurationError> {
    let Mapping::Expression(name) = username else { return Ok(()) };
    let verified = |p: &Program| p.text.contains("claims.email_verified") || p.text.contains("claims.?email_verified");
    let looked = verified(name)
        || extra.iter().any(|(_, p)| verified(p))
        || rules.iter().any(|r| if let Rule::Expression(p, _) = r { verified(p) } else { false });
    if !name.text.contains("claims.email") || looked {
        return Ok(());
    }
    let why = "claims.email_verified must be used in claimMappings.username.expression or \
               claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used \
               in claimMappings.username.expression";
    Err(FieldError::invalid(format!("{path}.username.expression"), name.text.as_str(), why).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(rest: &str) -> Result<Configuration, String> {
        let text = format!("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n{rest}");
        Configuration::parse(&text).map_err(|err| err.to_string())
    }

    const ISSUER: &str = "jwt:\n- issuer: {url: 'https://i', audiences: [c]}\n";

    #[test]
    fn a_file_is_read_or_refused_with_the_place_that_is_wrong() {
        let good = format!(
            "{ISSUER}  claimMappings:\n    username: {{expression: \"'x:' + claims.sub\"}}\n    groups: {{claim: \
             groups, prefix: ''}}\n    extra: [{{key: a.b/c, valueExpression: claims.tid}}]\n  claimValidationRules: \
             [{{expression: \"claims.exp - claims.nbf <= 86400\", message: long}}]\n  userValidationRules: \
             [{{expression: \"!user.username.startsWith('system:')\"}}]\n\
             anonymous: {{enabled: true, conditions: [{{path: /livez}}]}}\n"
        );
        let read = parse(&good).unwrap();
        assert_eq!((read.issuers.len(), read.anonymous), (1, Some(Anonymous::Paths(vec!["/livez".into()]))));
        let why = |rest: &str| parse(&format!("{ISSUER}{rest}")).unwrap_err();
        assert!(
            why("  claimMappings: {username: {claim: sub}}")
                .starts_with("jwt[0].claimMappings.username.prefix: Required value")
        );
        assert!(
            why("  claimMappings: {username: {expression: claims.email}}")
                .contains("claims.email_verified must be used")
        );
        assert!(
            why("  claimMappings: {username: {expression: 'nothing.x'}}").contains("undeclared reference to 'nothing'")
        );
        assert!(why("  claimMapping: {}").contains("unknown field \"jwt[0].claimMapping\""));
        assert!(parse("jwt: [{issuer: {url: 'http://i'}}]").unwrap_err().contains("URL scheme must be https"));
    }

    /// The cases of upstream's pkg/apis/apiserver/validation/validation_test.go that a file can have (v1.36).
    #[test]
    fn each_rule_of_an_issuer_has_upstreams_text() {
        let issuer = |fields: &str| format!("jwt:\n- issuer: {{{fields}}}\n");
        for (text, wanted) in [
            (issuer("audiences: [c]"), "jwt[0].issuer.url: Required value: URL is required"),
            (
                issuer("url: 'https://u@i', audiences: [c]"),
                "jwt[0].issuer.url: Invalid value: \"https://u@i\": URL must not contain a username or password",
            ),
            (
                issuer("url: 'https://i?q', audiences: [c]"),
                "jwt[0].issuer.url: Invalid value: \"https://i?q\": URL must not contain a query",
            ),
            (
                issuer("url: 'https://i', discoveryURL: 'https://i/', audiences: [c]"),
                "jwt[0].issuer.discoveryURL: Invalid value: \"https://i/\": discoveryURL must be different from URL",
            ),
            (
                issuer("url: 'https://i', egressSelectorType: cluster, audiences: [c]"),
                "jwt[0].issuer.egressSelectorType: Forbidden: kedge has no egress selectors",
            ),
            (
                issuer("url: 'https://i'"),
                "jwt[0].issuer.audiences: Required value: at least one jwt[*].issuer.audiences is required",
            ),
            (
                issuer("url: 'https://i', audiences: [c, d]"),
                "jwt[0].issuer.audienceMatchPolicy: Invalid value: \"\": audienceMatchPolicy must be MatchAny for \
                 multiple audiences",
            ),
        ] {
            assert_eq!(parse(&text).unwrap_err(), wanted, "{text}");
        }
    }

    #[test]
    fn each_rule_of_claims_and_users_has_upstreams_text() {
        let claims = |fields: &str| {
            format!("{ISSUER}  claimMappings:\n    username: {{claim: sub, prefix: ''}}\n    {fields}\n")
        };
        let rules = |fields: &str| {
            let names = "  claimMappings: {username: {claim: sub, prefix: ''}}\n";
            format!("{ISSUER}{names}  {fields}\n")
        };
        for (text, wanted) in [
            (ISSUER.to_owned(), "jwt[0].claimMappings.username: Required value: claim or expression is required"),
            (
                claims("groups: {claim: g, prefix: '', expression: x}"),
                "jwt[0].claimMappings.groups: Invalid value: \"\": claim and expression can't both be set",
            ),
            (
                claims("extra: [{key: plain, valueExpression: claims.x}]"),
                "jwt[0].claimMappings.extra[0].key: Invalid value: \"plain\": must be a domain-prefixed path (such as \
                 \"acme.io/foo\")",
            ),
            (
                claims("extra: [{key: a.io/X, valueExpression: claims.x}]"),
                "jwt[0].claimMappings.extra[0].key: Invalid value: \"a.io/X\": key must be lowercase",
            ),
            (
                claims("extra: [{key: a.io/x}]"),
                "jwt[0].claimMappings.extra[0].valueExpression: Required value: valueExpression is required",
            ),
            (
                rules("claimValidationRules: [{claim: a, expression: b}]"),
                "jwt[0].claimValidationRules[0]: Invalid value: \"a\": claim and expression can't both be set",
            ),
            (
                rules("claimValidationRules: [{}]"),
                "jwt[0].claimValidationRules[0]: Required value: claim or expression is required",
            ),
            (
                rules("claimValidationRules: [{claim: a, message: m}]"),
                "jwt[0].claimValidationRules[0].message: Invalid value: \"m\": message can't be set when claim is set",
            ),
            (
                rules("userValidationRules: [{message: m}]"),
                "jwt[0].userValidationRules[0].expression: Required value: expression is required",
            ),
            (
                rules("userValidationRules: [{expression: user.username}]"),
                "jwt[0].userValidationRules[0].expression: Invalid value: \"user.username\": must evaluate to bool",
            ),
        ] {
            assert_eq!(parse(&text).unwrap_err(), wanted, "{text}");
        }
    }

    #[test]
    fn anybody_may_be_anonymous_nobody_or_as_flags_say() {
        assert!(parse("anonymous: {enabled: false, conditions: [{path: /a}]}").unwrap_err().contains("should be set"));
        assert_eq!(parse("anonymous: {enabled: true}").unwrap().anonymous, Some(Anonymous::Any));
        assert_eq!(parse("anonymous: {enabled: false}").unwrap().anonymous, Some(Anonymous::Nothing));
        assert_eq!(parse("").unwrap().anonymous, None);
    }
}
