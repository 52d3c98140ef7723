"""The first command in README.md, which several scripts run."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent


def first_command():
    """The flags of `glimt generate` and the prompt."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    flags, prompt = re.search(r'cargo run --release -- generate ((?:-\S+ )*)"([^"]+)"', text).groups()
    return flags.split(), prompt
