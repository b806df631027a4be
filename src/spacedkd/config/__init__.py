"""The configuration of a run, from what a user asks for to what is trained.

`spec` has the dataclasses of a run (`RunSpec`, `DataSpec`, `NetworkSpec`, ...; `optimizer` those of the optimizer and
the learning rate) and reads them (`read_spec`). `serialization` takes them to JSON and back and changes values by path.
`recipes.recipe` gives the settings of the paper, with the quirks of its released code. `objects.Objects` are what a
user gives in Python, and `resolve.resolve` decides everything that a spec leaves open: only these two import torch.
"""
