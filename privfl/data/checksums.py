"""SHA-256, bytes and place of every file whose published hash is known, in the manner of sha256sum."""

from __future__ import annotations

from privfl.data.files import DataFile

# Files that their makers or well-known mirrors publish, and the prepared files that privfl's authors were given.
_LISTING = """
346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073   4422102 FashionMNIST/raw/t10k-images-idx3-ubyte.gz
67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5      5148 FashionMNIST/raw/t10k-labels-idx1-ubyte.gz
3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84  26421880 FashionMNIST/raw/train-images-idx3-ubyte.gz
a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845     29515 FashionMNIST/raw/train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6   1648877 MNIST/raw/t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6      4542 MNIST/raw/t10k-labels-idx1-ubyte.gz
440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609   9912422 MNIST/raw/train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c     28881 MNIST/raw/train-labels-idx1-ubyte.gz
42279f722e834b737ba8ce0db247884ea80a1f9d100fe563663351867af46189    455525 amazon2014/Beauty.txt.gz
c522686d4b25c448aa7a8d1f0493d1e454733383b4a4bd358fc5dab8101ca63c    391647 amazon2014/Toys_and_Games.txt.gz
a1e1869bc8ef184ab47f478e1120f4d238ed51f5583d9d46d13f10da84f5e188    197975 berka/berka_loans.csv
c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd 170052171 cifar10/cifar-10-binary.tar.gz
6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce 170498071 cifar10/cifar-10-python.tar.gz
58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec 168513733 cifar100/cifar-100-binary.tar.gz
85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7 169001437 cifar100/cifar-100-python.tar.gz
8a067500203657040c514d1fc7b06be200ac2efcb522c6043ed3ad49237b2000  16440006 cifar10/cifar10_test.npz
3cce8a965ba862cf0cb8f0b978bbce7e04f8a04a413a473bc24bcf499c2046d8  41119170 cifar10/cifar10_train_0.npz
e10ebfd63339fe333d1057aeab40da98d85c4d45a148abeb2211d420efffb656  41055220 cifar10/cifar10_train_1.npz
a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8     18461 heart_disease/processed.cleveland.data
d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796     10263 heart_disease/processed.hungarian.data
834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314      4109 heart_disease/processed.switzerland.data
e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f      6737 heart_disease/processed.va.data
346ea7b89b2515de1167a6edd4a19ad39ad5ac0cbb295175e54c2cfe03397fb2   9406274 mitbih/mitbih_beats_180hz.npz
94ecd609a9ca9350e1cff2438aa55a034762f01c1a68732aaae3e4be7b03cf57    665688 mqp/mqp.csv
d3d11fceb9e105439ac6f4d52af6efafed5a2a1e1eb24c5bd2dd54ced242f5c4   1329828 shakespeare/shakespeare.sqlite.lzma
fd9000dd286c0dbe43c0caae7e4445bc45450316d6da029f1a56284018be469f   1778325 shakespeare/shakespeare_roles.jsonl.gz
"""

PUBLISHED = {path: (int(size), sha256) for sha256, size, path in map(str.split, _LISTING.split("\n")[1:-1])}


def published(path: str, url: str | None = None) -> DataFile:
    """The file at ``path`` with its published size and hash."""
    size, sha256 = PUBLISHED[path]
    return DataFile(path, size, sha256, url)
