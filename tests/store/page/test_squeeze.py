"""Scripts are served without what a browser does not need, and do the same."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from store.page.assets import DIRECTORY, load_assets
from store.page.squeeze import UnknownScript, squeeze_script
from tests.store.page.test_assets import find_malformed

CASES: Final = {
    "a  =  1 ; // one\nb = 2;\n": "a=1;b=2;\n",
    "return  x / 2 / y;  /* both */ f();": "return x/2/y;f();\n",
    "x = \"a  //  b\" + 'c /* d */';": "x=\"a  //  b\"+'c /* d */';\n",
    "a + +b; a - -b; a ++ + b": "a+ +b;a- -b;a++ +b\n",
    "f(\n  a,\n  [ b, ],\n)\ng()": "f(a,[b])\ng()\n",
    "a = { b() { c(); }, }": "a={b(){c()}}\n",
    "x = /[/ ]  `/g.test(y) ? 1 : 2": "x=/[/ ]  `/g.test(y)?1:2\n",
    "`a  b\n  c ${  { d : 1 }.d  }  e`": "`a  b\n  c ${{d:1}.d}  e`\n",
    "html`<b>\n    ${ x && html`<i>\n  y  z</i>` }  </b>`": "html`<b>${x&&html`<i>y  z</i>`}  </b>`\n",
    'html`<a b="c" d="e f" g=${h}\n   i="j">k="l"\n  m</a>`': 'html`<a b=c d="e f" g=${h}\ni=j>k="l"\nm</a>`\n',
    "html`<${Some}>a</${Some}>`": "html`<${Some}>a<//>`\n",
    "const a = 1; const b = (c) => c; const d = async (e) => e;": "const a=1,b=c=>c,d=async(e)=>e;\n",
    "const a = 1; f(); const b = 2; { const c = 3 } const d = 4": "const a=1;f();const b=2;{const c=3}const d=4\n",
    "const a = 1\nf(); const b = { c() { g(); } }; [h] = i; const d = 4": (
        "const a=1\nf();const b={c(){g()}};[h]=i;const d=4\n"
    ),
    "export const a = 1; const b = 2; for (const c of d) e(); const f = `${(g) => { const h = 1; const i = 2 }}`": (
        "export const a=1;const b=2;for(const c of d)e();const f=`${g=>{const h=1,i=2}}`\n"
    ),
    r"`\`${a}\${b}`": "`\\`${a}\\${b}`\n",
}

NAMES: Final = {
    "const name = 1; f(name, name, o.name)": "const a=1;f(a,a,o.name)\n",
    "const name = 1; f({ name, name: name })": "const a=1;f({name:a,name:a})\n",
    "const name = 1; f({ name }, name, name, name)": "const a=1;f({name:a},a,a,a)\n",
    "const { name, other: thing = 1 } = x; f(name, name, thing, thing)": "const{name:b,other:a=1}=x;f(b,b,a,a)\n",
    "function f({ value = 1 }, [ first ]) { return value + value + first + first }": (
        "function f({value:b=1},[a]){return b+b+a+a}\n"
    ),
    'import { visible } from "x"; f(visible, visible, visible)': 'import{visible as a}from"x";f(a,a,a)\n',
    'import { path as inner } from "x"; const path = 1; f(inner, inner, path, path)': (
        'import{path as a}from"x";const b=1;f(a,a,b,b)\n'
    ),
    "export const name = 1; f(name, name)": "export const name=1;f(name,name)\n",
    "export async function name() {} name(); name()": "export async function name(){}name();name()\n",
    "const a = 1; const name = 2; f(name, name)": "const a=1,b=2;f(b,b)\n",
    "f(window, window, window)": "f(window,window,window)\n",
    "class Tree { page(node) { const page = node; return this.page(page, page, page) } }": (
        "class b{page(node){const a=node;return this.page(a,a,a)}}\n"
    ),
}


@pytest.mark.parametrize("written", NAMES)
def test_names_that_are_declared_get_short_ones(written: str) -> None:
    assert squeeze_script(written) == NAMES[written]


@pytest.mark.parametrize("written", CASES)
def test_what_has_no_meaning_goes_and_all_else_stays(written: str) -> None:
    assert squeeze_script(written) == CASES[written]
    assert squeeze_script(CASES[written]) == CASES[written]


@pytest.mark.parametrize("text", ["`a", "`${a", "a}", "x = /a\n"])
def test_a_script_that_does_not_end_is_refused(text: str) -> None:
    with pytest.raises(UnknownScript):
        squeeze_script(text)


RUN: Final = """
const values = [];
const html = (texts, ...inner) => texts.join("|").replace(/\\s+|\"/g, "") + inner.join("+");
const keep = (value) => values.push(String(value));
for (let i = 0; i < 3; i ++) {
  // a comment with a ` in it, and "quotes'
  keep(i / 2 / 1 + + i - - i);
  keep(`plain\n   text ${ i > 1 ? `inner ${ [ i, i ] }` : "none" } \\${i}`);
  keep(html`<p class="a">
    ${ i } and   ${ html`<b>
      ${ { i }.i }</b>` }
  </p>`);
}
keep("a//b".replace(/\\/\\/|[/*]/g, "-") + typeof /x/ + `${ "}" }`)
keep(((a) => { return a })
(4))
console.log(JSON.stringify(values))
"""


def test_a_script_does_the_same_as_before(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no node, which would run both")
    found = []
    for name, text in (("before", RUN), ("after", squeeze_script(RUN))):
        (tmp_path / f"{name}.mjs").write_text(text)
        ran = subprocess.run(["node", tmp_path / f"{name}.mjs"], capture_output=True, text=True, check=True)
        found.append(json.loads(ran.stdout))
    assert found[0] == found[1]
    assert len(found[0]) == 11


def test_every_script_of_the_page_is_served_well_formed(tmp_path: Path) -> None:
    scripts = {name: asset.content for name, asset in load_assets().files.items() if name.endswith(".js")}
    files = [tmp_path / name.replace("/", "_") for name in scripts]
    for file, content in zip(files, scripts.values(), strict=True):
        file.write_bytes(content)
    assert find_malformed(files) == []


def test_the_served_scripts_are_smaller_than_those_that_are_read() -> None:
    for name, asset in load_assets().files.items():
        if name.endswith(".js") and "vendor" not in name:
            assert len(asset.content) < (DIRECTORY / name).stat().st_size
