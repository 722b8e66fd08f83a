//! Upstream's tables of label selectors.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::selectors;

fn round(text: &str) -> String {
    Selector::parse(text).map_or_else(|e| format!("error: {e}"), |s| s.to_string())
}

#[test]
fn query_syntax_reads_and_prints_canonically() {
    for (input, want) in [
        ("", ""),
        ("a=b", "a=b"),
        ("x in (b,a) , !y,z", "x in (a,b),!y,z"),
        ("b==c,a!=d", "a!=d,b==c"),
        (
            "a notin ()",
            "error: unable to parse requirement: values: Invalid value: []: for 'in', 'notin' operators, values set \
             can't be empty",
        ),
        ("a in (,x)", "a in (,x)"),
        ("a=", "a="),
        ("n>5", "n>5"),
        ("in in (in)", "in in (in)"),
    ] {
        assert_eq!(round(input), want, "{input}");
    }
}

#[test]
fn refusals_are_upstreams() {
    assert_eq!(round("a in x"), "error: unable to parse requirement: found 'x' expected: '('");
    assert_eq!(round("a=b c"), "error: found 'c', expected: ',' or 'end of string'");
    assert_eq!(round("a=b,"), "error: found '', expected: identifier after ','");
    assert_eq!(round("=a"), "error: found '=', expected: !, identifier, or 'end of string'");
    assert!(
        round("a_/b=c").starts_with("error: unable to parse requirement: <nil>: Invalid value: \"a_/b\": prefix part")
    );
}

#[test]
fn absence_meets_negative_requirements() {
    let labels = json!({"a": "1"});
    let labels = labels.as_object();
    for (text, want) in
        [("b!=1", true), ("b notin (1)", true), ("!b", true), ("a>0", true), ("a<1", false), ("b in (1)", false)]
    {
        assert_eq!(Selector::parse(text).unwrap().matches(labels), want, "{text}");
    }
}

#[test]
fn a_missing_label_selector_selects_nothing_and_an_empty_one_everything() {
    assert!(!Selector::from_json(None).unwrap().matches(None));
    assert!(!Selector::from_json(Some(&json!(null))).unwrap().matches(None));
    assert!(Selector::from_json(Some(&json!({}))).unwrap().matches(None));
    let s =
        json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["x", "y"]}]});
    assert_eq!(format_label_selector(Some(&s)), "a=b,c in (x,y)");
}

/// Spec: upstream's `TestSelectorParse` (apimachinery/pkg/labels/selector_test.go, 1.36): the good ones print as they
/// came, but for spaces.
#[test]
fn texts_that_upstream_takes_and_refuses() {
    for text in ["x=a,y=b,z=c", "", "x!=a,y=b", "x=", "x= ", "x=,z= ", "x= ,z= ", "!x", "x>1", "x>1,z<5"] {
        assert_eq!(round(text), text.replace(' ', ""), "{text:?}");
    }
    for (text, why) in [
        ("x=a||y=b", "values[0][x]: Invalid value: \"a||y\""),
        ("x==a==b", "found '==', expected: ',' or 'end of string'"),
        ("!x=a", "found '=', expected: ',' or 'end of string'"),
        ("x<a", "values[0]: Invalid value: \"a\": for 'Gt', 'Lt' operators, the value must be an integer"),
        ("x>1.1", "values[0]: Invalid value: \"1.1\": for 'Gt', 'Lt' operators, the value must be an integer"),
        ("x,,y", "found ',', expected: identifier after ','"),
        (",x,y", "found ',', expected: !, identifier, or 'end of string'"),
        ("x nott in (y)", "found 'nott', expected: in, notin, =, ==, !=, gt, lt"),
        ("x in (abc,def", "found '', expected: ',' or ')'"),
        ("x in (=)", "found '=', expected: ',', ')' or identifier"),
        ("x in (a,=)", "found '=', expected: ',', or identifier"),
        ("! =", "found '=', expected: identifier"),
        ("x=(", "found '(', expected: identifier"),
        ("x in ()", "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"),
    ] {
        let said = Selector::parse(text).expect_err(text).to_string();
        assert!(said.contains(why), "{text:?}: {said}");
    }
}

