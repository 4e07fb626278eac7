"""The claim fuzzer: experiments drawn at random, trained in two neighbouring worlds, and held to what they claim.

    python -m audits.fuzz --experiments 20000 --seed 0 --noisy 500

:mod:`~audits.fuzz.experiment` says what an experiment is, :mod:`~audits.fuzz.drawing` draws one,
:mod:`~audits.fuzz.worlds` builds and trains its two worlds, :mod:`~audits.fuzz.tape` notes what is noised and what
leaves, :mod:`~audits.fuzz.exact` compares the worlds without noise and :mod:`~audits.fuzz.noisy` with it.
"""
