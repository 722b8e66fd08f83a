//! Kubernetes's libraries: expressions and answers as the tests of upstream v1.36's `apiserver/pkg/cel/library` have
//! them.

use super::tests::eval;

/// Every expression makes this value.
fn all_make(value: &str, expressions: &[&str]) {
    for text in expressions {
        assert_eq!(eval(text), value, "{text}");
    }
}

/// Every expression fails with this error.
fn all_fail(cases: &[(&str, &str)]) {
    for (text, why) in cases {
        assert_eq!(eval(text), format!("error: {why}"), "{text}");
    }
}

/// `ip_test.go`
#[test]
fn addresses_are_of_the_sorts_that_upstream_says() {
    all_make(
        "true",
        &[
            "isIP('192.168.0.1')",
            "ip.isCanonical('127.0.0.1')",
            "ip('0.0.0.0').isUnspecified()",
            "ip('127.0.0.1').isLoopback()",
            "ip('224.0.0.1').isLinkLocalMulticast()",
            "ip('169.254.169.254').isLinkLocalUnicast()",
            "ip('192.168.0.1').isGlobalUnicast()",
            "isIP('2001:db8::68')",
            "ip.isCanonical('2001:db8::68')",
            "ip('::').isUnspecified()",
            "ip('::1').isLoopback()",
            "ip('ff02::1').isLinkLocalMulticast()",
            "ip('fe80::1').isLinkLocalUnicast()",
            "ip('2001:db8::abcd').isGlobalUnicast()",
            "ip('192.168.0.1').family() == 4 && ip('2001:db8::68').family() == 6",
            "string(ip('192.168.0.1')) == '192.168.0.1'",
            "type(ip('192.168.0.1')) == net.IP",
        ],
    );
    all_make(
        "false",
        &[
            "isIP('192.168.0.1.0')",
            "ip('127.0.0.1').isUnspecified()",
            "ip('1.2.3.4').isLoopback()",
            "ip('224.0.1.1').isLinkLocalMulticast()",
            "ip('192.168.0.1').isLinkLocalUnicast()",
            "ip('255.255.255.255').isGlobalUnicast()",
            "isIP('2001:db8:::68')",
            "ip.isCanonical('2001:DB8::68')",
            "ip('::1').isUnspecified()",
            "ip('2001:db8::abcd').isLoopback()",
            "ip('fd00::1').isLinkLocalMulticast()",
            "ip('fd80::1').isLinkLocalUnicast()",
            "ip('ff00::1').isGlobalUnicast()",
        ],
    );
}