/// Spec: upstream's `TestSetSelectorParser`.
#[test]
fn sets_of_values_and_spaces_read_as_upstream_reads_them() {
    for (text, want) in [
        ("\rx", "x"),
        ("this-is-a-dns.domain.com/key-with-dash", "this-is-a-dns.domain.com/key-with-dash"),
        (
            "this-is-another-dns.domain.com/key-with-dash in (so,what)",
            "this-is-another-dns.domain.com/key-with-dash in (so,what)",
        ),
        ("0.1.2.domain/99 notin (10.10.100.1, tick.tack.clock)", "0.1.2.domain/99 notin (10.10.100.1,tick.tack.clock)"),
        ("foo  in\t (abc)", "foo in (abc)"),
        ("x notin\n (abc)", "x notin (abc)"),
        ("x  notin\t (abc,def)", "x notin (abc,def)"),
        ("x in (abc,)", "x in (,abc)"),
        ("x in (,)", "x in ()"),
        ("x notin (abc,,def),bar", "bar,x notin (,abc,def)"),
        ("x,y in (a)", "x,y in (a)"),
        ("x=a,y!=b,z in (h,i,j)", "x=a,y!=b,z in (h,i,j)"),
        ("z,x in (notin,in)", "x in (in,notin),z"),
    ] {
        assert_eq!(round(text), want, "{text:?}");
    }
}

/// Spec: upstream's `TestSelectorMatches` and `TestRequirementSelectorMatching`.
#[test]
fn selectors_pick_the_labels_that_upstream_picks() {
    let both = [("foo", "bar"), ("baz", "blah")];
    let cases: [(&str, &[(&str, &str)], bool); 32] = [
        ("", &[("x", "y")], true),
        ("x=y", &[("x", "y")], true),
        ("x=y,z=w", &[("x", "y"), ("z", "w")], true),
        ("x!=y,z!=w", &[("x", "z"), ("z", "a")], true),
        ("notin=in", &[("notin", "in")], true),
        ("x", &[("x", "z")], true),
        ("!x", &[("y", "z")], true),
        ("x>1", &[("x", "2")], true),
        ("x<1", &[("x", "0")], true),
        ("x=z", &[], false),
        ("x=y", &[("x", "z")], false),
        ("x=y,z=w", &[("x", "w"), ("z", "w")], false),
        ("x!=y,z!=w", &[("x", "z"), ("z", "w")], false),
        ("x", &[("y", "z")], false),
        ("!x", &[("x", "z")], false),
        ("x>1", &[("x", "0")], false),
        ("x<1", &[("x", "2")], false),
        ("x>1", &[("x", "1")], false),
        ("x>1", &[("x", "many")], false),
        ("x>1", &[], false),
        ("foo=bar", &both, true),
        ("baz=blah", &both, true),
        ("foo=bar,baz=blah", &both, true),
        ("foo=blah", &both, false),
        ("baz=bar", &both, false),
        ("foo=bar,foobar=bar,baz=blah", &both, false),
        ("foo in (bar,blah),baz notin (bar)", &both, true),
        ("foo in (blah)", &both, false),
        ("other notin (bar)", &both, true),
        ("baz notin (bar,blah)", &both, false),
        ("foo=", &[("foo", "")], true),
        ("foo=", &[], false),
    ];
    for (text, labels, want) in cases {
        let labels: BTreeMap<&str, &str> = labels.iter().copied().collect();
        let selector = Selector::parse(text).unwrap();
        assert_eq!(selector.matches_with(&|key| labels.get(key).copied()), want, "{text} of {labels:?}");
    }
}

/// Spec: upstream's `TestRequirementConstructor`.
#[test]
fn requirements_that_can_be_made_and_why_others_cannot() {
    let long = "a".repeat(254);
    let qualified = "must consist of alphanumeric characters";
    let cases: [(&str, Operator, &[&str], Option<&str>); 20] = [
        ("x1", Operator::In, &[], Some("values: Invalid value: []: for 'in', 'notin' operators, values set can't")),
        ("x2", Operator::NotIn, &[], Some("values: Invalid value: []: for 'in', 'notin' operators, values set can't")),
        ("x3", Operator::In, &["foo"], None),
        ("x4", Operator::NotIn, &["foo"], None),
        ("x5", Operator::Equals, &["bar", "foo"], Some("values: Invalid value: [\"bar\",\"foo\"]: exact-match")),
        ("x6", Operator::Exists, &[], None),
        ("x7", Operator::DoesNotExist, &[], None),
        ("x8", Operator::Exists, &["foo"], Some("values: Invalid value: [\"foo\"]: values set must be empty")),
        ("x9", Operator::In, &["bar"], None),
        ("x10", Operator::In, &[""], None),
        ("x11", Operator::GreaterThan, &["1"], None),
        ("x12", Operator::LessThan, &["6"], None),
        ("x13", Operator::GreaterThan, &[], Some("values: Invalid value: []: for 'Gt', 'Lt' operators, exactly one")),
        ("x14", Operator::GreaterThan, &["bar"], Some("values[0]: Invalid value: \"bar\": for 'Gt', 'Lt' operators")),
        ("x15", Operator::LessThan, &["bar"], Some("values[0]: Invalid value: \"bar\": for 'Gt', 'Lt' operators")),
        (&long, Operator::Exists, &[], Some("key: Invalid value: \"aaa")),
        ("x16", Operator::Equals, &[&long], Some("values[0][x16]: Invalid value: \"aaa")),
        ("x17", Operator::Equals, &["a b"], Some("values[0][x17]: Invalid value: \"a b\"")),
        ("x 18", Operator::Exists, &[], Some(qualified)),
        ("x19", Operator::NotEquals, &[], Some("exact-match compatibility requires one single value")),
    ];
    for (key, operator, values, want) in cases {
        let made = Requirement::checked(key, operator, values.iter().map(|v| (*v).to_owned()).collect());
        match (made, want) {
            (Ok(made), None) => assert_eq!((made.key.as_str(), made.operator), (key, operator)),
            (Err(err), Some(want)) => assert!(err.to_string().contains(want), "{key}: {err}"),
            (made, want) => panic!("{key}: {made:?}, want {want:?}"),
        }
    }
}

