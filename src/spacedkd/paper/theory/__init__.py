"""The paper's Lemma and Theorem: measured by `measure`, shown by `page`, which never imports torch."""
