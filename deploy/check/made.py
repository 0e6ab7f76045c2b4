"""Prints one of the files that deploy/generate.sh writes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "dashboards"))

import ringway
import schema

print({"schema": schema.text, "dashboard": ringway.text}[sys.argv[1]](), end="")
