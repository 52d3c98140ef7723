"""Writes docs/mutants.md: how many mutants of the kernels the tests notice, and why the others are not noticed."""

import pathlib
import re
from collections import Counter, defaultdict

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "mutants.md"
# Lines of: file, kind and mutated line as regular expressions, and the reason, with tabs between them. A file with a colon is a file and the
# number of a line: barriers look all alike.
REASONS = ROOT / "scripts" / "mutants-reasons.tsv"
KINDS = ["barrier", "index", "neighbour", "lanes", "clamp"]
BEGIN, END = "<!-- results -->", "<!-- end of results -->"


def kind_of(name):
    return name.rsplit(":", 1)[1]


def reasons():
    lines = REASONS.read_text().splitlines() if REASONS.exists() else []
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def is_open(result):
    """Whether some stage was left out or cut short, so that nobody knows whether the tests notice a survivor."""
    return result["status"] == "survived" and bool(result.get("cut") or "metal" not in result["stages"])


def reason_of(result, known):
    """Why nobody notices a survivor, where that is known."""
    file, line, _, kind = result["mutant"].rsplit(":", 3)
    for file_re, kind_re, line_re, reason in known:
        place = file if ":" not in file_re else f"{file}:{line}"
        if re.fullmatch(file_re, place) and re.fullmatch(kind_re, kind) and re.search(line_re, result["mutated"]):
            return reason
    return None


def share(part, whole):
    return f"{100 * part / whole:.1f}%" if whole else ""


def table(results, mutants):
    """The score of each kind."""
    known = reasons()
    rows = defaultdict(Counter)
    for m in mutants:
        counts = rows[kind_of(m["mutant"])]
        result = results.get(m["mutant"])
        counts["all"] += 1
        if m["refused"] or (result and result["status"] == "refused"):
            counts["refused"] += 1
        elif result:
            counts["begun"] += 1
            if result["status"] == "survived":
                of = "reason" if reason_of(result, known) else "open" if is_open(result) else "survived"
            else:
                of = "caught"
            counts[of] += 1
    rows["all"] = sum((rows[kind] for kind in KINDS), Counter())
    heads = ["mistake", "mutants", "do not compile", "run", "caught", "survived with a reason", "survived without one", "open"]
    heads += ["caught of those without a reason", "caught of those run"]
    text = "| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|\n"
    for kind in [*KINDS, "all"]:
        c = rows[kind]
        cells = [kind, *(c[of] for of in ("all", "refused", "begun", "caught", "reason", "survived", "open"))]
        cells += [share(c["caught"], c["begun"] - c["reason"]), share(c["caught"], c["begun"])]
        text += "| " + " | ".join(map(str, cells)) + " |\n"
    return text


def lines_of(those):
    return "".join(f"- `{r['mutant']}`: `{r['mutated'] or 'nothing'}`\n" for r in sorted(those, key=lambda r: r["mutant"]))


def survivors(results):
    """Those that nobody noticed, by their reasons, and those that are open and have none."""
    known = reasons()
    by_reason = defaultdict(list)
    for result in results.values():
        reason = reason_of(result, known)
        if result["status"] == "survived" and (reason or not is_open(result)):
            by_reason[reason or "No reason is known."].append(result)
    text = ""
    for reason, those in sorted(by_reason.items(), key=lambda item: (item[0] == "No reason is known.", item[0])):
        text += f"\n{reason}\n\n{lines_of(those)}"
    still = [result for result in results.values() if is_open(result) and not reason_of(result, known)]
    text += "\n## Open\n\nThese have passed the tests on a device. For Metal on the CPU the tests were not run, or they were cut short.\n\n"
    return text + lines_of(still)


def write(results, mutants):
    # Kernels change, and lines move.
    lines = {(m["mutant"], m["line"]) for m in mutants}
    results = {name: r for name, r in results.items() if (name, r["line"]) in lines}
    text = DOCUMENT.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    by = Counter((r["stage"], r["how"]) for r in results.values() if r["status"] == "caught")
    how = "\n".join(f"| {stage} | {what} | {count} |" for (stage, what), count in by.most_common())
    ends = f"How those that were caught ended:\n\n| stage | a test | mutants |\n|---|---|---|\n{how}\n"
    new = f"{BEGIN}\n\n{table(results, mutants)}\n{ends}\n## Survivors\n{survivors(results)}\n{END}"
    DOCUMENT.write_text(before + new + after)
    print(table(results, mutants))
