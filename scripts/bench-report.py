#!/usr/bin/env python3
"""Writes BENCHMARKS.md from what is measured: benches/results/*.json, benches/llama.cpp-*.json and benches/machines.json.

BENCHMARKS.md holds the tables and how they were made. Decisions and the measurements behind them are written by hand in
benches/notes.md, to which BENCHMARKS.md links.

    scripts/bench-report.py                       write BENCHMARKS.md
    scripts/bench-report.py --check               fail if BENCHMARKS.md is not what would be written, or if a source cites
                                                  an entry that benches/notes.md does not have
    glimt bench ... -o jsonl | scripts/bench-report.py add NAME --title T --command C [--commit C] [--note N] \\
        [--experiment]
                                                  keep results as benches/results/NAME.json, then write BENCHMARKS.md

Results of `glimt bench -o json` and `-o jsonl` are kept as they are; machine, driver and date are those of the rows.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCHES = ROOT / "benches"
REPORT = ROOT / "BENCHMARKS.md"

# Order of models, recipes and tests in tables; others follow in the order of their names.
MODELS = {"glm-4.7-flash": "GLM-4.7-Flash", "deepseek-v2-lite": "DeepSeek-V2-Lite", "youtu-llm-2b": "Youtu-LLM-2B", "qwen3-30b-a3b": "Qwen3-30B-A3B"}
RECIPES = ["q4_0", "q4_k_m"]


def model_of(row):
    """(model, recipe) of a row: told, or from MODEL:RECIPE of a synthetic model, or its name and no recipe."""
    if "model" in row:
        return row["model"], row["recipe"]
    name = row["model_filename"]
    if re.fullmatch(r"[\w.-]+:[\w.]+", name):
        return tuple(name.split(":"))
    synthetic = re.fullmatch(r"synthetic (\S+) (\S+)", row["model_type"])
    return synthetic.groups() if synthetic else (row["model_type"], "")


def test_of(row):
    """The name of a row's test, as glimt and llama-bench write it."""
    if "test" in row:
        return row["test"]
    parts = [f"pp{row['n_prompt']}"] * (row["n_prompt"] > 0) + [f"tg{row['n_gen']}"] * (row["n_gen"] > 0)
    return "+".join(parts) + (f" @ d{row['n_depth']}" if row["n_depth"] else "")


def speed(row):
    """Tokens per second: the median of the repetitions."""
    return statistics.median(row["samples_ts"])


def rank(key):
    model, recipe, test = key
    models, numbers = list(MODELS), [int(n) for n in re.findall(r"\d+", test)]
    depth = numbers[-1] if "@" in test else 0
    return (
        models.index(model) if model in models else len(models),
        model,
        RECIPES.index(recipe) if recipe in RECIPES else len(RECIPES),
        recipe,
        test.startswith("tg"),
        depth,
        numbers,
    )


def shown(model, recipe):
    return f"{MODELS.get(model, model)} {recipe.upper()}".strip()


