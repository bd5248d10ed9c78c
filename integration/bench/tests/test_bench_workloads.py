"""Workloads are the same for every system, and are what their names say."""

import itertools

import pytest
from pair import ENGINE_KV_TOKENS, STEP_TOKENS
from workloads import (
    ANSWER_TOKENS,
    KV_BYTES_PER_TOKEN,
    LONGEST,
    MIXED_BLOCK,
    QUICK,
    SHORTEST,
    WORKLOADS,
    Block,
    Pause,
    Sizes,
    blocks,
    distinct_tokens,
    script,
)


def follow(steps, answer=lambda tokens: [7, 8]):
    """Run a script with made-up answers, and return its steps."""
    seen, answers = [], None
    while True:
        try:
            step = next(steps) if answers is None else steps.send(answers)
        except StopIteration:
            return seen
        seen.append(step)
        answers = [answer(tokens) for tokens in step.prompts] if isinstance(step, Block) else None


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_round_is_the_same_for_every_system_and_another_one_each_time(name):
    assert follow(script(name, 1, 1, QUICK)) == follow(script(name, 1, 1, QUICK))
    assert follow(script(name, 1, 1, QUICK)) != follow(script(name, 1, 2, QUICK))
    assert follow(script(name, 1, 1, QUICK)) != follow(script(name, 2, 1, QUICK))


def test_restart_asks_the_same_after_a_restart():
    steps = follow(script("restart", 1, 1, Sizes()))
    at = steps.index(Pause.RESTART)
    before = [p for block in steps[:at] for p in block.prompts]
    after = [p for block in steps[at + 1 :] for p in block.prompts]
    assert sorted(before) == sorted(after)
    assert len(after[0]) == 2700, "the first request of all is a long one"
    assert sorted(len(p) for p in before) == [1000] * 6 + [2700] * 6
    assert distinct_tokens(before) == 6 * (896 + 2688)
    assert {block.phase for block in steps[at + 1 :]} == {"restarted"}


def test_turns_share_the_system_prompt_and_have_the_answers_in_them():
    steps = follow(script("turns", 1, 1, Sizes()), answer=lambda tokens: [1000 + len(tokens)])
    assert len(steps) == 4
    first, second = steps[0].prompts, steps[1].prompts
    assert len({tuple(p[:512]) for p in first}) == 1
    assert len({tuple(p) for p in first}) == 8
    for earlier, later in zip(first, second, strict=True):
        assert later[: len(earlier) + 1] == [*earlier, 1000 + len(earlier)]
        assert len(later) == len(earlier) + 1 + 384


def test_large_asks_everything_twice():
    steps = follow(script("large", 1, 1, Sizes()))
    at = steps.index(Pause.DROP_PAGES)
    before = [tuple(p) for block in steps[:at] for p in block.prompts]
    after = [tuple(p) for block in steps[at + 1 :] for p in block.prompts]
    assert before != after
    assert sorted(before) == sorted(after)


def test_mixed_has_short_and_long_ones_and_half_that_begin_like_an_earlier_one():
    takes = in_takes("mixed")
    assert sorted(takes) == [0, 1, 2]
    assert [len(p) for p in takes[0].values()] == [len(p) for p in takes[1].values()]
    for by_number in takes.values():
        prompts = list(by_number.values())
        assert list(by_number) == list(range(200))
        assert all(SHORTEST <= len(p) <= LONGEST for p in prompts)
        assert sum(len(p) < 500 for p in prompts) > 60
        assert sum(len(p) > 1000 for p in prompts) > 40
        sharing = sum(any(p[:64] == q[:64] for q in prompts[:i]) for i, p in enumerate(prompts))
        assert 60 < sharing < 120


def in_takes(workload):
    """Return the prompts of a workload by take and number."""
    takes = {}
    for block in follow(script(workload, 1, 1, Sizes())):
        for i, tokens in enumerate(block.prompts):
            takes.setdefault(block.take, {})[block.number(i)] = tokens
    return takes


def test_takes_share_nothing_with_each_other():
    takes = in_takes("mixed")
    begins = [{tuple(p[:64]) for p in by_number.values()} for by_number in takes.values()]
    assert not begins[0] & begins[1]
    assert len(begins[0]) == len(begins[1])


def test_a_burst_has_new_prompts_in_each_take():
    steps = follow(script("bursts", 1, 1, Sizes()))
    assert [(block.number(5), block.take) for block in steps] == [(n, t) for n in range(4) for t in range(3)]
    prompts = [tuple(p) for block in steps for p in block.prompts]
    assert len(set(prompts)) == len(prompts) == 4 * 3 * 6
    assert {len(p) for p in prompts} == {1000}


def test_distinct_tokens_counts_equal_beginnings_once():
    one, other = list(range(300)), [*range(128), *range(1000, 1200)]
    assert distinct_tokens([one]) == 256
    assert distinct_tokens([one, one]) == 256
    assert distinct_tokens([one, other]) == 384
    assert distinct_tokens([[1] * 127]) == 0


def test_every_prompt_fits_into_the_engine_with_its_answer():
    for name in WORKLOADS:
        for step in follow(script(name, 1, 1, Sizes()), answer=lambda tokens: [7] * ANSWER_TOKENS):
            if isinstance(step, Block):
                assert all(len(p) + ANSWER_TOKENS < STEP_TOKENS for p in step.prompts)


def test_conversations_and_the_large_set_do_not_fit_into_the_engine():
    prompts = {name: [] for name in WORKLOADS}
    for name in WORKLOADS:
        for step in follow(script(name, 1, 1, Sizes()), answer=lambda tokens: [7] * ANSWER_TOKENS):
            prompts[name] += step.prompts if isinstance(step, Block) else []
    assert distinct_tokens(prompts["turns"]) > 1.4 * ENGINE_KV_TOKENS
    assert distinct_tokens(prompts["large"]) * KV_BYTES_PER_TOKEN > 2 * (128 << 20)


def test_blocks_leave_nothing_out():
    prompts = [[i] for i in range(23)]
    divided = blocks(prompts, MIXED_BLOCK)
    assert [len(b) for b in divided] == [10, 10, 3]
    assert list(itertools.chain.from_iterable(divided)) == prompts
