"""What publish refuses before it opens a socket; what inspect shows of files; relays."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.numpy import save_file

from kvcs import cose
from kvcs.cli import main, tensors
from kvcs.cli.describe import DESCRIPTOR_KEY
from kvcs.cli.exits import ExitCode
from kvcs.cli.files import check_output, create, growing, writing
from kvcs.keys import ProducerKey
from kvcs.kvsp.descriptor import Descriptor
from kvcs.manifest import Manifest
from kvcs.names import PublicationName
from moqt.asyncio.server import serve
from moqt.events import NamespaceOffered
from tests.cli.network import DESCRIPTOR, TOKENS, WAIT_S, Keys, producing, random_layers

if TYPE_CHECKING:
    from pathlib import Path

    from kvcs.kvsp.shapes import AnyArray


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    folder = tmp_path / "keys"
    folder.mkdir()
    return Keys.make(folder)


@pytest.fixture
def arrays() -> dict[str, AnyArray]:
    return random_layers(DESCRIPTOR, len(TOKENS))


@pytest.fixture
def cache(tmp_path: Path, arrays: dict[str, AnyArray]) -> Path:
    path = tmp_path / "cache.safetensors"
    save_file(arrays, path)
    return path


def publishing(keys: Keys, cache: Path) -> dict[str, str]:
    """Options of a publish command that would work."""
    return {
        "": str(cache),
        "--tokens": str(keys.tokens),
        "--scope-key-file": str(keys.scope_key),
        "--listen": "127.0.0.1:0",
        "--certificate": str(keys.certificate),
        "--private-key": str(keys.private_key),
        "--descriptor": str(keys.descriptor),
        "--serve-for": "0",
    }


def run(options: dict[str, str]) -> int:
    arguments = [part for pair in options.items() for part in pair if part]
    return main(["publish", *arguments])


def test_publish_for_a_while(keys: Keys, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(publishing(keys, cache)) == ExitCode.OK
    caught = capsys.readouterr()
    assert "complete: 3 layers, 24 Objects" in caught.out
    assert caught.err == "".join(f"published: {n} of 3 layers\n" for n in (1, 2, 3))


def test_publish_can_be_repeated_after_its_port_was_taken(
    keys: Keys, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "written.json"
    options = publishing(keys, cache) | {"--write-descriptor": str(written)}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run(options | {"--listen": address}) == ExitCode.CONNECTION
    assert capsys.readouterr().err.startswith(f"kvcs: error: cannot listen on {address}: ")
    text = written.read_bytes()
    assert run(options) == ExitCode.OK
    assert written.read_bytes() == text

    other = text.replace(b'"test"', b'"tset"')
    assert other != text
    written.write_bytes(other)
    assert run(options) == ExitCode.FILE
    assert written.read_bytes() == other


def test_publish_with_the_descriptor_that_the_file_holds(
    keys: Keys, cache: Path, arrays: dict[str, AnyArray], capsys: pytest.CaptureFixture[str]
) -> None:
    tensors.write_tensors(cache, arrays, {DESCRIPTOR_KEY: DESCRIPTOR.jcs().decode()})
    options = publishing(keys, cache)
    del options["--descriptor"]
    assert run(options) == ExitCode.OK
    assert "test: 3 layers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "code", "problem"),
    [
        ({"--listen": ""}, 2, "either --listen or --relay"),
        ({"--relay": "moqt://127.0.0.1:1/"}, 2, "either --listen or --relay"),
        ({"--listen": "nowhere"}, 2, "is no address"),
        ({"--listen": "", "--relay": "https://x"}, 2, "scheme is 'https'"),
        ({"--certificate": ""}, 2, "needs --certificate and --private-key"),
        ({"--private-key": "{certificate}"}, 2, "no PEM private key"),
        ({"--certificate": "{tokens}"}, 2, "no PEM certificate"),
        ({"--certificate": "nowhere.pem"}, 7, "nowhere.pem: No such file"),
        ({"--sign": "{certificate}"}, 2, "no PEM private key found"),
        ({"--sign": "nowhere.pem"}, 7, "nowhere.pem: No such file"),
        ({"--codec": "gzip"}, 2, "no codec 'gzip'"),
        ({"--scope-key-file": ""}, 2, "no scope key"),
        ({"--tokens": ""}, 2, "no tokens"),
        ({"--descriptor": ""}, 2, "not said: --model, --block-tokens, --layout"),
        ({"--model": "m"}, 2, "--descriptor says --model"),
        ({"--layout": "dhn"}, 2, "--layout"),
        ({"--block-tokens": "0"}, 2, "--block-tokens"),
        ({"--k-names": "model.k"}, 2, "is no name template"),
        ({"--v-names": "values.{layer}"}, 2, "no tensor 'values.0' among 6"),
        ({"": "nowhere.safetensors"}, 7, "nowhere.safetensors: No such file"),
        ({"": "{tokens}"}, 7, "not a safetensors file"),
        ({"--write-descriptor": "{tokens}"}, 7, "exists"),
        ({"--listen": "192.0.2.1:4443"}, 6, ""),
    ],
)
def test_publish_refuses(
    keys: Keys,
    cache: Path,
    change: dict[str, str],
    code: int,
    problem: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KVCS_SCOPE_KEY", raising=False)
    monkeypatch.delenv("KVCS_SCOPE_KEY_FILE", raising=False)
    named = {"{tokens}": str(keys.tokens), "{certificate}": str(keys.certificate)}
    options = publishing(keys, cache)
    for option, value in change.items():
        if value:
            options[option] = named.get(value, value)
        else:
            del options[option]
    assert run(options) == code
    caught = capsys.readouterr()
    assert problem in caught.err
    assert caught.err.count("\n") == 1
    assert caught.out == ""


@pytest.mark.parametrize(
    ("tokens", "problem"),
    [
        (TOKENS[:15], "15 tokens are less than one block of 16"),
        (TOKENS * 2, "holds 64 tokens, the 128 given have 8 blocks of 16: 128 tokens"),
        ([-1, *TOKENS], "token 0 is -1"),
    ],
)
def test_publish_refuses_tokens(
    keys: Keys,
    cache: Path,
    tokens: list[int],
    problem: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys.tokens.write_text(json.dumps(tokens))
    assert run(publishing(keys, cache)) == ExitCode.USAGE
    assert problem in capsys.readouterr().err


def test_publish_says_that_the_tail_is_left_out(
    keys: Keys, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys.tokens.write_text(json.dumps(TOKENS[:50]))
    assert run(publishing(keys, cache)) == ExitCode.OK
    caught = capsys.readouterr()
    assert "holds 64 tokens, 50 given: published are the first 48, the whole blocks" in caught.err
    assert "complete: 3 layers, 18 Objects" in caught.out


def test_publish_refuses_another_dtype(
    keys: Keys, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {**DESCRIPTOR.to_dict(), "dtype": "float16"}
    keys.descriptor.write_bytes(Descriptor.from_dict(other).jcs())
    assert run(publishing(keys, cache)) == ExitCode.USAGE
    assert "is bfloat16 [64, 2, 8], the descriptor says float16" in capsys.readouterr().err


def test_publish_through_what_is_no_relay(
    keys: Keys, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = publishing(keys, cache)
    for option in ("--listen", "--certificate", "--private-key"):
        del options[option]
    with producing(keys) as other:
        code = run(options | {"--relay": other.url, "--ca": str(keys.certificate)})
    assert code == ExitCode.CONNECTION
    assert "--relay takes a relay; this may be a publisher itself" in capsys.readouterr().err


def test_publish_where_another_listens(
    keys: Keys, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with producing(keys) as other:
        address = f"127.0.0.1:{other.producer.port}"
        assert run(publishing(keys, cache) | {"--listen": address}) == ExitCode.CONNECTION
    said = capsys.readouterr().err
    assert f"cannot listen on {address}: " in said
    assert "(hint: port 0 takes any that is free)" in said


def test_publish_offers_to_a_relay(
    keys: Keys, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A relay's end of it: PUBLISH_NAMESPACE comes, and is withdrawn at the end."""
    port: Future[int] = Future()
    offered: Future[Any] = Future()

    async def relay() -> None:
        async with serve(
            "127.0.0.1",
            0,
            certificate=keys.certificate,
            private_key=keys.private_key,
            takes_offers=True,
        ) as server:
            port.set_result(server.port)
            async for session in server:
                offer = await anext(session.offers())
                assert isinstance(offer, NamespaceOffered)
                await session.accept_namespace(offer).wait_withdrawn()
                offered.set_result(offer.namespace)
                break

    thread = threading.Thread(target=asyncio.run, args=(relay(),))
    thread.start()
    options = publishing(keys, cache)
    for option in ("--listen", "--certificate", "--private-key"):
        del options[option]
    options |= {
        "--relay": f"moqt://127.0.0.1:{port.result(WAIT_S)}/",
        "--ca": str(keys.certificate),
    }
    try:
        assert run(options) == ExitCode.OK
        name = PublicationName.parse(offered.result(WAIT_S))
        assert name.scope_id == keys.scope.scope_id
        assert str(name.namespace()) in capsys.readouterr().out
    finally:
        thread.join(WAIT_S)
    assert not thread.is_alive()


