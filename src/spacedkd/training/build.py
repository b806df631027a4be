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
    """Makes the network of any role: the last role has the student's own, all others the teacher's if there is one."""

    def __init__(self, plan: ResolvedRun) -> None:
        self.plan = plan
        self.teacher_was_asked_for = False

    def __call__(
        self,
        role: str,
        *,
        fresh: bool = False,
        frozen: bool = False,
        like: str | None = None,
        spec: NetworkSpec | None = None,
    ) -> nn.Module:
        run, shown, roles = self.plan.spec, self.plan.data.info, self.plan.method.roles
        if spec is None:
            spec = self.plan.network(like or role)
            self.teacher_was_asked_for |= (like or role) != roles[-1]
            make = self.plan.objects.teacher if spec is run.teacher else self.plan.objects.network
        else:
            make = None
        seed = self._seed(role, fresh)
        if not frozen:
            chain = (*self.plan.method.frozen, *roles)
            trained = role in (chain[0], chain[-1])
            return factory.build_network(spec if trained else spec.untrained(), shown, seed, make)
        check_trained(spec, len(shown.classes))
        teacher = factory.build_network(spec, shown, seed, make)
        keep_normalisation(teacher, spec, shown.normalisation)
        return teacher

    def _seed(self, role: str, fresh: bool) -> int:
        # A trained teacher may come from a run with this seed, so a student that is to differ must not start as it did.
        run = self.plan.spec
        trained = (run.teacher or run.network).pretrained
        is_student = role == self.plan.method.roles[-1]
        differs = fresh or not run.same_init
        same = not differs or (is_student and not trained)
        return seed_for(run.seed, "weights") if same else seed_for(run.seed, "weights", role)


@user_code()
def build_models(plan: ResolvedRun) -> dict[str, nn.Module]:
    """Every model of the plan's method, by name."""
    networks, data = Networks(plan), plan.data
    ingredients = Ingredients(
        networks,
        sample=data.info.sample,
        classes=len(data.info.classes),
        images=data.count,
        batch_size=plan.spec.batch_size,
        mixed=data.mixed,
        micro_batches=plan.spec.accumulate,
    )
    with factory.seeded(seed_for(plan.spec.seed, "extra modules")):
        models = plan.method.models(ingredients)
    for role, learner in plan.method.learners.items():
        if not isinstance(models.get(learner), nn.Module):
            raise UserError(f"Method {plan.spec.method.name} has no model {learner!r}, which its {role} would update.")
    if plan.spec.ema is not None and "average" in models:
        raise UserError("--ema keeps a model called 'average', and the method has one of that name: rename it.")
    if plan.spec.teacher is not None and not networks.teacher_was_asked_for:
        raise UserError(
            f"--teacher {plan.spec.teacher.name} does not matter: method {plan.spec.method.name} as asked for has no "
            "teacher network. Leave it out, or use --method kd."
        )
    _check_last_batch(plan, models)
    left_out = {learner for role, learner in plan.method.learners.items() if role not in plan.roles}
    kept = {plan.method.learners[role] for role in plan.roles}
    return {name: model for name, model in models.items() if name in kept or name not in left_out}


def _check_last_batch(plan: ResolvedRun, models: dict[str, nn.Module]) -> None:
    """Refuse a last batch that is too small for BatchNorm, where there is one, or for the parts it is computed in."""
    ranks, cut = plan.spec.engine.processes, plan.spec.accumulate
    smallest = make_stream(plan.spec, plan.data, 0, ranks).size(plan.steps_per_epoch - 1)
    parts = (part for model in models.values() for part in model.modules())
    least = 2 if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in parts) else 1
    if smallest < least * ranks and least > 1:
        raise last_batch_error(smallest, "items", plan.spec.batch_size, ranks)
    if smallest < least * ranks * cut:
        norm = ", two for BatchNorm" if least > 1 else ""
        way_out = "--drop-last True or fewer parts" if plan.spec.batch_size >= least * ranks * cut else "fewer parts"
        raise UserError(
            f"The last batch of an epoch has {smallest} images for {ranks * cut} parts (--accumulate {cut} on {ranks} "
            f"device(s)), and each needs one{norm}: use {way_out}."
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """For work that is too small to be shared: threads that wait for each other on busy cores take 36 times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
