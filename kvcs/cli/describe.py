"""The descriptor of a cache in a safetensors file: read, or made from its shapes and what is said.

What a shape cannot tell is never guessed: the layout (8 tokens of 2 heads look like 2 heads of 8
tokens), the model, and the block size must be said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcs.cli.exits import CommandError, ExitCode
from kvcs.errors import TensorMismatch
from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.shapes import Component, Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcs.cli.tensors import CacheFile, NameTemplate
    from kvcs.kvsp.shapes import AnyArray

__all__ = ["DESCRIPTOR_KEY", "CacheLayers", "Said", "describe", "stored_descriptor"]

DESCRIPTOR_KEY = "kvcs.descriptor"
"""Where a safetensors file's metadata holds its descriptor as JSON; `kvcs fetch` writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the user says about a cache that its shapes cannot tell."""

    model: str | None = None
    revision: str | None = None
    block_tokens: int | None = None
    layout: Layout | None = None

    @property
    def is_empty(self) -> bool:
        """True when nothing was said."""
        return self == Said()


@dataclass(frozen=True, slots=True)
class CacheLayers:
    """The K and V tensors of a file by layer, named by two templates."""

    file: CacheFile
    k_names: NameTemplate
    v_names: NameTemplate

    def k(self, layer: int) -> AnyArray:
        """Return a layer's K tensor; CommandError when the file has none."""
        return self.file.tensor(self.k_names.name(layer))

    def v(self, layer: int, descriptor: Descriptor) -> AnyArray | None:
        """Return a layer's V tensor; None where the descriptor has none."""
        if not descriptor.geometry(layer).has(Component.V):
            return None
        return self.file.tensor(self.v_names.name(layer))

    def check(self, descriptor: Descriptor) -> int:
        """Return how many tokens every tensor holds, all shapes and dtypes being the descriptor's.

        Raises: TensorMismatch, CommandError for a tensor that is missing.
        """
        counts: dict[int, str] = {}
        for layer in range(descriptor.layers):
            geometry = descriptor.geometry(layer)
            for component in geometry.parts(Component.KV):
                template = self.k_names if component is Component.K else self.v_names
                name = template.name(layer)
                shape = self.file.shape(name)
                dtype = self.file.dtype_name(name)
                axis = geometry.token_axis()
                tokens = shape[axis] if len(shape) == 3 else 0
                expected = geometry.shape(component, tokens)
                if dtype != geometry.dtype.name or shape != expected:
                    heads, dim = geometry.kv_heads, geometry.dim(component)
                    wanted = (
                        f"[tokens, {heads}, {dim}]" if axis == 0 else f"[{heads}, tokens, {dim}]"
                    )
                    raise TensorMismatch(
                        f"{self.file.path}: tensor {name!r} is {dtype} {list(shape)}, the "
                        f"descriptor says {geometry.dtype.name} {wanted}"
                    )
                counts.setdefault(tokens, name)
        if len(counts) > 1:
            (few, first), (many, second) = sorted(counts.items())[:2]
            raise TensorMismatch(
                f"{self.file.path}: tensor {first!r} holds {few} tokens, {second!r} {many}"
            )
        return next(iter(counts))


def stored_descriptor(metadata: Mapping[str, str]) -> Descriptor | None:
    """Return the descriptor in a file's metadata, None when there is none."""
    text = metadata.get(DESCRIPTOR_KEY)
    return None if text is None else Descriptor.from_json(text)


def describe(layers: CacheLayers, said: Said) -> Descriptor:
    """Return the descriptor of a file: stored in it, or made from its shapes and what was said.

    Raises: CommandError naming what was not said, TensorMismatch, InvalidDescriptor.
    """
    if said.is_empty and (stored := stored_descriptor(layers.file.metadata)) is not None:
        return stored
    needed = {
        "--model": said.model,
        "--block-tokens": said.block_tokens,
        "--layout": said.layout and said.layout.value,
    }
    missing = [option for option, value in needed.items() if value is None]
    if said.layout is None or missing:
        raise CommandError(
            ExitCode.USAGE,
            f"{layers.file.path}: no descriptor, and not said: {', '.join(missing)}",
            hint="--descriptor FILE, or say these: shapes cannot tell them",
        )
    count = layers.file.count_layers(layers.k_names)
    with_v = set(layers.v_names.layers(layers.file.names))
    dims = [_dims(layers, layer, said.layout, has_v=layer in with_v) for layer in range(count)]
    base = dims[0]
    overrides = {str(layer): dim for layer, dim in enumerate(dims) if dim != base}
    if base["v_head_dim"] == base["head_dim"]:
        base = {name: dim for name, dim in base.items() if name != "v_head_dim"}
    members: dict[str, Any] = {
        "model": said.model,
        "layers": count,
        "block_tokens": said.block_tokens,
        "dtype": layers.file.dtype_name(layers.k_names.name(0)),
        "layout": said.layout.value,
        **base,
    }
    if overrides:
        members["layer_overrides"] = overrides
    if said.revision is not None:
        members["revision"] = said.revision
    return Descriptor.from_dict(members)


def _dims(layers: CacheLayers, layer: int, layout: Layout, *, has_v: bool) -> dict[str, int]:
    def shape(template: NameTemplate) -> tuple[int, ...]:
        name = template.name(layer)
        found = layers.file.shape(name)
        if len(found) != 3:
            raise TensorMismatch(
                f"{layers.file.path}: tensor {name!r} has shape {list(found)}, expected the three "
                f"axes of {layout.value}: {_AXES[layout]}"
            )
        return found

    k = shape(layers.k_names)
    v = shape(layers.v_names) if has_v else None
    return {
        "kv_heads": k[1] if layout is Layout.NHD else k[0],
        "head_dim": k[2],
        "v_head_dim": 0 if v is None else v[2],
    }


_AXES = {Layout.NHD: "tokens, heads, dim", Layout.HND: "heads, tokens, dim"}
