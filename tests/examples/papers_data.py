"""Small files in the official formats of all data sets of the papers' tables, for programs that run them in full."""

from __future__ import annotations

import csv
import gzip
import io
import json

import numpy as np
import torch

from privfl.data import berka, ecg
from privfl.data.heart import HOSPITALS
from privfl.data.news import TOPICS
from privfl.data.speech import WORDS
from privfl.models import build
from privfl.models.distilbert import published_name
from tests.data.official import RNG, picture, write, write_leaf
from tests.data.test_images import tar, write_idx
from tests.data.test_speech import recording

ROWS, CLIENTS = 60, 6
ENCODER = {"layers": 1, "width": 8, "heads": 2, "hidden": 8, "positions": 256}
"""Of the tests' DistilBERT."""


def colours(*shape):
    return RNG.integers(0, 256, shape, np.uint8)


def digits(room, folder):
    for part, rows in (("train", ROWS), ("t10k", 20)):
        path = room / folder / "raw"
        path.mkdir(parents=True, exist_ok=True)
        write_idx(path / f"{part}-images-idx3-ubyte.gz", colours(rows, 28, 28))
        write_idx(path / f"{part}-labels-idx1-ubyte.gz", np.arange(rows, dtype=np.uint8) % 10)


def cifar(room):
    (room / "cifar10").mkdir()
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    members = {
        f"cifar-10-batches-bin/{name}.bin": b"".join(bytes([y % 10]) + colours(3, 32, 32).tobytes() for y in range(20))
        for name in names
    }
    tar(room / "cifar10/cifar-10-binary.tar.gz", members)
    (room / "cifar100").mkdir()
    members = {
        f"cifar-100-binary/{part}.bin": b"".join(bytes([y % 20, y]) + colours(3, 32, 32).tobytes() for y in range(100))
        for part in ("train", "test")
    }
    tar(room / "cifar100/cifar-100-binary.tar.gz", members)


def tiny_imagenet(room, classes=10):
    root = room / "tiny-imagenet/tiny-imagenet-200"
    ids = [f"n{number:02}" for number in range(classes)]
    write(root / "wnids.txt", "\n".join(ids))
    told = ""
    for one in ids:
        for number in range(6):
            write(root / f"train/{one}/images/{one}_{number}.JPEG", picture(colours(64, 64, 3)))
        write(root / f"val/images/{one}.JPEG", picture(colours(64, 64, 3)))
        told += f"{one}.JPEG\t{one}\t0\t0\t63\t63\n"
    write(root / "val/val_annotations.txt", told)


def leaf(room):
    labels = list(range(10))
    for part, rows in (("train", 10), ("test", 3)):
        faces = {f"w{user}": (RNG.random((rows, 784)).round(2).tolist(), labels[:rows]) for user in range(CLIENTS)}
        write_leaf(room / "femnist" / part, faces)
        names = [f"{part}{number}.jpg" for number in range(CLIENTS * rows)]
        for name in names:
            write(room / f"celeba/raw/img_align_celeba/{name}", picture(colours(109, 89, 3)))
        own = {str(user): (names[user::CLIENTS], [number % 2 for number in range(rows)]) for user in range(CLIENTS)}
        write_leaf(room / "celeba" / part, own)
        said = ["<BOS>", *["the", "quick", "brown", "fox"], "<EOS>", *["<PAD>"] * 4]
        target = {"target_tokens": [[*said[1:], "<PAD>"]], "count_tokens": 4, "subreddit": "a"}
        users = {f"u{user}": ([[said]] * rows, [target] * rows) for user in range(CLIENTS)}
        write_leaf(room / "reddit" / part, users)


