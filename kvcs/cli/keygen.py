"""`kvcs keygen`: scope keys, producer keys, and certificates for trying out."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  Typer reads annotations when it runs
from typing import Annotated

import typer

from kvcs.cli import options  # noqa: TC001  as above
from kvcs.cli.exits import CommandError, ExitCode
from kvcs.cli.files import check_output, create, writing
from kvcs.cli.output import Output
from kvcs.cli.usage import Command, Group
from kvcs.keys import ProducerKey, SigningAlgorithm
from kvcs.kvsp.identity import Scope
from moqt.tls import generate_certificate

__all__ = ["keygen"]

SECRET = 0o600
PUBLIC = 0o644

keygen = typer.Typer(
    help="Make a scope key, a producer key, or a certificate for trying out.", cls=Group
)


@keygen.command("scope", cls=Command)
def scope_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the key goes.")],
    force: options.Force = False,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Make a scope key: the secret that producers and consumers share.

    32 random octets in hexadecimal, readable for the owner alone.
    """
    check_output(file, force=force)
    scope = Scope.generate()
    create(file, scope.save, force=force)
    scope_id = scope.scope_id.hex()
    Output(as_json=as_json).emit(
        {"file": str(file), "scope_id": scope_id}, f"{file}: scope key, scope_id {scope_id}"
    )


@keygen.command("producer", cls=Command)
def producer_key(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where the private key goes; FILE.pub beside it.")
    ],
    algorithm: Annotated[
        str, typer.Option("--algorithm", metavar="NAME", help="eddsa or es256.")
    ] = "eddsa",
    force: options.Force = False,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Make a producer key, which signs manifests, and its public key, which consumers trust.

    Both are PEM. The public key goes to the same name with the ending .pub.
    """
    names = {choice.name.lower(): choice for choice in SigningAlgorithm}
    if algorithm.lower() not in names:
        raise CommandError(
            ExitCode.USAGE, f"{algorithm!r} is no algorithm", hint=f"one of {', '.join(names)}"
        )
    public = file.with_suffix(".pub")
    if public == file:
        raise CommandError(ExitCode.USAGE, f"{file}: .pub is the public key's ending")
    check_output(file, force=force)
    check_output(public, force=force)
    key = ProducerKey.generate(names[algorithm.lower()])
    create(file, key.save, force=force)
    create(public, writing(key.public.to_pem(), PUBLIC), force=force)
    record = {
        "file": str(file),
        "public_file": str(public),
        "algorithm": key.algorithm.name.lower(),
        "kid": key.key_id.hex(),
    }
    Output(as_json=as_json).emit(
        record,
        f"{file}: producer key, kid {key.key_id.hex()}\n{public}: its public key, for --trust",
    )


@keygen.command("certificate", cls=Command)
def certificate(
    file: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="Where it goes.")],
    key_file: Annotated[Path, typer.Argument(metavar="KEY", help="Where its key goes.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="Name or address that it is for. Repeatable; else localhost, 127.0.0.1 and ::1.",
        ),
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="How long it is good.")] = 30,
    force: options.Force = False,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Make a self-signed certificate, for trying out: clients trust it with --ca CERTIFICATE."""
    if file == key_file:
        raise CommandError(ExitCode.USAGE, f"{file}: certificate and key are two files")
    check_output(file, force=force)
    check_output(key_file, force=force)
    hosts = host or ["localhost", "127.0.0.1", "::1"]
    try:
        pair = generate_certificate(hosts, days=days)
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"--host: {error}") from error
    create(key_file, writing(pair.private_key, SECRET), force=force)
    create(file, writing(pair.certificate, PUBLIC), force=force)
    Output(as_json=as_json).emit(
        {"file": str(file), "key_file": str(key_file), "hosts": hosts, "days": days},
        f"{file}: certificate for {', '.join(hosts)}, good for {days} days\n{key_file}: its key",
    )