def test_fetch_refuses_before_it_connects(
    keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*more: str) -> str:
        out = ["--out", str(tmp_path / "out"), *keys.wanting()]
        assert main(["fetch", "moqt://127.0.0.1:1/", *out, *more]) == ExitCode.USAGE
        return capsys.readouterr().err

    assert "the descriptor has layers 0 to 2" in refused("--layers", "1-3")
    assert "the tokens have 4 full blocks" in refused("--blocks", "5")
    assert "no PEM certificate" in refused("--ca", str(keys.tokens))
    assert "not a PEM public key" in refused("--trust", str(keys.tokens))
    private, public = tmp_path / "producer.pem", tmp_path / "producer.pub"
    key = ProducerKey.generate()
    key.save(private)
    public.write_bytes(key.public.to_pem())
    said = refused("--trust", str(private))
    assert f"--trust: {private}: this is a private key (hint: use {public})" in said
    assert f"{keys.tokens}: " in refused("--descriptor", str(keys.tokens))
    assert main(["fetch", "example.net:1", "--out", "x", *keys.wanting()]) == ExitCode.USAGE
    assert "moqt://" in capsys.readouterr().err


def manifest() -> Manifest:
    return Manifest(descriptor=DESCRIPTOR, deterministic=True)


def inspected(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["inspect", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_inspect_a_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "manifest"
    path.write_bytes(manifest().dump())
    code, record = inspected(capsys, str(path))
    assert (code, record["kind"], record["signature"]) == (ExitCode.OK, "manifest", "unsigned")
    assert record["manifest"]["descriptor"] == DESCRIPTOR.to_dict()
    assert main(["inspect", str(path)]) == ExitCode.OK
    assert "deterministic" in capsys.readouterr().out
    path.write_bytes(b'{"kvcs": 1}')
    assert main(["inspect", str(path)]) == ExitCode.UNVERIFIED
    assert "manifest $" in capsys.readouterr().err


def test_inspect_a_signed_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = ProducerKey.generate()
    path, public = tmp_path / "manifest.cose", tmp_path / "p.pub"
    path.write_bytes(cose.sign(manifest().dump(), key))
    public.write_bytes(key.public.to_pem())
    code, record = inspected(capsys, str(path))
    assert (code, record["signature"], record["kid"]) == (0, "unchecked", key.key_id.hex())
    code, record = inspected(capsys, str(path), "--trust", str(public))
    assert (code, record["signature"]) == (0, "verified")
    octets = bytearray(path.read_bytes())
    octets[-1] ^= 1
    path.write_bytes(octets)
    assert main(["inspect", str(path), "--trust", str(public)]) == ExitCode.UNVERIFIED
    assert "does not hold" in capsys.readouterr().err


def test_inspect_a_cache(
    cache: Path, arrays: dict[str, AnyArray], capsys: pytest.CaptureFixture[str]
) -> None:
    code, record = inspected(capsys, str(cache))
    assert (code, record["kind"], record["layers"]) == (ExitCode.OK, "safetensors", [0, 1, 2])
    assert record["descriptor"] is None
    assert {each["name"] for each in record["tensors"]} == set(arrays)
    assert record["tensors"][0]["dtype"] == "bfloat16"
    assert main(["inspect", str(cache)]) == ExitCode.OK
    assert "layers.2.v bfloat16 [64, 2, 8]" in capsys.readouterr().out


def test_inspect_what_is_none_of_these(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x"
    assert main(["inspect", str(path)]) == ExitCode.FILE
    path.write_bytes(b"neither")
    assert main(["inspect", str(path)]) == ExitCode.UNVERIFIED
    assert capsys.readouterr().err.count("\n") == 2


def test_output_is_refused_before_any_work(tmp_path: Path) -> None:
    from kvcs.cli.exits import CommandError

    existing = tmp_path / "x"
    existing.touch()
    check_output(existing, force=True)
    check_output(tmp_path / "new", force=False)
    for path, force in ((existing, False), (tmp_path, True), (tmp_path / "no" / "x", True)):
        with pytest.raises(CommandError) as caught:
            check_output(path, force=force)
        assert caught.value.code is ExitCode.FILE


def test_file_that_fails_to_grow_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"before")

    def half(part: Path) -> None:
        with growing(part) as growing_part:
            growing_part.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half(path)
    assert path.read_bytes() == b"before"
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_create_overwrites_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "x"
    create(path, writing(b"one", 0o600), force=False)
    with pytest.raises(FileExistsError):
        create(path, writing(b"two", 0o600), force=False)
    assert path.read_bytes() == b"one"
    create(path, writing(b"two", 0o600), force=True)
    assert path.read_bytes() == b"two"
