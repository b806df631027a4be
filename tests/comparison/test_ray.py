"""Runs in a Ray cluster: a real one, of which a node is killed; nothing in the results tells."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from spacedkd import EngineSpec, MethodSpec, NetworkSpec, OptimizerSpec, Spaced, UserError, compare, read_spec, train
from spacedkd.cli import main
from spacedkd.comparison.job import Job
from spacedkd.comparison.scheduler import plan_jobs, run_jobs
from spacedkd.runs import checkpoint
from tests.cli.test_cli import NETWORK
from tests.comparison.fragile import Fragile
from tests.comparison.processes import holder
from tests.conftest import TINY

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
cluster_utils = pytest.importorskip("ray.cluster_utils")
WorkerCrashedError = pytest.importorskip("ray.exceptions").WorkerCrashedError
pytestmark = pytest.mark.xdist_group("ray")

LONGER = replace(TINY, epochs=4)
ARMS = {
    "no KD": replace(LONGER, method=MethodSpec("none")),
    "online": LONGER,
    "spaced": replace(LONGER, schedule=Spaced("2st")),
}


def silent(job: Job, moment: Any) -> None:
    pass


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that only directs, two nodes that train, and one session, whose processes serve most tests.

    A lost node is noticed soon, and processes get their share of the cores, which the tests beside them use too.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    config = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3, "worker_niceness": 0}
    head = {**_node(0), "_system_config": config, "include_dashboard": False}
    started = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        started.add_node(**_node(1))
    ray.init(address=started.address, log_to_driver=False, logging_level="ERROR")
    yield started
    ray.shutdown()
    started.shutdown()


def _node(cpus: int) -> dict[str, Any]:
    return {"num_cpus": cpus, "num_gpus": 0, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every arm trained by itself, here."""
    out = tmp_path_factory.mktemp("alone")
    for job in plan_jobs(ARMS, [0], out):
        train(job.spec, job.folder)
    return out


def assert_same_bits(folder: Path, alone: Path) -> None:
    for name in ("journal.jsonl", "student/model.safetensors"):
        assert (folder / name).read_bytes() == (alone / name).read_bytes()
    results = [json.loads((place / "result.json").read_text()) for place in (folder, alone)]
    for found in results:
        del found["seconds"], found["environment"]
        found["plan"].pop("computed_here", None)
    assert results[0] == results[1]


