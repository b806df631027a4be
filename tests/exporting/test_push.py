"""The way to the hub, gone to a stand-in on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import close_session, constants

from spacedkd import load_student
from spacedkd.cli import main
from tests.cli.test_bad_input import refused
from tests.exporting.stand_in_hub import TOKEN, Hub, stand_in


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """What HF_ENDPOINT and HF_HOME decide when the client is imported, which it is already."""
    with stand_in() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        template = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        close_session()
        yield hub
        close_session()


def test_what_is_pushed_is_what_was_exported_and_opens_from_there(
    hub: Hub, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    main(["export", str(trained / "run"), "--to", str(folder), "--push", "me/small", "--private"])
    assert f"On the hub: {hub.address}/me/small" in capsys.readouterr().out
    (created,) = hub.created
    assert (created["name"], created["organization"]) == ("small", "me")
    assert created.get("private") is True or created.get("visibility") == "private"
    assert hub.files == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert b'timm.create_model("hf-hub:me/small", pretrained=True)' in hub.files["README.md"]
    opened = timm.create_model("hf-hub:me/small", pretrained=True, cache_dir=tmp_path / "cache").eval()
    images = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        assert torch.equal(opened(images), load_student(trained / "run")(images))


def test_what_the_hub_refuses_is_one_line_and_costs_no_file(
    hub: Hub, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refused = True
    folder = tmp_path / "out"
    line = refused(["export", str(trained / "run"), "--to", str(folder), "--push", "me/small"], capsys)
    assert "me/small cannot be uploaded: " in line
    assert f"hf upload me/small {folder}" in line
    assert (folder / "model.safetensors").exists()
    assert hub.files == {}


def test_without_a_token_a_name_or_a_network_nothing_is_begun(
    hub: Hub, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["export", str(trained / "run"), "--to", str(tmp_path / "out"), "--push"]
    assert "--push wants OWNER/NAME" in refused([*command, "small"], capsys)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    began = time.monotonic()
    assert "http://127.0.0.1:9 does not answer" in refused([*command, "me/small"], capsys)
    assert time.monotonic() - began < 60
    monkeypatch.delenv("HF_TOKEN")
    assert "set HF_TOKEN" in refused([*command, "me/small"], capsys)
    assert not (tmp_path / "out").exists()
