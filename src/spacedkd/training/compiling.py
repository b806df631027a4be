"""Networks compiled block by block.

A block's `forward` alone is compiled, and what stands around it is not: hooks of early exits and hints, counts of
passes, DDP. Blocks of one kind share what was compiled for them, whichever role they belong to; torch compiles again
for another mode (learning or standing still) or shape, and keeps them all, so that a change of roles costs nothing.
"""

from collections.abc import Iterable

import torch
from torch import nn

from spacedkd.errors import UserError, first_line
from spacedkd.training.sharding import blocks

BACKEND = "inductor"
MOST = 256
"""forms of one block's code that are kept: for every mode, shape and width of a network"""


def compile_blocks(models: Iterable[nn.Module], device: torch.device) -> None:
    """Compile every block of these models when it is first called."""
    _check_compiler(device)
    torch._dynamo.config.recompile_limit = MOST
    torch._dynamo.config.accumulated_recompile_limit = 4 * MOST
    found = [block for model in models for block in blocks(model)]
    if not found:
        raise UserError("--compile finds no blocks, parts of an nn.Sequential or nn.ModuleList: leave it out.")
    for block in found:
        block.forward = torch.compile(block.forward, backend=BACKEND)


def _check_compiler(device: torch.device) -> None:
    if BACKEND != "inductor":
        return
    if device.type != "cpu":
        from torch.utils._triton import has_triton

        if not has_triton():
            raise UserError(f"--compile needs triton on {device.type}, which is not installed here: leave it out.")
        return
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:
        raise UserError(f"--compile needs a C++ compiler such as g++: {first_line(error)}. Leave it out.") from None