def test_a_lost_node_costs_nothing_but_time(
    cluster: Any, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node of the run that records is killed while another waits for it, on the only node that is left."""
    monkeypatch.setattr("spacedkd.comparison.ray_pool.PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr("spacedkd.comparison.ray_pool.REPORT_SECONDS", 0.02)  # to strike before the run has ended
    jobs = plan_jobs(ARMS, [0], tmp_path)
    turns: dict[str, list[int]] = {label: [] for label in ARMS}
    recorder = 0
    lost_at: int | None = None

    def kill(job: Job, moment: Any) -> None:
        nonlocal recorder, lost_at
        turns[job.label].append(moment.turn)
        if job.label == "online" and moment.turn >= 9 and not recorder:
            recorder = holder(job.folder)
            os.kill(recorder, signal.SIGSTOP)
        if job.label != "online" and recorder and lost_at is None:
            raylet = int(Path(f"/proc/{recorder}/stat").read_text().split(") ")[1].split()[1])
            (node,) = [
                node
                for node in cluster.worker_nodes
                if raylet in [info.process.pid for info in node.all_processes["raylet"]]
            ]
            cluster.remove_node(node, allow_graceful=False)
            os.kill(recorder, signal.SIGKILL)  # it could not notice in its sleep
            lost_at = len(turns["online"])

    run_jobs(jobs, None, kill, ray=cluster.address)
    assert lost_at is not None
    assert 0 < turns["online"][lost_at] < turns["online"][-1] == 40, "it went on from a checkpoint, and ended"
    assert read_spec(tmp_path / "spaced/seed0").teacher_path == str((tmp_path / "online/seed0").resolve())
    for job in jobs:
        assert_same_bits(job.folder, alone / job.folder.relative_to(tmp_path))


def test_mistakes_are_the_same_line_as_here(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wild = replace(TINY, method=MethodSpec("none"), optimizer=OptimizerSpec(lr=1e30))
    with pytest.raises(UserError, match="diverged") as here:
        train(wild, tmp_path / "here")
    (there,) = run_jobs(plan_jobs({"wild": wild}, [0], tmp_path), None, silent, ray=cluster.address).values()
    assert str(there) == f"wild, seed 0: {here.value}"
    many = plan_jobs({"many": replace(TINY, engine=EngineSpec(threads=64))}, [0], tmp_path)
    with pytest.raises(UserError, match="No node of the Ray cluster has the 64 CPUs that a run needs.*threads"):
        run_jobs(many, None, silent, ray=cluster.address)
    (tmp_path / "not shared").mkdir()
    monkeypatch.setattr("spacedkd.comparison.ray_pool.Path.mkdir", lambda *args, **options: None)
    elsewhere = plan_jobs({"elsewhere": TINY}, [0], tmp_path / "not shared")
    (lost,) = run_jobs(elsewhere, None, silent, ray=cluster.address).values()
    assert re.search("finds no folder .*elsewhere. All nodes must share the storage", str(lost))


def test_an_exception_is_the_failure_of_its_run_and_the_others_go_on(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "how").write_text("strange")
    fragile = NetworkSpec(f"{Fragile.__module__}:Fragile", {"file": str(tmp_path / "how")})
    sound = replace(TINY, epochs=1, network=NetworkSpec(f"{Fragile.__module__}:Sound"))
    arms = {"fragile": replace(sound, network=fragile, schedule=Spaced("1ep")), "sound": sound}
    found = compare(arms, tmp_path / "out", seeds=1, ray=cluster.address).document
    assert [arm["label"] for arm in found["arms"]] == ["sound"]
    ((label, line),) = [(one["label"], one["said"]) for one in found["failed"]]
    assert label == "fragile"
    assert "strange" in line
    (tmp_path / "how").unlink()
    assert compare(arms, tmp_path / "out", seeds=1, ray=cluster.address).failed == []


def test_room_is_what_living_nodes_have(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spacedkd.comparison.ray_pool import RayPool

    sizes = [(True, {"CPU": 8.0, "GPU": 2.0}), (True, {"CPU": 5.0}), (False, {"CPU": 64.0, "GPU": 8.0})]
    nodes = [{"Alive": alive, "Resources": size} for alive, size in sizes]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    for engine, kind, places in (
        (EngineSpec(threads=3), "GPU", 2),
        (EngineSpec(threads=3, pipeline=True), "GPU", 1),
        (EngineSpec(threads=3, accelerator="cpu"), "CPU", 2 + 1),
        (EngineSpec(threads=1, accelerator="cpu"), "CPU", 9),
    ):
        jobs = [Job(f"{number}", 0, replace(TINY, engine=engine), tmp_path) for number in range(9)]
        pool = RayPool(jobs, None)
        assert (pool.kind, pool.capacity()) == (kind, places)
        assert RayPool(jobs, 1).capacity() == 1


def test_a_run_that_is_killed_goes_on_but_not_for_ever(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, killed = ray.get, 0

    def interrupted(handle: Any) -> Any:
        nonlocal killed
        found = get(handle)
        if found is True:
            killed += 1
            raise WorkerCrashedError
        return found

    monkeypatch.setattr(ray, "get", interrupted)
    (lost,) = run_jobs(
        plan_jobs({"one": replace(TINY, epochs=1)}, [0], tmp_path), None, silent, ray=cluster.address
    ).values()
    assert "killed from outside" in str(lost)
    assert killed == 3


def test_stopped_runs_go_on_from_the_command_line(
    cluster: Any, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (
        f"compare --ray {cluster.address} --out runs --seeds 1 --data digits --train-limit 40 {NETWORK} "
        "--epochs 4 --batch-size 8 --lr 0.02 --precision 32-true --log-every 2st --save-every 4st --threads 1"
    ).split()
    words += ["--arm", "online: --method kd", "--arm", "spaced: --method kd --interval 2st"]

    def stop(self: Any) -> Any:
        if (tmp_path / "runs/online/seed0/checkpoint/latest.safetensors").exists():
            os.kill(os.getpid(), signal.SIGTERM)
        return []

    cancel, forced = ray.cancel, []

    def asked(handle: Any, force: bool = False) -> None:
        forced.append(handle) if force else cancel(handle)

    with monkeypatch.context() as stopping:
        stopping.setattr("spacedkd.comparison.ray_pool.RayPool.events", stop)
        stopping.setattr(ray, "cancel", asked)
        with pytest.raises(SystemExit) as stopped:
            main(words)
    assert stopped.value.code == 143
    assert not forced, "of a task that has ended, this may abort the process that asks"
    assert "everything is saved. Resume with: the same command" in capsys.readouterr().err
    run = tmp_path / "runs/online/seed0"
    with FileLock(run / ".lock", timeout=20):
        assert not [*tmp_path.rglob("result.json")], "the task was stopped before its end"
        last = json.loads((run / "journal.jsonl").read_text().splitlines()[-1])["turn"]
        assert checkpoint.newest(run / "checkpoint/latest.safetensors").position.turns >= last, (
            "and has saved all it has learned"
        )
    ray.shutdown()  # from here on in a session of its own
    main(words)
    assert not ray.is_initialized()
    assert "[2 of 2]" in capsys.readouterr().out
    for name in ("online/seed0", "spaced/seed0"):
        assert_same_bits(tmp_path / "runs" / name, alone / name)


def test_no_cluster_and_no_ray_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray.shutdown()
    jobs, begun = plan_jobs({"one": TINY}, [0], tmp_path), time.monotonic()
    with pytest.raises(UserError, match=r"no Ray cluster can be reached at '127.0.0.1:1' .* ray start --head"):
        run_jobs(jobs, None, silent, ray="127.0.0.1:1")
    assert time.monotonic() - begun < 20
    monkeypatch.setenv("RAY_ADDRESS", "localhost:1")
    with pytest.raises(UserError, match=r"no Ray cluster can be reached at '.*:1' .* ray start --head"):
        run_jobs(jobs, None, silent, ray="auto")
    with pytest.raises(UserError, match=r"no Ray cluster can be reached at 'nonsense'"):
        run_jobs(jobs, None, silent, ray="nonsense")
    monkeypatch.delitem(sys.modules, "spacedkd.comparison.ray_pool")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'spacedkd\[ray\]'"):
        run_jobs(jobs, None, silent, ray="auto")
    assert not [*tmp_path.iterdir()]