def texts(room):
    lines = [
        json.dumps({"play": "a", "role": f"r{role}", "text": ("to be, or not to be: that is " * 40)[role:]})
        for role in range(CLIENTS)
    ]
    write(room / "shakespeare/shakespeare_roles.jsonl.gz", gzip.compress("\n".join(lines).encode()))
    news = [f"N{row}\t{TOPICS[row % 18]}\tsub\ttitle {row % 18} words\tabstract\turl\t[]\t[]" for row in range(ROWS)]
    write(room / "mind/news.tsv", "\n".join(news) + "\n")
    for name in ("Toys_and_Games", "Beauty"):
        rows = [
            json.dumps({"reviewerID": f"A{row % 9}", "reviewText": f"good {row}", "overall": 1.0 + row % 5})
            for row in range(ROWS)
        ]
        write(room / f"amazon2014/reviews_{name}_5.json.gz", gzip.compress("\n".join(rows).encode()))
    pairs = [f'{1 + row % CLIENTS},"Is it, {row}?","What is it?",{row // CLIENTS % 2}' for row in range(ROWS)]
    write(room / "mqp/mqp.csv", "\n".join(pairs) + "\n")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "is", "it", "what", ",", "?", "##s"]
    write(room / "distilbert-base-uncased/vocab.txt", "\n".join(words) + "\n")
    encoder = build("distilbert", (8,), 2, vocabulary=len(words), **ENCODER).body[0]
    weights = {published_name(name): one.detach() for name, one in encoder.named_parameters()}
    torch.save(weights, room / "distilbert-base-uncased/pytorch_model.bin")


def medicine(room):
    for name, shape, classes in (("dermamnist", (28, 28, 3), 7), ("organcmnist", (28, 28), 11)):
        arrays = {}
        for part in ("train", "val", "test"):
            arrays[f"{part}_images"] = colours(30, *shape)
            arrays[f"{part}_labels"] = (np.arange(30, dtype=np.uint8) % classes)[:, None]
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        write(room / f"medmnist/{name}.npz", file.getvalue())
    lines = [",image,target,center,fold,fold2"]
    for row in range(ROWS):
        lines.append(f"{row},I{row},{row % 8},{row % CLIENTS},{'test' if row % 5 == 0 else 'train'},")
        write(room / f"isic2019/ISIC_2019_Training_Input_preprocessed/I{row}.jpg", picture(colours(224, 224, 3)))
    write(room / "isic2019/train_test_split", "\n".join(lines) + "\n")
    records = np.repeat(np.arange(100, 106), 60)
    beats = {
        "dx": RNG.integers(-5, 6, (360, 140)).astype(np.int16),
        "symbol": np.tile(np.arange(15, dtype=np.uint8), 24),
        "symbols": np.array(ecg.SYMBOLS),
        "record": records.astype(np.uint8),
    }
    file = io.BytesIO()
    np.savez(file, **beats)
    write(room / "mitbih/mitbih_beats_180hz.npz", file.getvalue())
    for hospital in HOSPITALS:
        rows = [f"{50 + row},1,{1 + row % 4},120,?,0,{row % 3},150,0,1.5,?,?,?,{row % 3}" for row in range(20)]
        write(room / f"heart_disease/processed.{hospital}.data", "\n".join(rows) + "\n")


def bank(room):
    numbers = [one.column for one in berka.LOAN_FEATURES if one.column not in ("statement", "owner_is_male")]
    numbers += [one.column for one in berka.TRANSACTION_FEATURES]
    names = ["loan_id", "loan_date", "region", "district_id", "status", "frequency", "owner_gender"]
    names += [name for name in numbers if name not in names]
    file = io.StringIO()
    table = csv.DictWriter(file, names)
    table.writeheader()
    for row in range(ROWS):
        region = ("north Bohemia", "Prague", "south Moravia", "east Bohemia")[row % 4]
        told = {"loan_id": row, "loan_date": "1995-01-02", "region": region, "district_id": row % 4}
        told |= {"status": "AB"[row // 4 % 2], "frequency": "monthly", "owner_gender": "M"}
        table.writerow(dict.fromkeys(names, row) | told)
    write(room / "berka/berka_loans.csv", file.getvalue())


def speech(room):
    files = {
        f"{WORDS[row % 6]}/s{row % CLIENTS}_nohash_{row}.wav": recording(100 * row)
        for row in range(ROWS // 6 * CLIENTS)
    }
    files |= {"testing_list.txt": b"", "validation_list.txt": b"backward/s0_nohash_0.wav\n"}
    for name, content in files.items():
        write(room / "speech-commands/speech_commands_v0.02" / name, content)


def write_all(room):
    """Everything that a table of a paper reads, into the folder ``room``."""
    digits(room, "MNIST")
    digits(room, "FashionMNIST")
    cifar(room)
    tiny_imagenet(room)
    leaf(room)
    texts(room)
    medicine(room)
    bank(room)
    speech(room)
