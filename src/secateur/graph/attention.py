"""Attention with projections that are layers: torch's own reads their weights without calling them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from secateur.graph.layers import linear_of

_SIGNATURE = inspect.signature(nn.MultiheadAttention.forward)


@dataclass(frozen=True)
class Use:
    """How a network calls an attention: with one tensor as query, key and value, and with batches of samples."""

    is_self: bool
    has_batch: bool


class OpenAttention(nn.Module):
    """What nn.MultiheadAttention computes in evaluation mode, with a linear layer for each projection."""

    # Torch's encoder layers look at these, and call the attention if they are so.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, whole: nn.MultiheadAttention, use: Use) -> None:
        super().__init__()
        self.num_heads, self.batch_first, self.use = whole.num_heads, whole.batch_first, use
        self.scale = 1 / math.sqrt(whole.head_dim)
        if use.is_self and whole.in_proj_weight is not None:
            self.in_proj: nn.Linear | None = linear_of(whole.in_proj_weight, whole.in_proj_bias)
        else:
            self.in_proj = None
            self.q_proj, self.k_proj, self.v_proj = _projections(whole)
        self.out_proj = linear_of(whole.out_proj.weight, whole.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,  # a hint: the mask says the same
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attention's output and, if needed, its weights."""
        if self.in_proj is None:
            q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        elif query is key and key is value:
            q, k, v = self.in_proj(query).chunk(3, -1)
        else:
            raise ValueError(
                "the attention was compiled for one tensor as query, key and value, got several: compile the network "
                "for an example of those"
            )
        q, k, v = self._heads(q), self._heads(k), self._heads(v)
        mask = attention_mask(key_padding_mask, attn_mask, self.num_heads)
        weights = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) * self.scale
            weights = torch.softmax(scores if mask is None else scores + mask, -1)
            out = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if self.use.has_batch else weights.squeeze(0)
        else:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out = out.transpose(1, 2).flatten(2)  # (samples, steps, features)
        if not self.use.has_batch:
            out = out.squeeze(0)
        elif not self.batch_first:
            out = out.transpose(0, 1)
        projected: Tensor = self.out_proj(out)
        return projected, weights

    def _heads(self, x: Tensor) -> Tensor:
        """Return (samples, heads, steps, features of a head)."""
        if not self.use.has_batch:
            x = x.unsqueeze(0)
        elif not self.batch_first:
            x = x.transpose(0, 1)
        heads: Tensor = x.unflatten(-1, (self.num_heads, -1))
        return heads.transpose(1, 2)


def attention_mask(padding: Tensor | None, mask: Tensor | None, heads: int) -> Tensor | None:
    """Return what is added to the scores (samples, heads, queries, keys), or None."""
    for one in (padding, mask):
        if isinstance(one, fx.Proxy):  # a trace keeps it as a call: it looks at the types of masks
            kept: Tensor = one.tracer.create_proxy("call_function", attention_mask, (padding, mask, heads), {})
            return kept
    if padding is not None:
        padding = _added(padding).reshape(-1, 1, 1, padding.shape[-1])
    if mask is not None:
        mask = _added(mask)
        mask = mask.unflatten(0, (-1, heads)) if mask.dim() == 3 else mask
    return mask if padding is None else padding if mask is None else padding + mask


def _added(mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        return mask
    return torch.zeros(mask.shape).masked_fill(mask, -math.inf)


def _projections(whole: nn.MultiheadAttention) -> list[nn.Linear]:
    weights = (
        [whole.q_proj_weight, whole.k_proj_weight, whole.v_proj_weight]
        if whole.in_proj_weight is None
        else whole.in_proj_weight.detach().chunk(3)
    )
    biases = [None] * 3 if whole.in_proj_bias is None else whole.in_proj_bias.detach().chunk(3)
    return [linear_of(weight, bias) for weight, bias in zip(weights, biases, strict=True)]


def attention_uses(model: nn.Module, call: Callable[[], object]) -> dict[str, Use]:
    """Call a model, and return how it uses those of its attentions that can be opened, by name."""
    uses: dict[str, set[Use]] = {}
    handles = []
    for name, module in model.named_modules():
        if type(module) is not nn.MultiheadAttention or not _can_open(module) or _is_nested(model, name):
            continue

        def note(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], path: str = name) -> None:
            given = _SIGNATURE.bind(None, *args, **kwargs).arguments
            query, key, value = (given[each] for each in ("query", "key", "value"))
            assert isinstance(query, Tensor)
            uses.setdefault(path, set()).add(Use(query is key and key is value, query.dim() == 3))

        handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
    if handles:
        call()
    for handle in handles:
        handle.remove()
    return {name: next(iter(found)) for name, found in uses.items() if len(found) == 1}


def open_attention_(model: nn.Module, uses: dict[str, Use]) -> nn.Module:
    """Replace attentions of a model, in place."""
    for name, use in uses.items():
        whole = model.get_submodule(name)
        assert isinstance(whole, nn.MultiheadAttention)
        opened = OpenAttention(whole, use).eval()
        if name:
            model.set_submodule(name, opened)
        else:
            model = opened
    return model


def _can_open(whole: nn.MultiheadAttention) -> bool:
    return whole.bias_k is None and not whole.add_zero_attn and not whole._forward_hooks


def _is_nested(model: nn.Module, name: str) -> bool:
    """Return whether an attention is in an encoder that may leave out padding: torch then reads its weights itself."""
    names = name.split(".")
    above = (model.get_submodule(".".join(names[:k])) for k in range(len(names)))
    return any(isinstance(one, nn.TransformerEncoder) and one.use_nested_tensor for one in above)
