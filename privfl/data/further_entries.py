"""Entries of the datasets that the papers use and that privfl was not tried on in full: the files are the user's.

Their readers are tested on small files in the official formats. Where no hash is published, counts are checked.
"""

from __future__ import annotations

from privfl.data.checksums import published
from privfl.data.entry import DatasetInfo
from privfl.data.files import DataFile, Layout

_CIFAR = "https://www.cs.toronto.edu/~kriz"
_LEAF = "S. Caldas et al., 'LEAF: a benchmark for federated settings', arXiv:1812.01097, 2018"
_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_MEDMNIST = "J. Yang et al., 'MedMNIST v2', Scientific Data 10(41), 2023"


def _leaf(name: str, *more: str) -> Layout:
    """LEAF's two folders, put into one of the dataset's name, and what else is needed."""
    return Layout("leaf", tuple(DataFile(f"{name}/{path}") for path in ("train", "test", *more)))


FURTHER_ENTRIES = (
    DatasetInfo(
        name="emnist",
        title="EMNIST, handwritten letters and digits",
        task="character from image",
        inputs="float32 [1, 28, 28]",
        classes=47,
        rows=(112_800, 18_800),
        client_id=None,
        licence="none stated; NIST's data are in the public domain",
        citation="G. Cohen, S. Afshar, J. Tapson, A. van Schaik, 'EMNIST: extending MNIST to handwritten letters', "
        "IJCNN 2017",
        notes="Pixels / 255. The official zip has no published hash.",
        loader="images:load_emnist",
        layouts=(
            Layout("zip", (DataFile("emnist/gzip.zip", url="https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"),)),
            Layout("folder", (DataFile("emnist/gzip"),)),
        ),
        mean=(0.0,),
        std=(1.0,),
    ),
    DatasetInfo(
        name="cifar100",
        title="CIFAR-100",
        task="object from colour image",
        inputs="float32 [3, 32, 32]",
        classes=100,
        rows=(50_000, 10_000),
        client_id=None,
        licence="none stated; the authors ask that the report be cited",
        citation="A. Krizhevsky, 'Learning multiple layers of features from tiny images', University of Toronto, 2009",
        notes="Pixels / 255, then the published mean and standard deviation of each channel.",
        loader="images:load_cifar100",
        layouts=tuple(
            Layout(kind, (published(f"cifar100/cifar-100-{kind}.tar.gz", f"{_CIFAR}/cifar-100-{kind}.tar.gz"),))
            for kind in ("binary", "python")
        ),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    ),
    DatasetInfo(
        name="tiny-imagenet",
        title="TinyImageNet",
        task="object from colour image",
        inputs="float32 [3, 64, 64]",
        classes=200,
        rows=(100_000, 10_000),
        client_id=None,
        licence="ImageNet's terms of access: research and teaching that are not commercial",
        citation="Y. Le, X. Yang, 'Tiny ImageNet visual recognition challenge', Stanford CS 231N, 2015",
        notes="Pixels / 255, then ImageNet's mean and standard deviation. The labelled validation part is the test "
        "part. The official zip has no published hash; it is checked by the number of pictures.",
        loader="pictures:load_tiny_imagenet",
        layouts=(
            Layout(
                "zip",
                (
                    DataFile(
                        "tiny-imagenet/tiny-imagenet-200.zip", url="http://cs231n.stanford.edu/tiny-imagenet-200.zip"
                    ),
                ),
            ),
            Layout("folder", (DataFile("tiny-imagenet/tiny-imagenet-200"),)),
        ),
        counts={"train": 100_000, "test": 10_000},
        **_IMAGENET,
    ),
    DatasetInfo(
        name="femnist",
        title="FEMNIST (LEAF), handwriting by writer",
        task="character from image",
        inputs="float32 [1, 28, 28]",
        classes=62,
        rows=None,
        client_id="writer (as many as LEAF was asked for)",
        licence="none stated; NIST's data are in the public domain",
        citation=_LEAF,
        notes="Pixels in 0..1 as LEAF has them. No download: LEAF's data/femnist/preprocess.sh makes the folders.",
        loader="leaf:load_femnist",
        layouts=(_leaf("femnist"),),
    ),
    DatasetInfo(
        name="celeba",
        title="CelebA (LEAF), smiles by celebrity",
        task="whether a face smiles",
        inputs="float32 [3, 84, 84]",
        classes=2,
        rows=None,
        client_id="celebrity (as many as LEAF was asked for)",
        licence="research that is not commercial",
        citation=f"Z. Liu, P. Luo, X. Wang, X. Tang, 'Deep learning face attributes in the wild', ICCV 2015; {_LEAF}",
        notes="Pixels in −1..1. No download: LEAF's data/celeba/preprocess.sh makes the folders of JSON, and the "
        "pictures img_align_celeba come from CelebA's authors.",
        loader="leaf:load_celeba",
        layouts=(_leaf("celeba", "raw/img_align_celeba"),),
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
    ),
    DatasetInfo(
        name="reddit",
        title="Reddit (LEAF), comments by author",
        task="next word of a comment",
        inputs="int64 [10] token ids",
        classes=10_000,
        rows=None,
        client_id="author (as many as LEAF was asked for)",
        licence="none stated",
        citation=_LEAF,
        notes="Words hashed to a fixed public vocabulary, where LEAF counts them. No download: LEAF's "
        "data/reddit/preprocess.sh makes the folders.",
        loader="leaf:load_reddit",
        layouts=(_leaf("reddit"),),
    ),
    DatasetInfo(
        name="speech-commands",
        title="Speech Commands v0.02",
        task="word from one second of speech",
        inputs="float32 [1, 8000]",
        classes=35,
        rows=(94_824, 11_005),
        client_id="speaker (2,618, of whom those in the test list have no training rows)",
        licence="CC BY 4.0",
        citation="P. Warden, 'Speech Commands: a dataset for limited-vocabulary speech recognition', arXiv:1804.03209, "
        "2018",
        notes="Samples in −1..1, two of them averaged to one. The official archive has no published hash; it is "
        "checked by the number of recordings.",
        loader="speech:load_speech_commands",
        layouts=(
            Layout(
                "tar",
                (
                    DataFile(
                        "speech-commands/speech_commands_v0.02.tar.gz",
                        url="http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
                    ),
                ),
            ),
            Layout("folder", (DataFile("speech-commands/speech_commands_v0.02"),)),
        ),
        counts={"recordings": 105_829},
    ),
    DatasetInfo(
        name="mind",
        title="MIND, Microsoft news",
        task="topic from the title of a piece of news",
        inputs="int64 [30] token ids",
        classes=18,
        rows=None,
        client_id=None,
        licence="Microsoft Research License Terms",
        citation="F. Wu et al., 'MIND: a large-scale dataset for news recommendation', ACL 2020",
        notes="Words hashed to a fixed public vocabulary. No download: news.tsv is in the archives that Microsoft "
        "offers (MINDsmall_train, MINDlarge_train), and the number of rows is that of the one you take.",
        loader="news:load_mind",
        layouts=(Layout("tsv", (DataFile("mind/news.tsv"),)),),
    ),
    *(
        DatasetInfo(
            name=name,
            title=title,
            task=task,
            inputs=f"float32 [{channels}, 28, 28]",
            classes=classes,
            rows=(counts["train"] + counts["val"], counts["test"]),
            client_id=None,
            licence=licence,
            citation=_MEDMNIST,
            notes="Pixels / 255, in −1..1. The file has no published SHA-256; it is checked by the number of images.",
            loader="pictures:load_medmnist",
            layouts=(
                Layout(
                    "npz",
                    (DataFile(f"medmnist/{file}.npz", url=f"https://zenodo.org/records/10519652/files/{file}.npz"),),
                ),
            ),
            mean=(0.5,) * channels,
            std=(0.5,) * channels,
            counts=counts,
        )
        for name, file, title, task, channels, classes, licence, counts in (
            (
                "derma-mnist", "dermamnist", "DermaMNIST (MedMNIST 3), skin lesions", "lesion from image", 3, 7,
                "CC BY-NC 4.0", {"train": 7_007, "val": 1_003, "test": 2_005},
            ),
            (
                "organc-mnist", "organcmnist", "OrganCMNIST (MedMNIST 3), abdominal CT", "organ from image", 1, 11,
                "CC BY 4.0", {"train": 12_975, "val": 2_392, "test": 8_216},
            ),
        )
    ),
    DatasetInfo(
        name="isic2019",
        title="ISIC 2019 as FLamby's six centres",
        task="kind of skin lesion from image",
        inputs="float32 [3, 200, 200]",
        classes=8,
        rows=(18_597, 4_650),
        client_id="centre (6)",
        licence="CC BY-NC 4.0",
        citation="J. Ogier du Terrail et al., 'FLamby', NeurIPS 2022; P. Tschandl et al., Scientific Data 5, 2018; N. "
        "Codella et al., ISBI 2018; M. Combalia et al., arXiv:1908.02288, 2019",
        notes="Pixels / 255, then ImageNet's mean and standard deviation. No download: FLamby's scripts resize the "
        "pictures, and its repository holds the table train_test_split.",
        loader="pictures:load_isic",
        layouts=(
            Layout(
                "flamby",
                (
                    DataFile("isic2019/train_test_split"),
                    DataFile("isic2019/ISIC_2019_Training_Input_preprocessed"),
                ),
            ),
        ),
        counts={"pictures": 23_247},
        **_IMAGENET,
    ),
)  # fmt: skip
