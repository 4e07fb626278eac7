"""Question pairs as DistilBERT reads them: its published words and weights, which have to be fetched."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import privfl as pf
from privfl.data import info
from privfl.data.files import data_folder, locate
from privfl.data.questions import read_mqp
from privfl.errors import DataError
from privfl.models import build
from privfl.models.distilbert import load_published

FOLDER = "distilbert-base-uncased"
FILES = ("vocab.txt", "pytorch_model.bin")
LENGTH = 200
SIZES: Mapping[str, Any] = {}
"""Of the network, if they are not the published ones."""
_WORD = re.compile(r"\w+|[^\w\s]")


def published(name: str) -> Path:
    """A file of the published model.

    Raises:
        DataError: it is not in the folder that PRIVFL_DATA names.
    """
    folder = data_folder()
    if folder is None or not (folder / FOLDER / name).exists():
        wanted = " and ".join(f"{FOLDER}/{file}" for file in FILES)
        raise DataError(f"DistilBERT has no download; set PRIVFL_DATA to a folder that holds {wanted}")
    return folder / FOLDER / name


def pieces(text: str, known: Mapping[str, int]) -> list[int]:
    """The ids of the word pieces of ``text``, each the longest that is ``known``, as BERT's uncased models cut words.

    >>> pieces("Unhappy, é!", {"un": 5, "##happy": 6, ",": 7, "e": 8, "[UNK]": 1})
    [5, 6, 7, 8, 1]
    """
    plain = "".join(one for one in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(one) != "Mn")
    found: list[int] = []
    for word in _WORD.findall(plain.replace("_", " _ ")):
        start, own = 0, []
        while start < len(word):
            cuts = ((end, ("##" if start else "") + word[start:end]) for end in range(len(word), start, -1))
            end, piece = next(((end, piece) for end, piece in cuts if piece in known), (0, ""))
            if not end:
                own = [known["[UNK]"]]
                break
            own.append(known[piece])
            start = end
        found += own
    return found


def question_pairs() -> pf.Dataset:
    """Both questions of a pair, cut to ``LENGTH`` pieces together; all rows for training, each doctor a client."""
    lines = published("vocab.txt").read_text(encoding="utf-8").splitlines()
    known = {line.rstrip("\n"): number for number, line in enumerate(lines)}
    entry = info("medical-questions")
    (path,) = locate(entry.name, entry.layouts).paths.values()
    doctors, first, second, labels = read_mqp(path)
    tokens = torch.full((len(labels), LENGTH), known["[PAD]"])
    for row, (one, two) in enumerate(zip(first, second, strict=True)):
        room = (LENGTH - 3) // 2
        ids = [known["[CLS]"], *pieces(one, known)[:room], known["[SEP]"], *pieces(two, known)[:room], known["[SEP]"]]
        tokens[row, : len(ids)] = torch.tensor(ids)
    names, owners = np.unique(doctors, return_inverse=True)
    targets, clients = torch.tensor(labels), torch.from_numpy(owners)
    return pf.Dataset(
        entry.name,
        tokens,
        targets,
        tokens[:1],
        targets[:1],
        2,
        clients,
        client_names=tuple(f"doctor {number}" for number in names),
        vocabulary=len(known),
    )


def distilbert(data: pf.Dataset) -> Callable[[], nn.Module]:
    """What builds the published encoder with a new head."""
    weights = torch.load(published("pytorch_model.bin"), weights_only=True, mmap=True)

    def network() -> nn.Module:
        built = build("distilbert", (LENGTH,), data.classes, vocabulary=data.vocabulary, **SIZES)
        load_published(built, weights)
        return built

    return network
