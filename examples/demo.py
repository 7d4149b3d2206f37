"""`make demo`: one process computes a KV cache, two others receive it layer by layer and go on.

Process 1 prefills a prompt in two chunks and publishes each layer as it is computed. Process 2
joins in mid-production, process 3 after the end; both verify what arrives and continue the text
greedily. Both must say what a process says that computed everything by itself.

Exit codes: 0 all the same, 1 a difference, 2 something failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from examples.demo_report import Timeline, print_table, print_verdict
from examples.demo_roles import (
    TIMEOUT_S,
    Computed,
    Continued,
    Failed,
    Loaded,
    Published,
    Serving,
    Settings,
    run_role,
)
from examples.smollm.model import SMOLLM2_135M, ModelShape
from examples.smollm.tokenizer import build_tokenizer, chat_prompt
from examples.smollm.weights import WeightsMissing, find_gguf, open_gguf, read_shape
from moqt.tls import generate_certificate

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import SpawnProcess

PROMPT = Path(__file__).with_name("prompt.txt")
CHUNK_TOKENS = 320
BLOCK_TOKENS = 16
NEW_TOKENS = 32

Report = TypeVar("Report")


class DemoFailed(Exception):
    """A process failed, died, or was not heard of in time."""


@dataclass(slots=True)
class Role:
    """A process of the demo and the parent's end of its pipe."""

    name: str
    process: SpawnProcess
    pipe: Connection
    reports: list[Any] = field(default_factory=list)


class Cast:
    """The demo's processes: starts them, hears them, and ends them whatever happens."""

    def __init__(self, settings: Settings) -> None:
        context = multiprocessing.get_context("spawn")
        self._deadline = time.monotonic() + TIMEOUT_S
        self.roles: dict[str, Role] = {}
        for name in ("producer", "live", "late", "local"):
            ours, theirs = context.Pipe()
            process = context.Process(target=run_role, args=(name, settings, theirs), name=name)
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            self.roles[name] = Role(name, process, ours)

    def cue(self, name: str, message: object = None) -> None:
        """Let a role go on."""
        self.roles[name].pipe.send(message)

    def expect(
        self, name: str, kind: type[Report], until: Callable[[Report], bool] = lambda _: True
    ) -> Report:
        """Read reports until role `name` has sent a `kind` that fits. Raises: DemoFailed."""
        role = self.roles[name]
        seen = 0
        while True:
            for report in role.reports[seen:]:
                if isinstance(report, kind) and until(report):
                    return report
            seen = len(role.reports)
            self._read()

    def close(self) -> None:
        """End every process: they get a moment to leave by themselves."""
        for role in self.roles.values():
            role.pipe.close()
        for role in self.roles.values():
            role.process.join(5)
            if role.process.is_alive():
                role.process.kill()
                role.process.join()

    def _read(self) -> None:
        pipes = {role.pipe: role for role in self.roles.values() if not role.pipe.closed}
        ready = wait(list(pipes), timeout=max(0.0, self._deadline - time.monotonic()))
        if not ready:
            raise DemoFailed(f"not done within {TIMEOUT_S:.0f} s")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            role = pipes[pipe]
            try:
                report = pipe.recv()
            except EOFError:
                role.process.join(5)
                if not any(isinstance(report, Continued | Published) for report in role.reports):
                    code = role.process.exitcode
                    raise DemoFailed(f"process {role.name} ended with code {code}") from None
                pipe.close()
                continue
            if isinstance(report, Failed):
                raise DemoFailed(f"process {role.name}: {report.reason}")
            role.reports.append(report)


def run(settings: Settings) -> Timeline:
    """Run the four processes and return what happened when. Raises: DemoFailed."""
    cast = Cast(settings)
    try:
        for name in cast.roles:
            layers = cast.expect(name, Loaded).layers
        cast.cue("producer")
        serving = cast.expect("producer", Serving)
        # The live consumer joins when the first chunk is half done.
        cast.expect("producer", Computed, lambda computed: computed.layer == layers // 2)
        cast.cue("live", serving)
        published = cast.expect("producer", Published)
        live = cast.expect("live", Continued)
        cast.cue("late", serving)
        cast.cue("local")
        late, local = cast.expect("late", Continued), cast.expect("local", Continued)
        cast.cue("producer")
        computed = [
            report for report in cast.roles["producer"].reports if isinstance(report, Computed)
        ]
    finally:
        cast.close()
    return Timeline(
        started_at=serving.started_at,
        layers=layers,
        computed=computed,
        octets=published.octets,
        local=local,
        live=live,
        late=late,
    )


def make_settings(
    arguments: argparse.Namespace, shape: ModelShape
) -> tuple[Settings, Callable[[list[int]], str]]:
    """The prompt as tokens, and how tokens become text. Raises: WeightsMissing, DemoFailed."""
    pair = generate_certificate(["localhost", "127.0.0.1"], days=1)
    text = PROMPT.read_text("utf-8").strip()
    decode: Callable[[list[int]], str]
    if arguments.random_weights:
        # No vocabulary without the file: the octets of the text stand for tokens.
        prompt, decode = list(text.encode())[:616], str
    else:
        reader = open_gguf(find_gguf())
        shape = read_shape(reader)
        tokenizer = build_tokenizer(reader)
        prompt = tokenizer.encode(chat_prompt(text)).ids

        def decode(tokens: list[int]) -> str:
            return str(tokenizer.decode(tokens, skip_special_tokens=False))

    if arguments.corrupt_layer not in (None, *range(shape.layers)):
        raise DemoFailed(f"layer {arguments.corrupt_layer} is not one of 0..{shape.layers - 1}")
    settings = Settings(
        prompt=tuple(prompt),
        chunk_tokens=CHUNK_TOKENS,
        block_tokens=BLOCK_TOKENS,
        new_tokens=NEW_TOKENS,
        scope_key=secrets.token_bytes(32),
        certificate=pair.certificate,
        private_key=pair.private_key,
        random_shape=shape if arguments.random_weights else None,
        corrupt_layer=arguments.corrupt_layer,
    )
    return settings, decode


def main(argv: list[str] | None = None, *, shape: ModelShape = SMOLLM2_135M) -> int:
    """Run the demo; `shape` is that of `--random-weights`."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--random-weights",
        action="store_true",
        help="seeded weights of the same sizes, where the pretrained ones cannot be had",
    )
    parser.add_argument(
        "--corrupt-layer",
        type=int,
        metavar="N",
        help="publish layer N's keys in the wrong order: the continuations must differ",
    )
    arguments = parser.parse_args(argv)
    # One thread a process: equal sums in all of them, and two of them run side by side.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    try:
        settings, decode = make_settings(arguments, shape)
        if arguments.random_weights:
            print("The weights are RANDOM (seeded), so the tokens mean nothing.")
        if arguments.corrupt_layer is not None:
            print(f"Keys of layer {arguments.corrupt_layer} are published in a WRONG order.")
        passes = -(-settings.prefix_tokens // settings.chunk_tokens)
        print(
            f"prompt: {len(settings.prompt)} tokens; {settings.prefix_tokens} are prefilled in"
            f" {passes} chunks by process 1 and transferred, the rest is computed by each"
        )
        timeline = run(settings)
    except (DemoFailed, WeightsMissing) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print_table(timeline)
    return 0 if print_verdict(timeline, decode) else 1


if __name__ == "__main__":
    raise SystemExit(main())
