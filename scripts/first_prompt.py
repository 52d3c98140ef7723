"""The prompt of the first command in README.md, which several scripts run."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent


def prompt():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.search(r'cargo run --release -- generate "([^"]+)"', text)[1]
