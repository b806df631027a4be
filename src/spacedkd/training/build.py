"""The models of a run, built from its resolved config; their first weights depend on the seed and the network alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from spacedkd.config.resolve import ResolvedRun, make_stream
from spacedkd.config.spec import NetworkSpec
from spacedkd.data.stream import last_batch_error
from spacedkd.methods.base import Ingredients
from spacedkd.models import factory
from spacedkd.models.pretrained import check_trained, keep_normalisation
from spacedkd.runtime.errors import UserError
from spacedkd.runtime.seeds import seed_for
from spacedkd.runtime.user_code import user_code


class Networks:
    """Builds the network of any role: the last role has the student's own, all others the teacher's if there is one."""

    def __init__(self, run: ResolvedRun) -> None:
        self.run = run
        self.teacher_was_built = False

    def __call__(
        self,
        role: str,
        *,
        fresh: bool = False,
        frozen: bool = False,
        like: str | None = None,
        spec: NetworkSpec | None = None,
    ) -> nn.Module:
        """Build the network of a role.

        `fresh` gives it first weights of its own, `frozen` takes a trained one that never learns, `like` names the role
        whose network it has, and `spec` is a network that belongs to no role.
        """
        config, info, roles = self.run.spec, self.run.data.info, self.run.method.roles
        if spec is None:
            spec = self.run.network(like or role)
            self.teacher_was_built |= (like or role) != roles[-1]
            make = self.run.objects.teacher if spec is config.teacher else self.run.objects.network
        else:
            make = None
        seed = self._seed(role, fresh)
        if not frozen:
            chain = (*self.run.method.frozen, *roles)
            trained = role in (chain[0], chain[-1])
            return factory.build_network(spec if trained else spec.untrained(), info, seed, make)
        check_trained(spec, len(info.classes))
        teacher = factory.build_network(spec, info, seed, make)
        keep_normalisation(teacher, spec, info.normalisation)
        return teacher

    def _seed(self, role: str, fresh: bool) -> int:
        # A trained teacher may come from a run with this seed, so a student that is to differ must not start as it did.
        spec = self.run.spec
        trained = (spec.teacher or spec.network).pretrained
        is_student = role == self.run.method.roles[-1]
        differs = fresh or not spec.same_init
        same = not differs or (is_student and not trained)
        return seed_for(spec.seed, "weights") if same else seed_for(spec.seed, "weights", role)


@user_code()
def build_models(run: ResolvedRun) -> dict[str, nn.Module]:
    """Build every model of a run's method, by name; models of roles that are not trained are left out."""
    networks, data = Networks(run), run.data
    ingredients = Ingredients(
        networks,
        sample=data.info.sample,
        classes=len(data.info.classes),
        images=data.count,
        batch_size=run.spec.batch_size,
        mixed=data.mixed,
        micro_batches=run.spec.accumulate,
    )
    with factory.seeded(seed_for(run.spec.seed, "extra modules")):
        models = run.method.models(ingredients)
    for role, learner in run.method.learners.items():
        if not isinstance(models.get(learner), nn.Module):
            raise UserError(f"Method {run.spec.method.name} has no model {learner!r}, which its {role} would update.")
    for name in run.averages.keys() & models.keys():
        raise UserError(
            f"An average of weights is kept in a model called {name!r}, and the method has one of that name: rename it."
        )
    if run.spec.teacher is not None and not networks.teacher_was_built:
        raise UserError(
            f"--teacher {run.spec.teacher.name} does not matter: method {run.spec.method.name} with these options has "
            "no teacher network. Leave it out, or use --method kd."
        )
    _check_last_batch(run, models)
    left_out = {learner for role, learner in run.method.learners.items() if role not in run.roles}
    kept = {run.method.learners[role] for role in run.roles}
    return {name: model for name, model in models.items() if name in kept or name not in left_out}


def _check_last_batch(run: ResolvedRun, models: dict[str, nn.Module]) -> None:
    """Refuse a last batch that is too small for BatchNorm, where there is one, or for the parts it is computed in."""
    ranks, cut = run.spec.engine.processes, run.spec.accumulate
    smallest = make_stream(run.spec, run.data, 0, ranks).size(run.steps_per_epoch - 1)
    parts = (part for model in models.values() for part in model.modules())
    min_per_rank = 2 if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in parts) else 1
    if smallest < min_per_rank * ranks and min_per_rank > 1:
        raise last_batch_error(smallest, "items", run.spec.batch_size, ranks)
    if smallest < min_per_rank * ranks * cut:
        norm = ", two for BatchNorm" if min_per_rank > 1 else ""
        way_out = "--drop-last or fewer parts" if run.spec.batch_size >= min_per_rank * ranks * cut else "fewer parts"
        raise UserError(
            f"The last batch of an epoch has {smallest} images for {ranks * cut} parts (--accumulate {cut} on {ranks} "
            f"device(s)), and each needs one{norm}: use {way_out}."
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: work too small to share took 36 times as long with threads that wait on busy cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
