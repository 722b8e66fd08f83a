//! Answers of a genuine checker about expressions: their types, or what is wrong with them.

use super::Program;
use super::types::{BOOL, INT, TEXT, Ty};

/// Answers of cel-go in the environment of upstream v1.36.2 (`apiserver/pkg/cel/environment`), with `o` unknown, `d` a
/// list of what is unknown, and `s`, `i`, `b`, `t`, `l`, `m` a text, number, truth, time, list of numbers and map of
/// numbers.
const ANSWERS: &str = "
dyn(true) => dyn
dyn('x') => dyn
o => dyn
o.a => dyn
o.a.b => dyn
o['a'] => dyn
o[0] => dyn
o.a == 1 => bool
b ? 'a' : 'b' => string
b ? 'a' : dyn('b') => dyn
b ? dyn('a') : 'b' => dyn
b ? o['a'] : 'x' => dyn
b ? 'x' : o['a'] => dyn
b ? o.a : 'x' => dyn
b ? 'x' : o.a => dyn
b ? null : 'x' => found no matching overload for '_?_:_' applied to '(bool, null, string)'
b ? 'x' : null => found no matching overload for '_?_:_' applied to '(bool, string, null)'
[1, 2] => list(int)
[1, 'a'] => expected type 'int' but found 'string'
[1, dyn('a')] => expected type 'int' but found 'dyn'
[dyn('a'), 1] => expected type 'dyn' but found 'int'
[] => list(dyn)
[[], [1]] => list(list(int))
[1, null] => expected type 'int' but found 'null'
['a', o.b] => expected type 'string' but found 'dyn'
{} => map(dyn, dyn)
{'a': 1, 'b': 'c'} => expected type 'int' but found 'string'
{'a': 1, 'b': dyn('c')} => expected type 'int' but found 'dyn'
{'a': 1, 'b': 2} => map(string, int)
{'a': 1}['a'] => int
{'a': true}.a => bool
[true][0] => bool
[][0] => dyn
[1, 2][0] == 1 => bool
l.map(x, x + 1) => list(int)
l.map(x, o.a) => list(dyn)
l.map(x, string(x)) => list(string)
d.map(x, x) => list(dyn)
o.map(x, x) => list(dyn)
o.map(x, x.a == 1) => list(bool)
o.filter(x, x.a) => list(dyn)
l.filter(x, x > 1) => list(int)
o.all(x, x) => bool
o.all(x, x.b) => bool
l.all(x, x) => expected type 'bool' but found 'int'
o.exists(x, x == 1) => bool
o.exists_one(x, x) => bool
l.exists_one(x, x) => found no matching overload for '_?_:_' applied to '(int, int, int)'
m.map(k, k) => list(string)
m.filter(k, true) => list(string)
m.transformList(k, v, v) => list(int)
m.transformMap(k, v, string(v)) => map(string, string)
o.transformMap(k, v, v) => map(dyn, dyn)
l.transformList(i, v, v + i) => list(int)
o.?a.orValue('x') => dyn
o.?a.orValue(true) => dyn
o[?'a'].orValue(false) => bool
m[?'a'].orValue(1) => int
optional.of(1).orValue(2) => int
optional.of(o.a).orValue('x') => dyn
optional.none().orValue('x') => string
o.?a.optMap(x, x == 1).orValue(true) => bool
o.?a.optMap(x, x).orValue(true) => dyn
o.?a.optMap(x, x.b).orValue('s') => dyn
optional.of('a').optMap(x, x + 'b').value() => string
optional.of('a').optFlatMap(x, optional.of(x)).value() => string
o.?a.hasValue() => bool
o.a + o.b => dyn
o.a + 1 => int
o.a + 'x' => string
o['a'] + o['b'] => dyn
o['a'] + 'x' => string
o.a && o.b => bool
o.a || true => bool
!o.a => bool
o['a'] && true => bool
-o.a => dyn
o.a * 2 => int
o.a - 1 => int
o.a - o.b => dyn
string(o.a) => string
int(o.a) => int
size(o.a) => int
o.size() => int
o.a.size() => int
'a' in o => bool
o.a in ['a'] => bool
type(1) == int => bool
has(o.a) => bool
l.sum() => int
l.min() => int
l.max() => int
d.sum() => dyn
o.a.sum() => dyn
l.slice(0, 1) => list(int)
l.flatten() => found no matching overload for 'flatten' applied to 'list(int).()'
[[1, 2], [3]].flatten() => list(int)
o.a.flatten() => list(dyn)
l.sort() => list(int)
l.distinct() => list(int)
l.reverse() => list(int)
l.sortBy(x, -x) => list(int)
lists.range(3) => list(int)
[] + ['a'] => list(string)
([] + ['a'])[0] => string
['a'] + [] => list(string)
l + d => list(dyn)
d + l => list(dyn)
(d + l)[0] => dyn
b ? [] : ['a'] => list(string)
b ? ['a'] : [] => list(string)
(b ? ['a'] : [])[0] => string
b ? {} : {'a': 'b'} => map(string, string)
b ? l : d => list(dyn)
(b ? l : d)[0] => dyn
b ? d : l => list(dyn)
b ? t : null => timestamp
b ? o : null => dyn
b ? null : o => dyn
b ? null : null => null
null => null
o == null => bool
1 == dyn('a') => bool
1 == o.a => bool
1 == 'a' => found no matching overload for '_==_' applied to '(int, string)'
[1] == ['a'] => found no matching overload for '_==_' applied to '(list(int), list(string))'
[1] == [] => bool
[o.a] == [1] => bool
m == {} => bool
'%s'.format([o.a]) => string
'%s'.format(o.a) => string
o.a.format([1]) => string
o.a.startsWith('x') => bool
o.a.split(',') => list(string)
o.a.split(',')[0] => string
o.a.join() => string
o.a.replace('a', 'b') => string
o.a.lowerAscii() => string
quantity(o.a) => kubernetes.Quantity
quantity(o.a).asInteger() => int
o.a.asInteger() => int
o.a.isGreaterThan(quantity('1')) => bool
o.a.add(o.b) => kubernetes.Quantity
o.a.getHours() => int
t - t => duration
t + duration('1h') => timestamp
o.a + duration('1h') => dyn
duration(o.a) => duration
o.a < o.b => bool
o.a < 1 => bool
1 < 2.0 => bool
o.a ? 'x' : 'y' => string
s ? 'x' : 'y' => found no matching overload for '_?_:_' applied to '(string, string, string)'
s && b => expected type 'bool' but found 'string'
i || b => expected type 'bool' but found 'int'
!i => found no matching overload for '!_' applied to '(int)'
l.exists(x, s) => expected type 'bool' but found 'string'
l.map(x, b, x) => list(int)
l.map(x, s, x) => found no matching overload for '_?_:_' applied to '(string, list(int), list(int))'
o.map(x, o.b, x.c) => list(dyn)
ip(o.a).family() => int
cidr(o.a).containsIP('1.1.1.1') => bool
o.a.containsIP('1.1.1.1') => bool
url(o.a).getQuery() => map(string, list(string))
url(o.a).getQuery()['a'][0] => string
o.a.find('x') => string
o.a.findAll('x')[0] => string
sets.contains(o.a, o.b) => bool
sets.contains(l, ['a']) => found no matching overload for 'sets.contains' applied to '(list(int), list(string))'
o.a.b.c.d[0]['x'].y => dyn
o.a.map(x, x.b).filter(y, y == 1) => list(dyn)
o.a.map(x, x.b)[0] => dyn
o.a.map(x, {'k': x})[0].k => dyn
o.a.map(x, [x, x]) => list(list(dyn))
o.a.map(x, 'a')[0] => string
[o.a][0] => dyn
{'k': o.a}.k => dyn
o.a.orValue('x') => string
o.a.value() => dyn
optional.ofNonZeroValue(o.a).orValue('z') => dyn
[1, 2, 3].map(x, x > 1 ? 'a' : 'b')[0] => string
[?o.?a] => list(dyn)
[?o.?a, 'x'][0] => expected type 'dyn' but found 'string'
{?'k': o.?a} => map(string, dyn)
{?'k': optional.of('v')}.k => string
l.indexOf(o.a) => int
o.indexOf('x') => int
s[0] => found no matching overload for '_[_]' applied to '(string, int)'
l['a'] => found no matching overload for '_[_]' applied to '(list(int), string)'
m[0] => found no matching overload for '_[_]' applied to '(map(string, int), int)'
m[o.a] => int
l[o.a] => int
i.a => type 'int' does not support field selection
s.a => type 'string' does not support field selection
l.a => type 'list(int)' does not support field selection
m.a => int
m.a.b => type 'int' does not support field selection
b.all(x, true) => expression of type 'bool' cannot be range of a comprehension (must be list, map, or dynamic)
i.map(x, x) => expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)
dyn(l)[0] => dyn
dyn(m).a => dyn
dyn(1) + 1 => int
dyn(1) + dyn(2) => dyn
[dyn(1)][0] == 1 => bool
[[o.a]][0][0] => dyn
[[1], [o.a]] => expected type 'list(int)' but found 'list(dyn)'
[[o.a], [1]] => expected type 'list(dyn)' but found 'list(int)'
[[1], o.a] => expected type 'list(int)' but found 'dyn'
[l, d] => expected type 'list(int)' but found 'list(dyn)'
[{'a': 1}, {'a': 'b'}] => expected type 'map(string, int)' but found 'map(string, string)'
[null, t] => expected type 'null' but found 'timestamp'
[t, null] => expected type 'timestamp' but found 'null'
['a', null] => expected type 'string' but found 'null'
'%s %d'.format(['a', 1]) => string
['a', 1].size() => expected type 'string' but found 'int'
'%s'.format([[1, 'a']]) => string
'%s'.format([1, 'a'].map(x, string(x))) => string
duration('abc') => invalid duration argument
timestamp('abc') => invalid timestamp argument
s.matches('[') => invalid matches argument
matches(s, '[') => bool
s.find('[') => string
'x'.matches('[') ? 'a' : 'b' => invalid matches argument
{1: 'a', 'b': 'c'} => expected type 'int' but found 'string'
{'a': 1, 'b': 'c', 'd': [1, 'x']} => expected type 'int' but found 'string'
[[1, 'a'], 2] => expected type 'int' but found 'string'
[b ? 1 : 2, 'x'] => expected type 'int' but found 'string'
[1, s + 'x'] => expected type 'int' but found 'string'
[1, s.size(), l.map(x, x)] => expected type 'int' but found 'list(int)'
[m.a, o.a] => expected type 'int' but found 'dyn'
quantity('abc') => kubernetes.Quantity
ip('abc') => net.IP
cidr('x') => net.CIDR
url('x') => kubernetes.URL
semver('x') => kubernetes.Semver
[].map(x, x) => list(dyn)
[].map(x, x + 1) => list(int)
{}.map(k, k) => list(dyn)
[].all(x, x) => bool
o.transformMapEntry(k, v, {v: k}) => map(dyn, dyn)
m.transformMapEntry(k, v, {v: k}) => map(int, string)
m.transformMap(k, v, v > 1, v) => map(string, int)
m.transformMap(k, v, s, v) => found no matching overload for '_?_:_' applied to '(string, map(string, int), \
    map(string, int))'
