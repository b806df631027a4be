"""A trained student for others: a folder ready for a model hub, ONNX, and the upload.

`request.ExportRequest` checks an export, and `export.export` writes it; `card` is the model card.
"""
