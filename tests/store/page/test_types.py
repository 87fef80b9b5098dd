"""The scripts of the page hold what their annotations say: `tsc --checkJs` finds nothing."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from store.page.assets import DIRECTORY

CONFIG: Final = Path(__file__).with_name("tsconfig.json")
VERSION: Final = "7.0.2"
INSTALLED: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / f"playhead-typescript-{VERSION}"


@pytest.fixture(scope="module")
def tsc() -> Path:
    """The compiler, from npm the first time."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("there is no node with npm, which would check the types of the page's scripts")
    compiler = INSTALLED / "node_modules" / "typescript" / "bin" / "tsc"
    if not compiler.exists():
        options = ["--prefix", str(INSTALLED), "--no-audit", "--no-fund", "--ignore-scripts"]
        installed = subprocess.run(
            ["npm", "install", *options, f"typescript@{VERSION}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if installed.returncode:
            pytest.skip(f"npm cannot install typescript: {installed.stderr.strip()[-200:]}")
    return compiler


def test_the_scripts_have_the_types_that_they_say_and_a_wrong_one_is_found(tsc: Path, tmp_path: Path) -> None:
    """A copy of them with one wrong script, since to check all takes seconds: nothing else is found."""
    assets = tmp_path / "store" / "page" / "assets"
    shutil.copytree(DIRECTORY, assets)
    config = tmp_path / "tests" / "store" / "page" / CONFIG.name
    config.parent.mkdir(parents=True)
    config.write_bytes(CONFIG.read_bytes())
    (assets / "core" / "wrong.js").write_text('import { useRef } from "./html.js";\nexport const at = useRef();\n')
    checked = subprocess.run(["node", tsc, "--project", config], capture_output=True, text=True, check=False)
    found = [line for line in (checked.stdout + checked.stderr).splitlines() if not line.startswith(" ")]
    assert len(found) == 1, checked.stdout
    assert "wrong.js(2,19): error TS2554" in found[0]