def table(head, rows):
    """Markdown; the first column to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells):
        pairs = zip(cells, widths)
        return "| " + " | ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(pairs)) + " |"

    rule = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join([line(head), line(rule), *map(line, rows)]) + "\n"


def load():
    results = []
    for path in sorted((BENCHES / "results").glob("*.json")):
        result = json.loads(path.read_text())
        result["file"] = path.name
        results.append(result)
    results.sort(key=lambda r: (r["date"], r["file"]))
    rivals = [json.loads(path.read_text()) for path in sorted(BENCHES.glob("llama.cpp-*.json"))]
    return results, rivals, json.loads((BENCHES / "machines.json").read_text())


def best(result):
    """The fastest row of each test: a file may hold several tiers and sizes of chunks."""
    rows = {}
    for row in result["rows"]:
        key = (*model_of(row), test_of(row))
        if key not in rows or speed(row) > speed(rows[key]):
            rows[key] = row
    return rows


def composed(row):
    """What `--precompose` was, where it was anything."""
    choice = (row or {}).get("precompose") or "off"
    return "-" if choice == "off" else choice


def ratio(ours, theirs):
    return f"{theirs:.0f} ({ours / theirs:.2f}x)" if theirs else "-"


def machine_report(machine, results, rivals, facts):
    text = f"## {machine}\n\n"
    newest = {}
    for result in results:
        if not result.get("experiment"):
            newest.update({key: (row, result) for key, row in best(result).items()})
    theirs = {}
    for rival in rivals:
        for row in rival["rows"]:
            for test, value in row.items():
                if test not in ("model", "recipe", "backend"):
                    theirs[row["model"], row["recipe"], test, row["backend"]] = value
    backends = sorted({key[3] for key in theirs}, reverse=True)

    text += "### Newest results beside llama.cpp\n\n"
    text += "Tokens per second, medians, the faster where weights were precomposed too (`--precompose`); in brackets glimt relative to that.\n\n"
    head = ["model", "test", "glimt", *[f"llama.cpp {b}" for b in backends], "precompose", "GB/s", "of peak", "dispatches", "commit"]
    rows = []
    for key in sorted(set(newest) | {key[:3] for key in theirs}, key=rank):
        row, result = newest.get(key, (None, None))
        ours = speed(row) if row else None
        rival = [theirs.get((*key, b)) for b in backends]
        cells = [ratio(ours, v) if row else (f"{v:.0f}" if v else "-") for v in rival]
        gb, peak = (row or {}).get("gb_per_s"), (row or {}).get("peak_gb_per_s")
        rows.append([
            shown(*key[:2]),
            key[2],
            f"{ours:.1f}" if row else "-",
            *cells,
            composed(row),
            f"{gb:.0f}" if gb else "-",
            f"{100 * gb / peak:.0f}%" if gb and peak else "-",
            str((row or {}).get("dispatches_per_token") or "-"),
            result["commit"] if result else "-",
        ])
    text += table(head, rows) + "\n"
    for rival in rivals:
        text += f"{rival['program']}: {rival['version']}; {rival['command']}; driver {rival['driver']}; {rival['models']}.\n\n"
    text += floors(machine, newest, facts)
    text += history(results)
    return text


def floors(machine, newest, facts):
    """What a token cannot be faster than, beside what it takes."""
    fact = facts.get(machine)
    rows = []
    for key in sorted(newest, key=rank):
        row, _ = newest[key]
        if not (fact and row.get("bytes_per_token") and row.get("dispatches_per_token")):
            continue
        read = row["bytes_per_token"] / fact["read_gb_per_s"] / 1e6
        waits = row.get("dependent_dispatches_per_token") or row["dispatches_per_token"]
        launch = waits * fact["dispatch_us"] / 1e3
        taken = 1e3 / speed(row)
        idle = row.get("gpu_idle")
        rows.append([
            shown(*key[:2]),
            key[2],
            f"{row['bytes_per_token'] / 1e9:.3f}",
            f"{read:.3f}",
            str(waits),
            f"{launch:.3f}",
            f"{read + launch:.3f}",
            f"{taken:.3f}",
            f"{taken / (read + launch):.2f}x",
            "-" if idle is None else f"{100 * idle:.1f}%",
        ])
    if not rows:
        return ""
    text = "### The floor of a token\n\n"
    text += (
        f"Bytes at {fact['read_gb_per_s']} GB/s plus every dispatch that waits for the one before it at {fact['dispatch_us']} us"
        f" ({fact['source']}).\n\n"
    )
    head = ["model", "test", "GB read", "ms", "waiting dispatches", "ms", "floor ms", "taken ms", "of floor", "GPU idle"]
    return text + table(head, rows) + "\n"


def history(results):
    text = "### All results\n\n"
    for result in reversed(results):
        kind = "experiment, " if result.get("experiment") else ""
        text += f"**{result['date']}, {result['title']}** ({kind}commit {result['commit']}, {result['backend']}, driver {result['driver']})\n\n"
        text += f"`{result['command']}`\n\n"
        if result.get("note"):
            text += result["note"] + "\n\n"
        head = ["model", "test", "t/s", "least", "most", "runs", "tier", "precompose"]
        rows = []
        for row in sorted(result["rows"], key=lambda row: rank((*model_of(row), test_of(row)))):
            samples = row["samples_ts"]
            rows.append([
                shown(*model_of(row)),
                test_of(row),
                *[f"{v:.1f}" for v in (speed(row), min(samples), max(samples))],
                str(len(samples)),
                row.get("tier") or "-",
                composed(row),
            ])
        text += table(head, rows) + "\n"
    return text


HOW = """# Benchmarks