/// Spec: upstream's `TestLabelSelectorAsSelector` (apimachinery/pkg/apis/meta/v1/helpers_test.go). The two readings of
/// a typed selector, made into requirements and asked in place, say the same.
#[test]
fn a_label_selector_reads_as_upstream_reads_it() {
    let one = json!({"foo": "bar"});
    let expression = |operator: &str, values: &[&str]| json!([{"key": "baz", "operator": operator, "values": values}]);
    let error = |value: &str| Err(value.to_owned());
    let no_values = "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty";
    let cases = [
        (json!({}), Ok("")),
        (json!({"matchLabels": one}), Ok("foo=bar")),
        (json!({"matchExpressions": expression("In", &["qux", "norf"])}), Ok("baz in (norf,qux)")),
        (json!({"matchExpressions": expression("In", &["norf"])}), Ok("baz in (norf)")),
        (json!({"matchExpressions": expression("NotIn", &["norf"])}), Ok("baz notin (norf)")),
        (json!({"matchExpressions": expression("Exists", &[])}), Ok("baz")),
        (json!({"matchExpressions": expression("DoesNotExist", &[])}), Ok("!baz")),
        (
            json!({"matchLabels": one, "matchExpressions": expression("In", &["norf", "qux"])}),
            Ok("baz in (norf,qux),foo=bar"),
        ),
        (json!({"matchExpressions": expression("In", &[])}), error(no_values)),
        (json!({"matchExpressions": expression("NotIn", &[])}), error(no_values)),
        (
            json!({"matchExpressions": expression("Exists", &["a"])}),
            error("values: Invalid value: [\"a\"]: values set must be empty for exists and does not exist"),
        ),
        (json!({"matchExpressions": expression("Gt", &["1"])}), error("\"Gt\" is not a valid label selector operator")),
        (json!({"matchExpressions": expression("", &[])}), error("\"\" is not a valid label selector operator")),
    ];
    let sets = [vec![], vec![("foo", "bar")], vec![("baz", "norf")], vec![("foo", "bar"), ("baz", "qux")]];
    for (selector, want) in cases {
        let read = Selector::from_json(Some(&selector));
        let text = read.as_ref().map(Selector::to_string).map_err(SelectorError::to_string);
        assert_eq!(text, want.map(str::to_owned), "{selector}");
        let typed: LabelSelector = serde_json::from_value(selector.clone()).unwrap();
        for labels in &sets {
            let labels: BTreeMap<String, String> =
                labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let picked = read.as_ref().is_ok_and(|read| read.matches_with(&|key| labels.get(key).map(String::as_str)));
            assert_eq!(selectors::selects(&typed, Some(&labels)), picked, "{selector} of {labels:?}");
        }
    }
    assert!(Selector::from_json(Some(&json!({"matchLabels": 1}))).is_err());
}

/// Spec: upstream's `FormatLabelSelector`, with which kubectl prints.
#[test]
fn selectors_print_as_kubectl_shows_them() {
    for (selector, want) in [
        (json!(null), "<none>"),
        (json!({}), "<none>"),
        (json!({"matchLabels": {"b": "2", "a": "1"}}), "a=1,b=2"),
        (json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["x"]}]}), "a in (x)"),
        (json!({"matchExpressions": [{"key": "a", "operator": "Like"}]}), "<error>"),
    ] {
        assert_eq!(format_label_selector(Some(&selector)), want, "{selector}");
    }
}
