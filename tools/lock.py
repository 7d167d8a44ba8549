"""Write exact versions of every Python dependency into pyproject.toml ([tool.uv] constraint-dependencies).

`uv.lock` itself stays out of the tree because it records the host names of the package index in use.
Usage: python3 tools/lock.py path/to/uv
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "# pins: begin (make lock)", "# pins: end"


def main(uv: str) -> None:
    """Resolve anew without the old pins, then record what was chosen."""
    pyproject = ROOT / "pyproject.toml"
    text = pyproject.read_text()
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if not pattern.search(text):
        sys.exit(f"pyproject.toml has no '{BEGIN}' ... '{END}' block")
    empty = f"{BEGIN}\nconstraint-dependencies = []\n{END}"
    pyproject.write_text(pattern.sub(empty, text))
    (ROOT / "uv.lock").unlink(missing_ok=True)
    try:
        subprocess.run([uv, "lock", "--quiet"], cwd=ROOT, check=True)
    except subprocess.CalledProcessError:
        pyproject.write_text(text)
        raise
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    versions: dict[str, set[str]] = {}
    for package in packages:
        if "version" in package and package["name"] != "rlz":
            versions.setdefault(package["name"], set()).add(package["version"])
    pins = [f'  "{name}=={next(iter(found))}",' for name, found in sorted(versions.items()) if len(found) == 1]
    block = "\n".join([BEGIN, "constraint-dependencies = [", *pins, "]", END])
    pyproject.write_text(pattern.sub(block, text))
    subprocess.run([uv, "lock", "--quiet"], cwd=ROOT, check=True)
    print(f"pinned {len(pins)} packages")


if __name__ == "__main__":
    main(sys.argv[1])
