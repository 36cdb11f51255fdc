"""The documentation site, which ``make docs`` builds into site/. Building and reading it need no network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from docutils.nodes import SkipNode, math
from latex2mathml.converter import convert

from zetadp.config.experiment import configuration_schema

if TYPE_CHECKING:
    from docutils.nodes import Element
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

project = "zetadp"
html_title = project
author = "The zetadp authors"
copyright = author  # noqa: A001  (Sphinx asks for this name)
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
numpydoc_show_class_members = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True

html_theme = "furo"  # brings its own style and takes the reader's own fonts: nothing is fetched
html_math_renderer = "mathml"  # which browsers draw themselves; Sphinx's own would fetch a program
html_static_path = ["static"]
html_css_files = ["narrow.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "native"

PAPERS_MENU = """

```{toctree}
:hidden:

complex_mri/README
complex_mri/readings
complex_dp/README
complex_dp/readings
Electrocardiograms <complex_dp/ecg>
Spoken commands <complex_dp/speech_commands>
Reconstruction <complex_dp/reconstruction>
neuromixgdp/README
directions/README
Training with directions <directions/training>
```
"""
"""What the site appends to the page of papers, so that their pages fold below it in the menu."""


def setup(app: Sphinx) -> None:
    """Add the parts that only the site has; Sphinx calls this function."""
    papers, inside = Path(app.srcdir, "../papers"), Path(app.srcdir, "papers")
    if papers.is_dir():
        shutil.rmtree(inside, ignore_errors=True)  # an ignored copy: Sphinx reads one folder
        shutil.copytree(papers, inside, ignore=shutil.ignore_patterns("*.py", "*.yaml", "Snakefile", "__pycache__"))
    app.connect("source-read", read)
    app.connect("build-finished", write_schema)
    app.add_html_math_renderer("mathml", (draw_formula, None), (draw_formula, None))


def write_schema(app: Sphinx, _: Exception | None) -> None:
    """Write the schema of the configuration, for editors."""
    Path(app.outdir, "config.schema.json").write_text(json.dumps(configuration_schema(), indent=1), encoding="utf-8")


def draw_formula(page: HTML5Translator, formula: Element) -> None:
    """Write a formula as MathML."""
    display = "inline" if isinstance(formula, math) else "block"
    page.body.append(convert(formula.astext(), display=display))
    raise SkipNode


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """Give stored tables a title, the page of papers its menu, and links to papers their target within the site.

    In the site, the folder of papers is inside the folder of pages. In the repository it is next to it.
    """
    path = PurePosixPath(page)
    if path.parts[0] == "papers":
        source[0] = source[0].replace("../docs/", "../")
    else:
        source[0] = source[0].replace("../papers/", "papers/")
    if page == "papers/README":
        source[0] += PAPERS_MENU
    if "results" in path.parts and path.stem != "README":
        source[0] = f"---\norphan: true\n---\n\n# {path}\n\n{source[0]}"
