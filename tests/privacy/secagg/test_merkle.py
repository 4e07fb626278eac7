"""A path leads from its own leaf to the root, and from nothing else."""

import pytest

from privfl.privacy.secagg.merkle import Tree, depth_for, leaf, root_over

LEAVES = [leaf(bytes([place])) for place in range(9)]


def test_a_tree_has_room_for_its_entries_and_not_many_more():
    assert [depth_for(entries) for entries in (1, 2, 3, 4, 5, 8, 9, 100)] == [0, 1, 2, 2, 3, 3, 4, 7]


@pytest.mark.parametrize("count", range(1, 10))
def test_every_leaf_has_a_path_to_the_root_and_no_other_value_has_it(count):
    leaves = LEAVES[:count]
    tree = Tree(leaves, 4)
    paths = tree.paths()
    for place, one in enumerate(leaves):
        path = paths[place]
        assert len(path) == 4 * 32
        assert root_over(one, path) == tree.root
        for false in (leaf(b"other"), *leaves[:place], *leaves[place + 1 :]):
            assert root_over(false, path) != tree.root


def test_roots_differ_wherever_leaves_do_and_a_node_is_no_leaf():
    trees = [Tree(LEAVES[:count], 4).root for count in range(10)]
    trees += [Tree([*LEAVES[:3], leaf(b"other"), *LEAVES[4:]], 4).root]
    assert len(set(trees)) == len(trees)
    inner = Tree(LEAVES[:2], 1).root
    assert leaf(LEAVES[0] + LEAVES[1]) != inner
    assert Tree([], 1).root != Tree(LEAVES[:1], 1).root