Written by `scripts/bench-report.py` from `benches/`; do not edit. What was tried, what it gave and what was kept is in
[benches/notes.md](benches/notes.md).

## How these figures are made

- `glimt bench` measures them, and `glimt bench --help` tells what is measured and how. The command of each series stands above its
  table.
- Models are synthetic: random weights in the shapes and types of the real models. `glimt bench --synthetic` makes them on the device,
  `glimt synth` writes them to a file.
- A test `ppN` is a prompt of N tokens, `tgN` is N generated tokens, and `@ dN` says that N tokens stand in the cache before.
- A figure is the median of the repetitions of one process, in tokens per second.
- `scripts/bench-report.py add` keeps the output of `glimt bench -o jsonl` as a file in `benches/results`. Machine, driver and date
  are those of its rows. Files that are older than the last whole run of `scripts/bench-all` leave the tree, and stay in its history.
- The figures of llama.cpp are in `benches/llama.cpp-*.json`, with version and command. Those of the machine itself, from which the
  floors are computed, are in `benches/machines.json`.

"""


def report():
    results, rivals, facts = load()
    text = HOW
    machines = dict.fromkeys(r["machine"] for r in results)
    for machine in machines:
        ours = [r for r in results if r["machine"] == machine]
        text += machine_report(machine, ours, [r for r in rivals if r["machine"] == machine], facts)
    return text.rstrip("\n") + "\n"


def missing_entries():
    """Entries of benches/notes.md that a source cites, as `benches/notes.md, "Title"`, and that have no such title there. A title may be
    shortened at its end."""
    titles = re.findall(r"^### (.*)$", (BENCHES / "notes.md").read_text(), re.MULTILINE)
    missing = []
    for path in sorted([*(ROOT / "src").rglob("*.rs"), *(ROOT / "crates").rglob("*.rs"), *(ROOT / "wgsl").rglob("*.wgsl")]):
        prose = re.sub(r"\s*\n\s*//[/!]?\s*", " ", path.read_text())
        for cited in re.findall(r'benches/notes\.md, "([^"]*)"', prose):
            if not any(title.startswith(cited) for title in titles):
                missing.append(f"{path.relative_to(ROOT)}: {cited}")
    return missing


def add(arguments):
    text = sys.stdin.read().strip()
    rows = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    if not rows:
        sys.exit("no rows on standard input")
    commit = arguments.commit or rows[0]["build_commit"]
    if commit == "unknown":
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
    for field in ("gpu_info", "driver", "backends"):
        if len({row[field] for row in rows}) > 1:
            sys.exit(f"rows of several machines: {field} differs; add them one by one")
    result = {
        "title": arguments.title,
        "date": min(row["test_time"] for row in rows)[:10],
        "commit": commit,
        "machine": rows[0]["gpu_info"],
        "driver": rows[0]["driver"],
        "backend": rows[0]["backends"],
        "command": arguments.command,
        "note": arguments.note,
        "experiment": arguments.experiment,
        "rows": rows,
    }
    path = BENCHES / "results" / f"{arguments.name}.json"
    if path.exists():
        sys.exit(f"{path} exists")
    path.write_text(json.dumps(result, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    commands = parser.add_subparsers(dest="what")
    adding = commands.add_parser("add")
    adding.add_argument("name")
    adding.add_argument("--title", required=True)
    adding.add_argument("--command", required=True)
    adding.add_argument("--commit")
    adding.add_argument("--note", default="")
    adding.add_argument("--experiment", action="store_true", help="list it, but not as the newest result")
    arguments = parser.parse_args()
    if arguments.what == "add":
        add(arguments)
    text = report()
    if arguments.check:
        if REPORT.read_text() != text:
            sys.exit("BENCHMARKS.md is not up to date: run scripts/bench-report.py")
        if missing := missing_entries():
            sys.exit("benches/notes.md has no entry of this title:\n" + "\n".join(missing))
    else:
        REPORT.write_text(text)


main()
