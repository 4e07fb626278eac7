"""Programs that tests run are forked from a process that has everything loaded."""

from privfl.study.workers import Workers
from tests.programs import LOADED, python


def test_programs_have_their_modules_also_when_a_study_began_its_processes_before(tmp_path):
    with Workers(2) as workers:
        assert dict(workers.outcomes(abs, [-1, 2])) == {-1: 1, 2: 2}
    program = tmp_path / "program.py"
    program.write_text(f"import sys\nprint({LOADED} == [name for name in {LOADED} if name in sys.modules])\n")
    assert python(program).stdout == "True\n"
