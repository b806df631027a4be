"""Nothing is remembered outside of the tests' own folders; how decoded pixels are kept there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spacedkd.data import pixel_cache


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pixels are kept, with few images counting as many."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pixel_cache, "MANY_IMAGES", 4)
    pixel_cache._print_once.cache_clear()
    return tmp_path / "cache" / "spacedkd" / "pixels"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images were decoded, each time that some were."""
    counts: list[int] = []
    whole = pixel_cache._decode_all

    def counted(stored: Any, *args: Any, **options: Any) -> Any:
        counts.append(len(stored))
        return whole(stored, *args, **options)

    monkeypatch.setattr(pixel_cache, "_decode_all", counted)
    return counts
