#!/usr/bin/env python3
"""Puts a run of upstream's conformance tests into docs/conformance.md: everything below its line `## Results` is
written anew.

    tests/oracles/conformance.py JUNIT.xml [JUNIT.xml…]
        A test that stands in several files counts with the last one
"""
import pathlib, re, sys, xml.etree.ElementTree as xml

PAGE = pathlib.Path(__file__).parents[2] / "docs/conformance.md"
HEAD = "## Results\n"

rows = {}
for report in sys.argv[1:]:
    for case in xml.parse(report).iter("testcase"):
        # The name ends with the labels: [sig-node, Conformance].
        name = re.sub(r" \[sig-[a-z-]+(, [^\]]*)?\]$", "", case.get("name").removeprefix("[It] "))
        if "[Conformance]" in name and case.get("status") != "skipped":
            rows[name] = (case.get("status"), float(case.get("time") or 0))
passed = sum(status == "passed" for status, _ in rows.values())
lines = [HEAD, f"{passed} of {len(rows)} passed, in {sum(seconds for _, seconds in rows.values()):.0f} s of tests.\n",
    "| test | result | s |", "|---|---|---|"]
lines += [f"| {name.replace('|', chr(92) + '|')} | {status} | {seconds:.1f} |" for name,
    (status, seconds) in sorted(rows.items())]
PAGE.write_text(PAGE.read_text().split(HEAD)[0] + "\n".join(lines) + "\n")
print(lines[1].strip())
for name, (status, _) in sorted(rows.items()):
    if status != "passed":
        print(f"{status}: {name}")
