# SPDX-License-Identifier: Apache-2.0
"""The conformance table: which test holds each row of conformance_rows.txt, or why none does.

python3 conformance.py [JUNIT_FILE...]

A test carries ids at the beginning of its name: a Catch2 case ("C-19 tied parameters in one unit"), the name of a case
that a program of several ranks prints, or a comment line in a test that runs in the compiler. conformance.md says why
a row has no test, or what of a row its test leaves out. With the JUnit files of `ctest --output-junit` and of
`unit_tests -r junit` the table shows results. Exit code 1 where the three do not fit together, or where a test failed.
"""

import collections
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

FOLDER = pathlib.Path(__file__).resolve().parent
TESTS = ["unit", "static", "compile_fail", "distributed", "parity"]
REASONS = {
    "gpu": "needs a GPU",
    "python": "of Python only",
    "later": "its room is not built yet",
    "design": "does not arise here",
    "open": "does not hold yet",
    "part": "the test leaves something out",
}
ID = r"(?:C-\d\d|T\d{1,2}|P\d{1,2}|B\d{3})"
CATCH_CASE = re.compile(r'TEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')
CARRIER = re.compile(rf'(?:"|^\s*// )((?:{ID} )+)', re.MULTILINE)


def read_rows():
    rows = {}
    for line in (FOLDER / "conformance_rows.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name, area, what = (field.strip() for field in line.split("|"))
        if not re.fullmatch(ID, name) or name in rows:
            sys.exit(f"conformance_rows.txt: {name} is no id, or there twice")
        rows[name] = (area, what)
    return rows


def read_reasons():
    """Lines `| id id ... | kind | why |` of the tables in conformance.md."""
    reasons, wrong = {}, []
    for line in (FOLDER / "conformance.md").read_text().splitlines():
        found = re.fullmatch(rf"\| ({ID}(?: {ID})*) \| (\w+) \| (.+) \|", line)
        if not found:
            if line.startswith("|") and re.match(r"\| *[CTPB]-?\d", line):
                wrong.append(f"conformance.md: not understood: {line}")
            continue
        ids, kind, why = found.groups()
        if kind not in REASONS:
            wrong.append(f"conformance.md: '{kind}' is none of {', '.join(REASONS)}")
        for name in ids.split():
            if name in reasons:
                wrong.append(f"conformance.md: {name} is there twice")
            reasons[name] = (kind, why)
    return reasons, wrong


def read_tests():
    """Of each id the tests: (the name that a JUnit file has of it, where it is)."""
    tests = collections.defaultdict(list)
    for group in TESTS:
        for path in sorted((FOLDER / group).rglob("*")):
            if path.suffix not in (".cpp", ".hpp"):
                continue
            text = path.read_text()
            place = path.relative_to(FOLDER).as_posix()
            if group == "unit":
                for literals in CATCH_CASE.findall(text):
                    name = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals))
                    ids = re.match(rf"(?:{ID} )+", name)
                    for one in ids.group().split() if ids else []:
                        tests[one].append((name, place))
            else:
                # One program for each file; parity has only one, of several files.
                inside = path.relative_to(FOLDER / group).with_suffix("").as_posix().replace("/", "_")
                program = "parity.parity" if group == "parity" else f"{group}.{inside}"
                for ids in CARRIER.findall(text):
                    for one in ids.split():
                        if (program, place) not in tests[one]:
                            tests[one].append((program, place))
    return tests


def read_results(files):
    """Of each test: did it pass? A case of Catch2 in several sections must pass in all of them."""
    results = {}
    for file in files:
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            name = case.get("name")
            failed = any(case.find(tag) is not None for tag in ("failure", "error")) or case.get("status") == "fail"
            for key in {name, name.rsplit(".", 1)[0]}:  # compile_fail.NAME.COMPILER
                results[key] = results.get(key, True) and not failed
    return results


def main():
    rows, tests = read_rows(), read_tests()
    reasons, wrong = read_reasons()
    results = read_results(sys.argv[1:])
    for name in sorted(set(tests) | set(reasons)):
        if name not in rows:
            wrong.append(f"{name} is no row of conformance_rows.txt; it is in {tests.get(name, 'conformance.md')}")

    counts = collections.Counter()
    for name, (area, what) in rows.items():
        kind, why = reasons.get(name, (None, None))
        print(f"{name:5} {area:13} {what}")
        counts["rows"] += 1
        for case, place in tests[name]:
            result = "listed" if case not in results else "passed" if results[case] else "FAILED"
            if result == "FAILED":
                wrong.append(f"{name}: {place}: {case} failed")
            print(f"      {result:13} {place}" + (f": {case}" if place.startswith("unit/") else ""))
        if kind:
            counts[kind] += 1
            print(f"      {kind:13} {REASONS.get(kind)}: {why}")
        counts["with a test"] += bool(tests[name])
        if not tests[name] and (not kind or kind == "part"):
            wrong.append(f"{name} ({what}) has neither a test nor a reason")
        if tests[name] and kind and kind != "part":
            wrong.append(f"{name} has a reason in conformance.md and a test in {tests[name][0][1]}")

    print("\n" + ", ".join(f"{count} {key}" for key, count in counts.items()))
    for line in wrong:
        print("WRONG:", line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
