"""The copy kernels: their PTX, run by the fake driver's interpreter and assembled by NVIDIA's ptxas."""

import ctypes

import pytest
from ptx_assembler import assemble, assemblers, targets
from ptx_cases import GATHER, PTX, SCATTER, Case, cases
from ptx_interpreter import INVALID_VALUE, Interpreter, Refused
from ptx_mutants import EQUIVALENT, mutants

ENTRIES = (GATHER, SCATTER)
RANDOM_CASES = 60
# The devices that the kernels are for, from Turing to the newest.
DEVICES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "sm_121")


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory):
    return Interpreter(tmp_path_factory.mktemp("ptx"))


@pytest.fixture(scope="module")
def kernels(interpreter):
    with interpreter.load(PTX.read_text()) as module:
        yield module


@pytest.fixture(scope="module")
def layouts():
    return cases(RANDOM_CASES)


@pytest.mark.parametrize("entry", ENTRIES)
def test_kernels_copy_the_runs_and_touch_nothing_else(kernels, layouts, entry):
    wrong = [w for case in [*layouts, *cases(4 * RANDOM_CASES)] if (w := case.check(kernels, entry))]
    assert not wrong


@pytest.mark.parametrize("entry", ENTRIES)
def test_any_grid_copies_the_same(kernels, entry):
    runs = [(i * 112 + i % 3 * 16, i * 64, 64 - i % 2) for i in range(150)]
    for blocks in (*range(1, 9), 150, 1000):
        for lanes_log2 in (0, 2, 5, 8):
            case = Case(f"{blocks} blocks", runs, 150 * 112 + 64, 150 * 64, lanes_log2=lanes_log2, blocks=blocks)
            assert case.check(kernels, entry) is None


@pytest.mark.parametrize("entry", ENTRIES)
def test_another_block_is_refused(kernels, entry):
    params = [ctypes.c_uint64(0), ctypes.c_uint64(0), ctypes.c_uint32(0), ctypes.c_uint32(2)]
    assert kernels.param_bytes(entry) == [8, 8, 4, 4]
    assert kernels.launch(entry, params) == 0
    for block in ((255, 1, 1), (128, 2, 1), (32, 1, 1), (512, 1, 1)):
        assert kernels.launch(entry, params, block=block) == INVALID_VALUE


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_mistake_is_noticed(interpreter, layouts, entry):
    """Of all mutants that load, those that are listed as equivalent copy the same, and all others fail a case."""
    ran, survivors, caught, seen = 0, [], [], set()
    for mutant in mutants(entry):
        equivalent = (mutant.line, mutant.mutated) in EQUIVALENT
        try:
            module = interpreter.load(mutant.text, limit=1 << (32 if equivalent else 25))
        except Refused:
            continue
        ran += 1
        with module:
            wrong = next((w for case in layouts if (w := case.check(module, entry))), None)
        if equivalent:
            seen.add((mutant.line, mutant.mutated))
            caught += [f"{mutant}: {wrong}"] if wrong else []
        elif wrong is None:
            survivors.append(str(mutant))
    assert not survivors, "mistakes that no case notices"
    assert not caught, "mutants that are listed as equivalent and are not"
    assert seen == set(EQUIVALENT), "mutants that are listed and no longer made"
    assert ran > 400


@pytest.mark.parametrize("device", DEVICES)
def test_ptxas_assembles_the_kernels(device, tmp_path):
    know = [ptxas for ptxas in assemblers() if device in targets(ptxas)]
    if not know:
        pytest.skip(f"no ptxas here knows {device}")
    for ptxas in know:
        assert assemble(ptxas, PTX.read_text(), device, tmp_path, "--warning-as-error") == "", ptxas


def test_ptxas_and_the_interpreter_take_the_same_mutants(interpreter, tmp_path):
    """So that what runs here would run on a device, and mutants are not caught for being no PTX."""
    ptxas, taken, differ = assemblers()[-1], 0, []
    for mutant in mutants(GATHER):
        try:
            interpreter.load(mutant.text).free()
            refusal = ""
        except Refused as e:
            refusal = e.message
        complaint = assemble(ptxas, mutant.text, DEVICES[0], tmp_path, "-O0")
        taken += not complaint
        if bool(complaint) != bool(refusal):
            differ.append(f"{mutant}: ptxas {complaint or 'takes it'}; interpreter {refusal or 'takes it'}")
    assert not differ
    assert taken > 400
