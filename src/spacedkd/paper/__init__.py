"""The paper's tables, figures and theory, reproduced. Only the command line imports this package."""