/// `ip_test.go`, `cidr_test.go`, and what Go's `netip` says of others.
#[test]
fn a_text_that_is_no_address_is_refused_in_gos_words() {
    for (text, why) in [
        ("192.168.0.1.0", "IPv4 address too long"),
        ("2001:db8:::68", "each colon-separated field must have at least one digit (at \":68\")"),
        ("", "unable to parse IP"),
        ("localhost", "unable to parse IP"),
        ("1.2.3", "IPv4 address too short"),
        ("01.2.3.4", "IPv4 field has octet with leading zero"),
        ("1.2.3.256", "IPv4 field has value >255"),
        ("1..2.3", "IPv4 field must have at least one digit (at \".2.3\")"),
        (".1.2.3", "IPv4 field must have at least one digit (at \".1.2.3\")"),
        ("1.2.3.", "IPv4 field must have at least one digit (at \".\")"),
        ("1.2.3.x", "unexpected character (at \"x\")"),
        ("%eth0", "missing IPv6 address"),
        ("fe80::1%", "zone must be a non-empty string"),
        ("12345::", "each group must have 4 or less digits (at \"12345::\")"),
        ("1:2:3", "address string too short"),
        ("1:2:3:4:5:6:7:8:9", "trailing garbage after address (at \"9\")"),
        ("1::2::3", "multiple :: in address (at \":3\")"),
        ("1:2:3:4:5:6:7::8", "the :: must expand to at least one field of zeros"),
        ("1:2:", "colon must be followed by more characters (at \":\")"),
        ("1:2x", "unexpected character, want colon (at \"x\")"),
        ("1:1.2.3.4", "embedded IPv4 address must replace the final 2 fields of the address (at \"1.2.3.4\")"),
        ("::1.2.3", "IPv4 address too short"),
    ] {
        let why = format!(
            "error: IP Address {text:?} parse error during conversion from string: ParseAddr({text:?}): \
            {why}"
        );
        assert_eq!(eval(&format!("ip('{text}')")), why);
        assert_eq!(eval(&format!("ip.isCanonical('{text}')")), why);
    }
    for (text, why) in [
        ("192.168.0.0/", "bad bits after slash: \"\""),
        ("2001:db8::/", "bad bits after slash: \"\""),
        ("10.0.0.0/08", "bad bits after slash: \"08\""),
        ("10.0.0.0/x", "bad bits after slash: \"x\""),
        ("10.0.0.0/33", "prefix length out of range"),
        ("10.0.0.0", "no '/'"),
        ("x/8", "ParseAddr(\"x\"): unable to parse IP"),
        ("fe80::1%eth0/64", "IPv6 zones cannot be present in a prefix"),
    ] {
        let at = "network address parse error during conversion from string";
        let why = format!("error: {at}: {at}: netip.ParsePrefix({text:?}): {why}");
        assert_eq!(eval(&format!("cidr('{text}')")), why);
    }
}

/// `cidr_test.go`
#[test]
fn networks_contain_addresses_and_networks() {
    all_make(
        "true",
        &[
            "cidr('192.168.0.0/24').containsIP(ip('192.168.0.1'))",
            "cidr('192.168.0.0/24').containsIP('192.168.0.1')",
            "cidr('192.168.0.0/24').containsCIDR(cidr('192.168.0.0/25'))",
            "cidr('192.168.0.0/24').containsCIDR(cidr('192.168.0.1/32'))",
            "cidr('192.168.0.0/24').containsCIDR('192.168.0.0/25')",
            "cidr('192.168.0.0/24').ip() == ip('192.168.0.0')",
            "cidr('192.168.0.0/24').masked() == cidr('192.168.0.0/24')",
            "cidr('192.168.0.1/24').masked() == cidr('192.168.0.0/24')",
            "cidr('192.168.0.0/24').prefixLength() == 24",
            "cidr('2001:db8::/32').containsIP(ip('2001:db8::1'))",
            "cidr('2001:db8::/32').containsIP('2001:db8::1')",
            "cidr('2001:db8::/32').containsCIDR(cidr('2001:db8::/33'))",
            "cidr('2001:db8::/32').containsCIDR('2001:db8::/33')",
            "cidr('2001:db8:1::/32').masked() == cidr('2001:db8::/32')",
            "string(cidr('192.168.0.0/24')) == '192.168.0.0/24'",
            "type(cidr('192.168.0.0/24')) == net.CIDR",
        ],
    );
    all_make(
        "false",
        &[
            "cidr('192.168.0.0/24').containsIP(ip('192.168.1.1'))",
            "cidr('192.168.0.0/24').containsIP('192.168.1.1')",
            "cidr('192.168.0.0/24').containsCIDR(cidr('192.168.0.0/23'))",
            "cidr('192.168.0.0/24').containsCIDR(cidr('192.169.0.1/32'))",
            "cidr('192.168.0.0/24').containsCIDR('192.168.0.0/23')",
            "cidr('2001:db8::/32').containsIP(ip('2001:dc8::1'))",
            "cidr('2001:db8::/32').containsCIDR(cidr('2001:db8::/31'))",
            "cidr('10.0.0.0/8').containsIP(ip('::1'))",
        ],
    );
}

