"""publish, fetch, watch and inspect over loopback."""

from __future__ import annotations

import json
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.numpy import save_file

from kvcs.cli import main
from kvcs.cli.describe import DESCRIPTOR_KEY
from kvcs.cli.exits import ExitCode
from kvcs.cli.tensors import CacheFile
from kvcs.keys import ProducerKey, SigningAlgorithm
from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import Scope
from tests.cli.network import DESCRIPTOR, TOKENS, Command, Keys, producing, random_layers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvcs.kvsp.shapes import AnyArray
    from tests.cli.network import Background


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys.make(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def arrays() -> dict[str, AnyArray]:
    return random_layers(DESCRIPTOR, len(TOKENS))


@pytest.fixture(scope="module")
def complete(keys: Keys, arrays: dict[str, AnyArray]) -> Iterator[Background]:
    """A producer with one unsigned, complete publication."""
    with producing(keys) as background:
        background.publish(arrays)
        yield background


def read(path: Path) -> dict[str, bytes]:
    file = CacheFile.open(path)
    return {name: file.tensor(name).tobytes() for name in file.names}


def octets_of(arrays: dict[str, AnyArray]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_publish_serves_what_fetch_writes_bit_for_bit(
    keys: Keys, arrays: dict[str, AnyArray], tmp_path: Path
) -> None:
    """Two processes, two segments, signed; then the file is enough to publish it again."""
    producer_key = ProducerKey.generate()
    producer_key.save(tmp_path / "p.pem")
    (tmp_path / "p.pub").write_bytes(producer_key.public.to_pem())
    source, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    save_file(arrays, source)
    served = [
        *("--tokens", str(keys.tokens), "--listen", "127.0.0.1:0", "--segment-size", "3"),
        *("--certificate", str(keys.certificate), "--private-key", str(keys.private_key)),
        *("--model", "test", "--block-tokens", "16", "--layout", "nhd"),
        *("--sign", str(tmp_path / "p.pem"), "--write-descriptor", str(tmp_path / "d.json")),
    ]
    environment = {"KVCS_SCOPE_KEY": keys.scope.key.hex()}
    with Command("publish", str(source), *served, "--json", **environment) as publish:
        port = publish.until("serving")["port"]
        done = publish.until("complete")
        assert (done["layers"], done["objects"]) == (6, 24)
        descriptor = Descriptor.from_json((tmp_path / "d.json").read_bytes())
        wanting = [
            *("--descriptor", str(tmp_path / "d.json"), "--tokens", str(keys.tokens)),
            *("--ca", str(keys.certificate), "--trust", str(tmp_path / "p.pub")),
        ]
        url = f"moqt://127.0.0.1:{port}/"
        with Command("fetch", url, *wanting, "--out", str(out), **environment) as fetch:
            code, said, progress = fetch.end()
        assert code == ExitCode.OK, progress
        assert "3 of 3 layers, 64 tokens" in said
        assert "verified: 3 of 3 layers" in progress
        assert "\x1b" not in said + progress
        code, said, complaint = publish.end(signal.SIGINT)
    assert code == ExitCode.INTERRUPTED
    assert complaint == ""
    assert read(out) == octets_of(arrays)
    assert Descriptor.from_json(CacheFile.open(out).metadata[DESCRIPTOR_KEY]) == descriptor


def test_publish_joint_and_encoded_ends_by_sigterm(keys: Keys, tmp_path: Path) -> None:
    """float8 heads-first tensors and a K-only layer; codec bszstd in one kv track."""
    descriptor = Descriptor.from_dict(
        {
            **DESCRIPTOR.to_dict(),
            "dtype": "float8_e4m3fn",
            "layout": "hnd",
            "layer_overrides": {"1": {"v_head_dim": 0}},
        }
    )
    arrays = random_layers(descriptor, len(TOKENS))
    source, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    save_file(arrays, source)
    (tmp_path / "d.json").write_bytes(descriptor.jcs())
    environment = {
        "KVCS_SCOPE_KEY_FILE": str(keys.scope_key),
        "KVCS_DESCRIPTOR": str(tmp_path / "d.json"),
        "KVCS_CERTIFICATE": str(keys.certificate),
        "KVCS_PRIVATE_KEY": str(keys.private_key),
    }
    served = ["--tokens", str(keys.tokens), "--listen", "127.0.0.1:0", "--json"]
    encoded = ["--codec", "bszstd", "--joint", "--namespace-form", "hex"]
    with Command("publish", str(source), *served, *encoded, **environment) as publish:
        url = f"moqt://127.0.0.1:{publish.until('serving')['port']}/"
        publish.until("complete")
        wanting = [*keys.wanting(), "--descriptor", str(tmp_path / "d.json")]
        assert main(["fetch", url, *wanting, "--out", str(out), "--wait", "0"]) == 3
        wanting += ["--namespace-form", "hex"]
        assert main(["fetch", url, *wanting, "--out", str(out)]) == ExitCode.OK
        code, _, complaint = publish.end(signal.SIGTERM)
    assert code == ExitCode.TERMINATED
    assert json.loads(complaint)["error"] == "terminated"
    assert read(out) == octets_of(arrays)


@pytest.mark.parametrize("sessions", [[], ["--sessions", "2"]], ids=["one", "two"])
def test_fetch_a_part(
    sessions: list[str],
    keys: Keys,
    complete: Background,
    arrays: dict[str, AnyArray],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "part.safetensors"
    part = ["--layers", "1-2", "--blocks", "2", "--k-names", "k{layer}", "--v-names", "v{layer}"]
    wanting = [*keys.wanting(), "--out", str(out), "--json"]
    assert main(["fetch", complete.url, *wanting, *part, *sessions]) == ExitCode.OK
    assert read(out) == {
        f"{part}{layer}": arrays[f"layers.{layer}.{part}"][:32].tobytes()
        for layer in (1, 2)
        for part in "kv"
    }
    caught = capsys.readouterr()
    assert caught.err == ""
    first, *layers, last = events(caught.out)
    assert (first["event"], first["signed"], first["blocks"]) == ("publication", False, 2)
    assert layers == [{"event": "layer", "layer": 1}, {"event": "layer", "layer": 2}]
    assert (last["event"], last["layers"], last["objects"]) == ("complete", 2, 8)
    assert last["missing"] == []
    assert main(["fetch", complete.url, *wanting]) == ExitCode.FILE  # it exists
    assert "--force" in capsys.readouterr().err


def test_fetch_a_named_publication(
    keys: Keys, complete: Background, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [publication] = complete.producer.publications
    wanting = [*keys.wanting(), "--out", str(tmp_path / "out")]
    named = f"{complete.url}#{publication.namespace}--"
    assert main(["fetch", named, *wanting]) == ExitCode.OK
    shown = capsys.readouterr().out.splitlines()[0]
    assert shown == f"publication {publication.namespace}, 4 blocks, unsigned"
    wanting = [*keys.wanting(), "--out", str(tmp_path / "out2")]
    assert main(["fetch", f"{complete.url}#nonsense", *wanting]) == ExitCode.USAGE
    assert "expected 5" in capsys.readouterr().err
    assert main(["fetch", f"{complete.url}#x.zz", *wanting]) == ExitCode.USAGE
    assert "#<namespace>" in capsys.readouterr().err


def test_fetch_what_nobody_publishes(
    keys: Keys, complete: Background, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.key"
    Scope.generate().save(other)
    wanting = [*keys.wanting(), "--scope-key-file", str(other), "--wait", "0"]
    out = tmp_path / "out"
    assert main(["fetch", complete.url, *wanting, "--out", str(out)]) == ExitCode.NOT_FOUND
    assert "kvcs id" in capsys.readouterr().err
    assert not out.exists()


def test_fetch_without_a_signature_that_is_wanted(
    keys: Keys, complete: Background, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public = tmp_path / "p.pub"
    public.write_bytes(ProducerKey.generate().public.to_pem())
    wanting = [*keys.wanting(), "--trust", str(public), "--wait", "0"]
    out = tmp_path / "out"
    assert main(["fetch", complete.url, *wanting, "--out", str(out)]) == ExitCode.UNVERIFIED
    assert "signatures are required" in capsys.readouterr().err
    assert not out.exists()


def test_fetch_says_whose_signature_it_checked(
    keys: Keys, arrays: dict[str, AnyArray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = ProducerKey.generate()
    kid, public = key.key_id.hex(), tmp_path / "p.pub"
    public.write_bytes(key.public.to_pem())
    out = ["--out", str(tmp_path / "out"), "--force"]
    with producing(keys, key) as background:
        background.publish(arrays)
        fetch = ["fetch", background.url, *keys.wanting(), *out]
        assert main(fetch) == ExitCode.OK
        assert f", signed, not checked, kid {kid}\n" in capsys.readouterr().out
        assert main([*fetch, "--trust", str(public)]) == ExitCode.OK
        assert f", signature verified, kid {kid}\n" in capsys.readouterr().out
        assert main([*fetch, "--trust", str(public), "--json"]) == ExitCode.OK
        first = events(capsys.readouterr().out)[0]
        assert (first["signed"], first["verified_signature"], first["kid"]) == (True, True, kid)


def test_fetch_of_an_untrusted_server(
    keys: Keys, complete: Background, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanting, out = keys.wanting(), tmp_path / "out"
    del wanting[wanting.index("--ca") :]
    fetch = ["fetch", complete.url, *wanting, "--out", str(out)]
    assert main(fetch) == ExitCode.CONNECTION
    assert "--ca" in capsys.readouterr().err
    assert not out.exists()
    assert main([*fetch, "--insecure"]) == ExitCode.OK
    warning, *_ = capsys.readouterr().err.splitlines()
    assert warning.startswith("kvcs: warning: the certificate of 127.0.0.1")
    assert warning.endswith("is not verified (--insecure)")


def test_fetch_from_where_nobody_listens(
    keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    wanting = [*keys.wanting(), "--out", str(tmp_path / "out"), "--json"]
    assert main(["fetch", f"moqt://127.0.0.1:{port}/", *wanting]) == ExitCode.CONNECTION
    caught = capsys.readouterr()
    assert caught.out == ""
    failure = json.loads(caught.err)
    assert str(port) in failure["problem"]
    assert "does a producer or relay run there" in failure["hint"]


def test_fetch_an_unfinished_publication(
    keys: Keys, arrays: dict[str, AnyArray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Aborted in mid-production: the layers that came are written; the code says it is less."""
    out = tmp_path / "out"
    with producing(keys) as background:
        background.publish(arrays, layers=2)
        wanting = [*keys.wanting(), "--recover-for", "0", "--out", str(out), "--json"]
        with Command("fetch", background.url, *wanting) as fetch:
            assert fetch.event()["event"] == "publication"
            assert [fetch.event()["layer"] for _ in range(2)] == [0, 1]
            [publication] = background.producer.publications
            background.call(publication.abort("enough"))
            code, said, complaint = fetch.end()
    assert code == ExitCode.INCOMPLETE
    [last] = events(said)
    assert (last["event"], last["layers"], last["file"]) == ("incomplete", 2, str(out))
    assert len(last["missing"]) == 8
    assert last["missing"][0] == {
        "segment": 0,
        "layer": 2,
        "component": "k",
        "block": 0,
        "reason": None,
    }
    assert json.loads(complaint)["error"] == "incomplete"
    assert read(out) == {n: a.tobytes() for n, a in arrays.items() if not n.startswith("layers.2")}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_interrupted_fetch_writes_nothing(
    keys: Keys, arrays: dict[str, AnyArray], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with producing(keys) as background:
        background.publish(arrays, layers=1)
        wanting = [*keys.wanting(), "--out", str(out), "--json"]
        with Command("fetch", background.url, *wanting) as fetch:
            fetch.until("layer")
            code, said, _ = fetch.end(signal.SIGINT)
    assert (code, said) == (ExitCode.INTERRUPTED, "")
    assert list(tmp_path.iterdir()) == []


def test_watch_shows_layers_as_they_are_put(keys: Keys, arrays: dict[str, AnyArray]) -> None:
    with producing(keys) as background:
        publication = background.call(background.producer.publish(DESCRIPTOR, TOKENS))

        async def add_segment() -> Any:
            return publication.segment()

        segment = background.call(add_segment())
        with Command("watch", background.url, *keys.wanting(), "--json") as watch:
            assert watch.event()["event"] == "publication"
            for layer in range(DESCRIPTOR.layers):
                tensors = (arrays[f"layers.{layer}.{part}"] for part in "kv")
                background.call(segment.put_layer(layer, *tensors))
                record = watch.until("layer")
                assert (record["layer"], record["verified"]) == (layer, 8 * (layer + 1))
                assert (record["rejected"], record["missing"]) == ({}, 0)
            background.call(segment.complete())
            record = watch.until("complete")
            assert (record["layers"], record["verified"]) == (3, 24)
            assert watch.end() == (ExitCode.OK, "", "")


def test_watch_of_what_is_complete_in_lines(
    keys: Keys, complete: Background, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", complete.url, *keys.wanting(), "--layers", "1"]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("test: 3 layers, 2 heads x 8, bfloat16, nhd, blocks of 16")
    assert lines[1].endswith(", 4 blocks, unsigned")
    assert "layer 1," in lines[2]
    assert "complete: 1 layer," in lines[3]
    assert lines[3].endswith("verified 8, rejected 0, missing 0")


def test_watch_of_an_unfinished_publication(keys: Keys, arrays: dict[str, AnyArray]) -> None:
    with producing(keys) as background:
        background.publish(arrays, layers=1)
        arguments = [background.url, *keys.wanting(), "--recover-for", "0", "--json"]
        with Command("watch", *arguments) as watch:
            watch.until("layer")
            [publication] = background.producer.publications
            background.call(publication.abort("enough"))
            record = watch.until("incomplete")
            assert len(record["missing_objects"]) == 16
            assert watch.end()[0] == ExitCode.INCOMPLETE


def test_reader_of_the_output_goes_away(keys: Keys, arrays: dict[str, AnyArray]) -> None:
    """As in `kvcs watch ... | head -1`: a quiet end, no traceback."""
    with producing(keys) as background:
        background.publish(arrays, layers=1)
        with Command("watch", background.url, *keys.wanting(), "--json") as watch:
            watch.until("layer")
            assert watch.process.stdout is not None
            watch.process.stdout.close()
            watch.process.wait(30)
            assert watch.process.stderr is not None
            assert (watch.process.returncode, watch.process.stderr.read()) == (141, "")
            watch.process.stdout = None


@pytest.mark.parametrize("algorithm", list(SigningAlgorithm))
def test_inspect_shows_signatures(
    keys: Keys,
    arrays: dict[str, AnyArray],
    tmp_path: Path,
    algorithm: SigningAlgorithm,
    capsys: pytest.CaptureFixture[str],
) -> None:
    key, other = ProducerKey.generate(algorithm), ProducerKey.generate(algorithm)
    right, wrong = tmp_path / "right.pub", tmp_path / "wrong.pub"
    right.write_bytes(key.public.to_pem())
    wrong.write_bytes(other.public.to_pem())

    def inspect(*more: str) -> tuple[int, dict[str, Any]]:
        arguments = [background.url, "--ca", str(keys.certificate), "--listen-for", "0.3", "--json"]
        code = main(["inspect", *arguments, *more])
        return code, json.loads(capsys.readouterr().out)

    with producing(keys, key) as background:
        background.publish(arrays)
        [publication] = background.producer.publications
        code, record = inspect("--trust", str(right))
        assert code == ExitCode.OK
        [shown] = record["publications"]
        assert (shown["signature"], shown["kid"]) == ("verified", key.key_id.hex())
        assert shown["namespace"] == str(publication.namespace)
        assert shown["publication_id"] == publication.publication_id.hex()
        assert shown["manifest"]["descriptor"] == DESCRIPTOR.to_dict()
        [segment] = shown["manifest"]["segments"]
        assert (segment["blocks"], segment["complete"]) == (4, True)
        assert segment["tracks"][0] == {"name": "k.raw.s0", "listed_layers": 3}

        code, record = inspect()
        assert (code, record["publications"][0]["signature"]) == (ExitCode.OK, "unchecked")

        code, record = inspect("--trust", str(wrong))
        [shown] = record["publications"]
        assert (code, shown["signature"]) == (ExitCode.UNVERIFIED, "refused")
        assert "no trusted key" in shown["problem"]
        assert "manifest" not in shown


def test_inspect_lists_one_scope_or_all(
    keys: Keys, complete: Background, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["inspect", complete.url, "--ca", str(keys.certificate), "--listen-for", "0.3"]
    assert main([*base, "--scope-key-file", str(keys.scope_key)]) == ExitCode.OK
    said = capsys.readouterr().out
    assert "segment 0: blocks 0 to 3, k.raw.s0, v.raw.s0, complete" in said
    assert "signature unsigned" in said
    other = tmp_path / "other.key"
    Scope.generate().save(other)
    assert main([*base, "--scope-key-file", str(other)]) == ExitCode.NOT_FOUND
    assert "no publication of this scope's" in capsys.readouterr().out
