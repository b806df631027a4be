"""Seeds: every random draw has its own, computed from the run's seed and the name of the draw.

Every random draw of a run is named by what it is for, so that its seed is a pure function of the run's seed
and that name: no generator is ever carried from one step to the next, and nothing needs to be saved.
"""

import hashlib


def seed_for(seed: int, *name: str | int) -> int:
    """Return the 63-bit seed of the draw `name` in the run with this `seed`.

    >>> seed_for(0, "dropout", "student", 7) == seed_for(0, "dropout", "student", 7)
    True
    >>> seed_for(0, "augment", 7) == seed_for(0, "augment", 8)
    False
    """
    text = "/".join(str(part) for part in (seed, *name))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
