"""Writes docs/mutants.md: how many mutants of the kernels the tests notice. Prints those that nobody notices without a reason."""

import pathlib
import re
from collections import Counter, defaultdict

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "mutants.md"
# Lines of: file, kind and mutated line as regular expressions, and the reason, with tabs between them. A file with a colon is a file and the
# number of a line: barriers look all alike.
REASONS = ROOT / "scripts" / "mutants-reasons.tsv"
KINDS = {
    "barrier": "A barrier is missing, or a load behind barriers (`workgroupUniformLoad`) is a plain one.",
    "index": "An index is greater by one.",
    "neighbour": "An index has its last bit inverted, where the mistake above does not compile.",
    "lanes": "A count of lanes or threads is doubled, or lanes exchange values with other lanes.",
    "clamp": "A minimum, a maximum, a choice or a condition is missing, or a comparison includes its limit or excludes it.",
}
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


def counted(results, mutants):
    """How many mutants of each kind there are, and what became of them."""
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
    return rows


def table(rows):
    """The score of each kind."""
    rows = {**rows, "all": sum((rows[kind] for kind in KINDS), Counter())}
    heads = ["mistake", "what it is", "mutants", "do not compile", "run", "caught", "survived with a reason", "survived without one", "open"]
    heads += ["caught of those without a reason", "caught of those run"]
    text = "| " + " | ".join(heads) + " |\n" + "|---" * 2 + "|---:" * (len(heads) - 2) + "|\n"
    for kind in [*KINDS, "all"]:
        c = rows[kind]
        cells = [kind, KINDS.get(kind, ""), *(c[of] for of in ("all", "refused", "begun", "caught", "reason", "survived", "open"))]
        cells += [share(c["caught"], c["begun"] - c["reason"]), share(c["caught"], c["begun"])]
        text += "| " + " | ".join(map(str, cells)) + " |\n"
    return text


def ends(by):
    """How those that were caught ended, of each stage and outcome."""
    return "Of those that were caught, " + ", ".join(f"{count} {how} in stage `{stage}`" for (stage, how), count in by.most_common()) + ".\n"


def survivors(results):
    """Those that nobody noticed and that have no reason. Some are open."""
    known = reasons()
    text = ""
    for result in sorted(results.values(), key=lambda r: r["mutant"]):
        if result["status"] == "survived" and not reason_of(result, known):
            what = "open" if is_open(result) else "survived"
            text += f"{what}: {result['mutant']}: {result['mutated'] or 'nothing'}\n"
    return text


def write(results, mutants):
    # Kernels change, and lines move.
    lines = {(m["mutant"], m["line"]) for m in mutants if not m["refused"]}
    results = {name: r for name, r in results.items() if (name, r["line"]) in lines}
    text = DOCUMENT.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    by = Counter((r["stage"], r["how"]) for r in results.values() if r["status"] == "caught")
    scores = table(counted(results, mutants))
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{scores}\n{ends(by)}\n{END}{after}")
    print(f"{scores}\n{survivors(results)}")
