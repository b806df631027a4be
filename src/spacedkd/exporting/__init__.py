"""A trained student for others: a folder ready for a model hub, ONNX, and the upload.

`request.ExportRequest` checks an export, and `export.export` writes it; `card` is the model card.
"""

import lazy_loader

from spacedkd.runtime.errors import with_way_out

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = with_way_out(__getattr__, __name__)
