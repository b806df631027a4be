"""First weights that a network's own code does not draw: those of the transformers in the paper's code."""

from torch import nn

from spacedkd.errors import UserError
from spacedkd.spec import NetworkSpec

ZERO_HEAD = "zero-head"


def wants_zero_head(spec: NetworkSpec) -> bool:
    """Whether a network of timm's is to start with a zero head; our ResNets have an `init` of their own."""
    return not spec.is_ours and spec.options.get("init") == ZERO_HEAD


def zero_head(network: nn.Module, spec: NetworkSpec) -> None:
    """Classifiers of zeros, class tokens from a truncated normal (0.02) as positions are; all else stays as drawn.

    timm draws the classifier from that normal, and tokens from one of deviation 1e-6.
    """
    tokens = [token for name in ("cls_token", "dist_token") if (token := getattr(network, name, None)) is not None]
    heads = getattr(network, "get_classifier", lambda: ())()
    heads = heads if isinstance(heads, tuple) else (heads,)
    if not tokens or not heads or not all(isinstance(head, nn.Linear) for head in heads):
        raise UserError(
            f"init {ZERO_HEAD} is for transformers with a class token and a linear classifier, and {spec.name} is "
            "none: leave it out."
        )
    for token in tokens:
        nn.init.trunc_normal_(token, std=0.02)
    for head in heads:
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
