"""How manifests, names and signatures are shown: as records for machines, as lines for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcs.cli.output import counted

if TYPE_CHECKING:
    from kvcs.errors import MissingObject
    from kvcs.kvsp.descriptor import Descriptor
    from kvcs.manifest import Manifest, SegmentEntry
    from kvcs.names import PublicationName

__all__ = [
    "descriptor_line",
    "manifest_lines",
    "manifest_record",
    "missing_record",
    "name_record",
    "signature_text",
]


def name_record(name: PublicationName) -> dict[str, Any]:
    """Return the fields of a publication's namespace in hexadecimal."""
    return {
        "namespace": str(name.namespace()),
        "scope_id": name.scope_id.hex(),
        "compatibility_id": name.compatibility_id.hex(),
        "anchor_key": name.anchor_key.hex(),
        "publication_id": name.publication_id.hex(),
    }


def signature_text(key_id: bytes | None, *, is_trusted: bool) -> str:
    """Return what is known of a publication that is taken: its kid, and whether it was checked.

    `is_trusted`: there were keys to check it against.
    """
    if key_id is None:
        return "unsigned"
    how = "signature verified" if is_trusted else "signed, not checked"
    return f"{how}, kid {key_id.hex()}"


def missing_record(missing: MissingObject) -> dict[str, Any]:
    """Return which Object is missing, and why if it came and was rejected."""
    return {
        "segment": missing.segment,
        "layer": missing.layer,
        "component": missing.component.text,
        "block": missing.block,
        "reason": None if missing.reason is None else missing.reason.value,
    }


def manifest_record(manifest: Manifest) -> dict[str, Any]:
    """Return what a manifest says, digests left out but counted."""
    return {
        "descriptor": manifest.descriptor.to_dict(),
        "compatibility_id": manifest.descriptor.compatibility_id.hex(),
        "deterministic": manifest.deterministic,
        "blocks": manifest.blocks,
        "segments": [_segment_record(entry) for entry in manifest.segments],
    }


def _segment_record(entry: SegmentEntry) -> dict[str, Any]:
    return {
        "segment": entry.span.segment,
        "first_block": entry.span.first_block,
        "blocks": entry.span.blocks,
        "tracks": [
            {"name": str(track), "listed_layers": entry.listed_layers(track)}
            for track in entry.tracks
        ],
        "complete": entry.complete,
        "block_keys_sha256": entry.block_keys_sha256.hex(),
    }


def descriptor_line(descriptor: Descriptor) -> str:
    """Return the descriptor's main members in one line."""
    geometry = descriptor.geometry(0)
    return (
        f"{descriptor.model}: {counted(descriptor.layers, 'layer')}, "
        f"{counted(geometry.kv_heads, 'head')} x "
        f"{geometry.head_dim}, {descriptor.dtype.name}, {descriptor.layout.value}, "
        f"blocks of {counted(descriptor.block_tokens, 'token')}"
    )


def manifest_lines(manifest: Manifest) -> list[str]:
    """Return what a manifest says, a line a segment."""
    lines = [descriptor_line(manifest.descriptor)]
    if manifest.deterministic:
        lines.append("deterministic")
    for entry in manifest.segments:
        listed = min((entry.listed_layers(track) for track in entry.tracks), default=0)
        state = "complete" if entry.complete else f"{listed} of {manifest.layers} layers listed"
        lines.append(
            f"segment {entry.span.segment}: blocks {entry.span.first_block} to "
            f"{entry.span.stop_block - 1}, {', '.join(map(str, entry.tracks))}, {state}"
        )
    return lines