/// `quantity_test.go`
#[test]
fn quantities_are_read_compared_and_added() {
    all_make(
        "true",
        &[
            "isQuantity('20') && isQuantity('20M') && isQuantity('20Mi')",
            "quantity('200M') == quantity('0.2G') && quantity('0.2G') == quantity('200M')",
            "quantity('2M') == quantity('0.002G') && quantity('2000k') == quantity('2M')",
            "quantity('50M').isLessThan(quantity('50Mi'))",
            "quantity('50Mi').isGreaterThan(quantity('50M'))",
            "quantity('200M').compareTo(quantity('0.2G')) == 0",
            "quantity('50M').compareTo(quantity('50Mi')) == -1",
            "quantity('50Mi').compareTo(quantity('50M')) == 1",
            "quantity('50k').add(quantity('20')) == quantity('50.02k')",
            "quantity('50k').sub(quantity('20')) == quantity('49.98k')",
            "quantity('50k').sub(20) == quantity('49980')",
            "quantity('50k').add(20).sub(quantity('100k')).asInteger() == -49980",
            "quantity('50k').add(20).sub(quantity('100k')).sub(-50000).asInteger() == 20",
            "quantity('50k').asInteger() == 50000",
            "quantity('50').isInteger()",
            "quantity('50.703k').asApproximateFloat() == 50703.0",
            "quantity('1u').asApproximateFloat() == 0.000001",
            "quantity('-2500m').asApproximateFloat() == -2.5",
        ],
    );
    all_make(
        "false",
        &[
            "isQuantity('20Mo')",
            "isQuantity('10Mm')",
            "quantity('200M') == quantity('0.3G')",
            "quantity('100M').isLessThan(quantity('50M'))",
            "quantity('50M').isGreaterThan(quantity('100M'))",
            "quantity('50k').add(20).isLessThan(quantity('50020'))",
            "quantity('9999999999999999999999999999999999999G').isInteger()",
            "quantity('50m').isInteger()",
        ],
    );
    all_fail(&[
        (
            "quantity('10Mo')",
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        ("quantity('10Mm')", "unable to parse quantity's suffix"),
        ("quantity('9999999999999999999999999999999999999G').asInteger()", "cannot convert value to integer"),
        ("quantity('50m').asInteger()", "cannot convert value to integer"),
    ]);
}

/// `semver_test.go`
#[test]
fn versions_are_read_and_compared() {
    all_make(
        "true",
        &[
            "isSemver('1.2.3-beta.1+build.1')",
            "isSemver('v1.0.0', true) && isSemver('01.01.01', true) && isSemver('1', true) && isSemver('1.1', true)",
            "semver('v01.01', true) == semver('1.1.0')",
            "semver('1.0.0').isLessThan(semver('1.2.3'))",
            "semver('1.2.3').isGreaterThan(semver('1.0.0'))",
            "semver('1.2.3').compareTo(semver('1.2.3')) == 0",
            "semver('1.0.0').compareTo(semver('1.2.3')) == -1",
            "semver('1.2.3').compareTo(semver('1.0.0')) == 1",
            "semver('1.2.3').major() == 1 && semver('1.2.3').minor() == 2 && semver('1.2.3').patch() == 3",
        ],
    );
    all_make(
        "false",
        &[
            "isSemver('') || isSemver('', true)",
            "isSemver('v1.0.0') || isSemver('1') || isSemver('1.1') || isSemver('01.01.01')",
            "isSemver(' 1.0.0') || isSemver('1. 0.0') || isSemver('1.0.0 ')",
            "isSemver(' 1.0.0', true) || isSemver('1. 0.0', true) || isSemver('1.0.0 ', true)",
            "semver('1.2.3') == semver('1.0.0')",
            "semver('1.0.0').isLessThan(semver('1.0.0')) || semver('1.0.0').isGreaterThan(semver('1.0.0'))",
        ],
    );
}

/// The order of semver.org, item 11.
#[test]
fn prereleases_have_the_order_of_the_specification() {
    let order = [
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0-rc.1",
        "1.0.0",
    ];
    for pair in order.windows(2) {
        let text = format!("semver('{}').isLessThan(semver('{}'))", pair[0], pair[1]);
        assert_eq!(eval(&text), "true", "{text}");
    }
}

/// `semver.Parse` of blang's semver v4, which upstream calls.
#[test]
fn a_text_that_is_no_version_is_refused_in_upstreams_words() {
    all_fail(&[
        ("semver('v1.0')", "No Major.Minor.Patch elements found"),
        ("semver('')", "Version string empty"),
        ("semver('v1.0.0')", "Invalid character(s) found in major number \"v1\""),
        ("semver('1.x.0')", "Invalid character(s) found in minor number \"x\""),
        ("semver('1.0.0 ')", "Invalid character(s) found in patch number \"0 \""),
        ("semver('01.0.0')", "Major number must not contain leading zeroes \"01\""),
        ("semver('1.00.0')", "Minor number must not contain leading zeroes \"00\""),
        ("semver('1.0.01')", "Patch number must not contain leading zeroes \"01\""),
        ("semver('1..0')", "strconv.ParseUint: parsing \"\": invalid syntax"),
        (
            "semver('1.0.99999999999999999999')",
            "strconv.ParseUint: parsing \"99999999999999999999\": value out of range",
        ),
        ("semver('1.0.0-')", "Prerelease is empty"),
        ("semver('1.0.0-a..b')", "Prerelease is empty"),
        ("semver('1.0.0-01')", "Numeric PreRelease version must not contain leading zeroes \"01\""),
        ("semver('1.0.0-a_b')", "Invalid character(s) found in prerelease \"a_b\""),
        ("semver('1.0.0+')", "Build meta data is empty"),
        ("semver('1.0.0+b_c')", "Invalid character(s) found in build meta data \"b_c\""),
        ("semver('1.0-rc', true)", "short version cannot contain PreRelease/Build meta data"),
        ("semver('1+b', true)", "short version cannot contain PreRelease/Build meta data"),
    ]);
}

/// `format_test.go`
#[test]
fn formats_take_what_upstream_takes() {
    for (format, text) in [
        ("dns1123Label", "my-label-name"),
        ("dns1123Subdomain", "apiextensions.k8s.io"),
        ("dns1035Label", "my-label-name"),
        ("qualifiedName", "apiextensions.k8s.io/v1beta1"),
        ("dns1123LabelPrefix", "my-label-prefix-"),
        ("dns1123SubdomainPrefix", "mysubdomain.prefix.-"),
        ("dns1035LabelPrefix", "my-label-prefix-"),
        ("labelValue", "my-cool-label-Value"),
        ("uri", "http://example.com"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000"),
        ("byte", "aGVsbG8="),
        ("date", "2021-01-01"),
        ("datetime", "2021-01-01T00:00:00Z"),
    ] {
        let named = format!("format.named('{format}').value()");
        let text = format!("!{named}.validate('{text}').hasValue() && {named} == format.{format}()");
        assert_eq!(eval(&text), "true", "{text}");
    }
    for (format, text, why) in [
        ("byte", "aGVsbG8", "invalid base64"),
        ("date", "2020-01-32", "invalid date"),
        ("datetime", "2020-01-32T00:00:00Z", "invalid datetime"),
        ("uuid", "x", "does not match the UUID format"),
    ] {
        let text = format!("format.{format}().validate('{text}').value()");
        assert_eq!(eval(&text), format!("[{why:?}]"), "{text}");
    }
    for format in [
        "dns1123Label",
        "dns1123Subdomain",
        "dns1035Label",
        "qualifiedName",
        "dns1123LabelPrefix",
        "dns1123SubdomainPrefix",
        "dns1035LabelPrefix",
        "labelValue",
    ] {
        let text = format!("format.{format}().validate('contains a space').value().size()");
        assert_eq!(eval(&text), "1", "{text}");
    }
    all_make("false", &["format.named('unknown').hasValue()", "format.date() == format.datetime()"]);
}
