"""The catalog's entries: what each dataset is, who made it, and which files it consists of."""

from __future__ import annotations

from privfl.data.checksums import published
from privfl.data.entry import DatasetInfo
from privfl.data.files import DataFile, Layout

_CIFAR = "https://www.cs.toronto.edu/~kriz"
_HEART = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
_AMAZON = "https://snap.stanford.edu/data/amazon/productGraph/categoryFiles"
_AMAZON_CITATION = (
    "R. He, J. McAuley, 'Ups and downs: modeling the visual evolution of fashion trends with one-class collaborative "
    "filtering', WWW 2016"
)
_AMAZON_NOTES = (
    "Ratings and texts are not used. Reviews of the same second keep the order of the file. The official reviews have "
    "no published hash; they are checked by the number of users, items and reviews."
)
_IDX = tuple(f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))

ENTRIES = (
    DatasetInfo(
        name="digits",
        title="Optical recognition of handwritten digits (UCI, the 1,797 images in scikit-learn)",
        task="digit from image",
        inputs="float32 [1, 8, 8]",
        classes=10,
        rows=(1_438, 359),
        client_id=None,
        licence="CC BY 4.0",
        citation="E. Alpaydin, C. Kaynak, 'Optical Recognition of Handwritten Digits', UCI, 1998, doi:10.24432/C50P49",
        notes="Comes with scikit-learn, needs no file. Pixels / 16, then mean and std; a fifth held out, stratified.",
        loader="images:load_digits",
        mean=(0.5,),
        std=(0.5,),
    ),
    DatasetInfo(
        name="mnist",
        title="MNIST handwritten digits",
        task="digit from image",
        inputs="float32 [1, 28, 28]",
        classes=10,
        rows=(60_000, 10_000),
        client_id=None,
        licence="none on the original page; widely listed as CC BY-SA 3.0",
        citation="Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, 'Gradient-based learning applied to document "
        "recognition', Proc. IEEE 86(11), 1998",
        notes="Pixels / 255, then the published mean and standard deviation.",
        loader="images:load_mnist",
        layouts=(
            Layout(
                "idx",
                tuple(published(f"MNIST/raw/{n}", f"https://ossci-datasets.s3.amazonaws.com/mnist/{n}") for n in _IDX),
            ),
        ),
        mean=(0.1307,),
        std=(0.3081,),
    ),
    DatasetInfo(
        name="fashion-mnist",
        title="Fashion-MNIST",
        task="article of clothing from image",
        inputs="float32 [1, 28, 28]",
        classes=10,
        rows=(60_000, 10_000),
        client_id=None,
        licence="MIT (Zalando SE)",
        citation="H. Xiao, K. Rasul, R. Vollgraf, 'Fashion-MNIST: a novel image dataset for benchmarking machine "
        "learning algorithms', arXiv:1708.07747, 2017",
        notes="Pixels / 255, then the published mean and standard deviation.",
        loader="images:load_fashion_mnist",
        layouts=(
            Layout(
                "idx",
                tuple(
                    published(
                        f"FashionMNIST/raw/{n}", f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{n}"
                    )
                    for n in _IDX
                ),
            ),
        ),
        mean=(0.2860,),
        std=(0.3530,),
    ),
    DatasetInfo(
        name="cifar10",
        title="CIFAR-10",
        task="object from colour image",
        inputs="float32 [3, 32, 32]",
        classes=10,
        rows=(50_000, 10_000),
        client_id=None,
        licence="none stated; the authors ask that the report be cited",
        citation="A. Krizhevsky, 'Learning multiple layers of features from tiny images', University of Toronto, 2009",
        notes="Pixels / 255, then the published mean and standard deviation of each channel. The lossless WebP strips "
        "hold the same images as the official archives in another order.",
        loader="images:load_cifar10",
        layouts=(
            Layout("webp", tuple(published(f"cifar10/cifar10_{p}.npz") for p in ("train_0", "train_1", "test"))),
            *(
                Layout(kind, (published(f"cifar10/cifar-10-{kind}.tar.gz", f"{_CIFAR}/cifar-10-{kind}.tar.gz"),))
                for kind in ("binary", "python")
            ),
        ),
        mean=(0.49139968, 0.48215841, 0.44653091),
        std=(0.24703223, 0.24348513, 0.26158784),
    ),
    DatasetInfo(
        name="mitbih",
        title="MIT-BIH arrhythmia database, single beats",
        task="kind of heartbeat from 0.78 s of ECG",
        inputs="float32 [1, 140]",
        classes=5,
        rows=(87_559, 21_889),
        client_id="patient (47)",
        licence="Open Data Commons Attribution License v1.0",
        citation="G. B. Moody, R. G. Mark, 'The impact of the MIT-BIH Arrhythmia Database', IEEE Eng. Med. Biol. "
        "20(3), 2001; A. L. Goldberger et al., PhysioNet, Circulation 101(23), 2000; doi:10.13026/C2F305",
        notes="One window of 140 samples at 180 Hz around each annotated beat; lead MLII (V5 in records 102 and 104); "
        "millivolts, then mean and std, which are round figures for a resting ECG. The official zip has no published "
        "hash; it is checked against the hash list inside it and by the number of beats.",
        loader="ecg:load_mitbih",
        layouts=(
            Layout("beats", (published("mitbih/mitbih_beats_180hz.npz"),)),
            Layout(
                "wfdb-zip",
                (
                    DataFile(
                        "mitbih/mit-bih-arrhythmia-database-1.0.0.zip",
                        url="https://physionet.org/static/published-projects/mitdb/"
                        "mit-bih-arrhythmia-database-1.0.0.zip",
                    ),
                ),
            ),
            Layout("wfdb", (DataFile("mitbih/mit-bih-arrhythmia-database-1.0.0"),)),
        ),
        mean=(-0.3,),
        std=(0.5,),
        counts={"beats": 109_448, "patients": 47},
    ),
    DatasetInfo(
        name="heart-disease",
        title="UCI heart disease, four hospitals",
        task="heart disease (num > 0) from 13 clinical attributes",
        inputs="float32 [32]",
        classes=2,
        rows=(735, 185),
        client_id="hospital (4)",
        licence="CC BY 4.0",
        citation="A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano, 'Heart Disease', UCI, 1989, doi:10.24432/C52P4X",
        notes="Scaled by fixed public constants; missing values (also a cholesterol or blood pressure of 0) become the "
        "constant centre plus an indicator column.",
        loader="heart:load_heart_disease",
        layouts=(
            Layout(
                "uci",
                tuple(
                    published(f"heart_disease/processed.{site}.data", f"{_HEART}/processed.{site}.data")
                    for site in ("cleveland", "hungarian", "switzerland", "va")
                ),
            ),
        ),
    ),
    DatasetInfo(
        name="berka",
        title="Berka / PKDD'99 Czech bank loans",
        task="default on a loan from what the bank knew on the day it was granted",
        inputs="float32 [46]",
        classes=2,
        rows=(546, 136),
        client_id="region (8)",
        licence="none stated; real data, anonymised, released for the PKDD'99 challenge",
        citation="P. Berka, M. Sochorova, 'PKDD'99 Discovery Challenge: guide to the financial data set', 1999",
        notes="Scaled by fixed public constants. Transactions on or after the loan date are never read. The official "
        "tables have no published hash; they are checked by the number of loans.",
        loader="berka:load_berka",
        layouts=(
            Layout("loans", (published("berka/berka_loans.csv"),)),
            Layout(
                "tables",
                (
                    *(DataFile(f"berka/{t}.asc") for t in ("loan", "account", "district", "order", "client", "disp")),
                    DataFile("berka/trans.asc", optional=True),
                ),
            ),
            Layout(
                "tables-zip",
                (
                    DataFile(
                        "berka/data_berka.zip", url="https://sorry.vse.cz/~berka/challenge/pkdd1999/data_berka.zip"
                    ),
                ),
            ),
        ),
        counts={"loans": 682},
    ),
    DatasetInfo(
        name="medical-questions",
        title="Medical question pairs (MQP)",
        task="whether two patients' questions mean the same",
        inputs="int64 [96] token ids",
        classes=2,
        rows=(2_438, 610),
        client_id="doctor (11)",
        licence="none stated in the repository",
        citation="C. H. McCreery, N. Katariya, A. Kannan, M. Chablani, X. Amatriain, 'Effective transfer learning for "
        "identifying similar questions', KDD 2020",
        notes="Words hashed to a fixed public vocabulary. Pairs that share a question are never divided between "
        "training and test.",
        loader="questions:load_medical_questions",
        layouts=(
            Layout(
                "csv",
                (
                    published(
                        "mqp/mqp.csv",
                        "https://raw.githubusercontent.com/curai/medical-question-pair-dataset/master/mqp.csv",
                    ),
                ),
            ),
        ),
    ),
    DatasetInfo(
        name="shakespeare",
        title="Shakespeare's plays by speaking role",
        task="next character from the 80 before it",
        inputs="int64 [80] character ids",
        classes=97,
        rows=(150_537, 36_448),
        client_id="role (445 in the role file)",
        licence="public domain text",
        citation="W. Shakespeare; S. Caldas et al., 'LEAF: a benchmark for federated settings', arXiv:1812.01097, 2018",
        notes="Three sources with different role lists: one text per role (the figures given here), LEAF's "
        "all_data.json, and the download, which is LEAF's roles as published with TensorFlow Federated, with its own "
        "division into training and test.",
        loader="shakespeare:load_shakespeare",
        layouts=(
            Layout("roles", (published("shakespeare/shakespeare_roles.jsonl.gz"),)),
            Layout("leaf", (DataFile("shakespeare/all_data.json"),)),
            Layout(
                "tff",
                (
                    published(
                        "shakespeare/shakespeare.sqlite.lzma",
                        "https://storage.googleapis.com/tff-datasets-public/shakespeare.sqlite.lzma",
                    ),
                ),
            ),
        ),
    ),
    *(
        DatasetInfo(
            name=name,
            title=f"Amazon 2014 5-core, {category.replace('_', ' ')}, item sequences",
            task="next item from the items before it",
            inputs="int64 [50] item ids",
            classes=counts["items"] + 1,
            rows=(counts["interactions"] - 2 * counts["users"], counts["users"]),
            client_id=f"user ({counts['users']:,})",
            licence="none stated; offered for research",
            citation=_AMAZON_CITATION,
            notes=_AMAZON_NOTES,
            loader="sequences:load_amazon",
            layouts=(
                Layout("sequences", (published(f"amazon2014/{category}.txt.gz"),)),
                Layout(
                    "reviews",
                    (
                        DataFile(
                            f"amazon2014/reviews_{category}_5.json.gz",
                            url=f"{_AMAZON}/reviews_{category}_5.json.gz",
                        ),
                    ),
                ),
            ),
            counts=counts,
        )
        for name, category, counts in (
            ("amazon-toys", "Toys_and_Games", {"users": 19_412, "items": 11_924, "interactions": 167_597}),
            ("amazon-beauty", "Beauty", {"users": 22_363, "items": 12_101, "interactions": 198_502}),
        )
    ),
)
