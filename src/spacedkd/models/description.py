"""What a student's folder says of its network: config.json, as we and timm write it."""

from pathlib import Path
from typing import Any

from spacedkd.documents import read_json
from spacedkd.errors import UserError, first_line
from spacedkd.own_code import marked


def described(description: Path, trust_code: bool = False) -> dict[str, Any]:
    """What a student's folder says of its network."""
    try:
        found = marked(read_json(description), description, trust_code)
        return _checked(found)
    except (OSError, ValueError) as error:
        why = first_line(error)
        raise UserError(f"{description} does not describe the weights beside it: {why}. Name their file.") from None


_KINDS = {"architecture": str, "made_by": str, "label_names": list}
_KINDS |= dict.fromkeys(("options", "model_args", "pretrained_cfg"), dict) | dict.fromkeys(("mean", "std"), list)


def _checked(found: Any) -> dict[str, Any]:
    """A description whose parts are what they should be, where they are there."""
    if not isinstance(found, dict):
        raise ValueError("it is no object with keys and values")
    for known in (found, found.get("pretrained_cfg")):
        for name, kind in _KINDS.items():
            value: Any = known.get(name) if isinstance(known, dict) else None
            numbers: Any = value if name in ("mean", "std") and isinstance(value, list) else ()
            wrong = value is not None and not isinstance(value, kind)
            if wrong or any(type(one) not in (int, float) for one in numbers):
                raise ValueError(f"its {name} is {value!r}")
    return {name: value for name, value in found.items() if value is not None}
