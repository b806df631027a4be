"""The paper's Lemma and Theorem, measured.

`experiment.measure` trains small networks and counts where the inequalities hold; `findings` has the types of
theory.json and its sentences; `page.write_theory` writes theory.json and theory.html. Only `experiment` imports torch.
"""
