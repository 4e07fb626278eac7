"""What observers of a run could learn: attacks on transcripts, each judged beside what guessing would give.

.. code-block:: python

    transcript = pf.Transcript.load("runs/fedavg")
    result = attacks.LiRA().run(transcript, auxiliary)
    print(result)

An attack is a frozen dataclass of settings. It sees a transcript and an :class:`Auxiliary` (public records, records to
ask about), never a client's data; the answers in ``auxiliary.truth`` go to the judge alone. ``ATTACKS`` holds all by
name, and ``privfl attack`` runs them from a file.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # the public names stand in __init__.pyi