l.transformList(a, c, s, c) => found no matching overload for '_?_:_' applied to '(string, list(int), list(int))'
l.filter(x, s) => found no matching overload for '_?_:_' applied to '(string, list(int), list(int))'
l.all(a, c, s) => expected type 'bool' but found 'string'
l.existsOne(a, c, s) => found no matching overload for '_?_:_' applied to '(string, int, int)'
l.exists_one(a, c, a > c) => bool
s.optMap(x, 1) => found no matching overload for 'hasValue' applied to 'string.()'
s.hasValue() => found no matching overload for 'hasValue' applied to 'string.()'
s.all(x, true) => expression of type 'string' cannot be range of a comprehension (must be list, map, or dynamic)
b.b => type 'bool' does not support field selection
string(l) => found no matching overload for 'string' applied to '(list(int))'
int(l) => found no matching overload for 'int' applied to '(list(int))'
type(l) == list => bool
type(o) == map => bool
int == string => bool
";

#[test]
fn expressions_have_the_types_that_a_genuine_checker_finds() {
    let list = |item: Ty| Ty::List(Box::new(item));
    let numbers = Ty::Map(Box::new(TEXT), Box::new(INT));
    let names = [
        ("o", Ty::Dyn),
        ("s", TEXT),
        ("i", INT),
        ("b", BOOL),
        ("l", list(INT)),
        ("m", numbers),
        ("t", Ty::Named("timestamp")),
    ];
    let names: Vec<(String, Ty)> =
        names.into_iter().chain([("d", list(Ty::Dyn))]).map(|(name, ty)| (name.to_owned(), ty)).collect();
    let mut wrong = Vec::new();
    for line in ANSWERS.lines().filter(|line| !line.is_empty()) {
        let (text, answer) = line.rsplit_once(" => ").unwrap();
        let said = match Program::compile(text, &names) {
            Ok(program) => program.result.to_string(),
            // Where it is wrong is not compared: calls begin at their parenthesis there.
            Err(err) => err.to_string().lines().next().unwrap().splitn(3, ' ').nth(2).unwrap().to_owned(),
        };
        if said != answer {
            wrong.push(format!("{text}: {said}, upstream {answer}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The author of an expression may make its types grow with every step: they are known up to a bound, and this ends.
#[test]
fn types_that_double_with_every_step_are_bounded() {
    let names = [("o".to_owned(), Ty::Dyn)];
    let doubled = (0..20).fold("o".to_owned(), |inner, _| format!("[{inner}].map(x, {{x: x}})"));
    let chained = vec!["o['a'] + o.b"; 200].join(" + ");
    for text in [doubled, chained] {
        let _whatever_it_is = Program::compile(&text, &names);
    }
    let mut ty = Ty::Dyn;
    let vars = super::unify::Vars::default();
    for _ in 0..60 {
        ty = vars.open(&Ty::Map(Box::new(ty.clone()), Box::new(ty)));
    }
    assert!(ty.to_string().len() < 10_000);
}
