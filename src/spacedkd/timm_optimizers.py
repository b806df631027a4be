"""The optimizers timm knows by name. timm, and with it torch, is imported only when one of them is asked for."""

from __future__ import annotations

from spacedkd.errors import UserError, unknown
from spacedkd.torchvision_operators import declare_missing


def has_momentum(name: str) -> bool:
    """Whether timm's optimizer of that name has a momentum to set; a name timm does not know is refused.

    `lookahead_adamw` is adamw inside Lookahead, as timm writes it.
    """
    declare_missing()
    from timm.optim import get_optimizer_info, list_optimizers

    try:
        info = get_optimizer_info(name.lower().rpartition("_")[2])
    except ValueError:
        raise unknown("optimizer", name, ["sgd", "adamw", *list_optimizers()]) from None
    if info.second_order:
        raise UserError(f"Optimizer {name} wants second derivatives, which are not computed here: choose another.")
    return bool(info.has_momentum)
