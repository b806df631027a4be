"""A trained student for others: a folder ready for a model hub, ONNX, and the way there."""
