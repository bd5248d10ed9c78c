"""What the backend keeps in mind of prompts, without SGLang."""

from __future__ import annotations

import pytest

from kvconn.sglang import options, weight_updates
from kvconn.sglang.pace import Pace
from kvconn.sglang.recent import Recent

HASHES = [bytes([n]) * 32 for n in range(1, 9)]
NEEDED = '{"interface_v1": 1, "allocator": "shm", "hicache_storage_pass_prefix_keys": true}'


def test_a_page_belongs_to_the_prompt_that_was_asked_for_last() -> None:
    recent = Recent(kept=2)
    first = recent.asked(HASHES[:3], 1.0)
    second = recent.asked(HASHES[1:4], 2.0)
    assert recent.of(HASHES[1]) is second
    assert recent.of(HASHES[0]) is first
    assert recent.asked(HASHES[:3], 3.0).name == first.name, "a repeated question is the same request's"
    recent.asked(HASHES[4:5], 4.0)
    assert recent.of(HASHES[3]) is None, "two are kept"


def test_a_prompt_is_another_requests_long_after_its_load_has_failed() -> None:
    recent = Recent()
    prompt = recent.asked(HASHES[:2], 0.0)
    recent.failed(prompt, 1.0)
    assert recent.asked(HASHES[:2], 2.0).name == prompt.name
    later = recent.asked(HASHES[:2], 60.0)
    assert later.name != prompt.name
    assert later.failed_at is None


def test_a_failure_is_kept_though_the_prompt_was_asked_for_again_meanwhile() -> None:
    recent = Recent()
    prompt = recent.asked(HASHES[:2], 0.0)
    again = recent.asked(HASHES[:2], 0.5)
    recent.failed(prompt, 1.0)
    assert again.failed_at == 1.0


def test_the_pages_that_are_kept_are_bounded() -> None:
    recent = Recent(max_pages=4)
    recent.asked(HASHES[:3], 1.0)
    for _ in range(3):
        second = recent.asked(HASHES[3:5], 2.0)
    assert recent.of(HASHES[0]) is None
    assert recent.of(HASHES[3]) is second, "a repeated question counts once"
    long = recent.asked(HASHES, 3.0)
    assert recent.of(HASHES[0]) is long, "the last is kept, however long"
    recent.ended(long)
    recent.asked(HASHES[:2], 4.0)
    recent.asked(HASHES[2:4], 4.0)
    assert recent.of(HASHES[0]) is not None
    assert recent.of(HASHES[2]) is not None


def test_the_time_of_a_page_is_that_of_its_first_question() -> None:
    recent = Recent()
    recent.asked(HASHES[:3], 1.0)
    assert recent.asked(HASHES[:3], 5.0).asked_at == 1.0, "asked again by the same request"
    longer = recent.asked(HASHES[:4], 6.0)
    assert recent.of(HASHES[0]) is longer
    assert recent.asked_at(HASHES[0], longer.asked_at) == 1.0, "the first prompt's prefill may have computed it"
    assert recent.asked_at(HASHES[3], longer.asked_at) == 6.0
    assert recent.asked_at(HASHES[7], 9.0) == 9.0


def test_an_ended_prompt_is_forgotten_unless_it_was_asked_for_again() -> None:
    recent = Recent()
    prompt = recent.asked(HASHES[:2], 0.0)
    again = recent.asked(HASHES[:2], 0.5)
    recent.ended(prompt)
    assert recent.of(HASHES[0]) is again
    recent.ended(again)
    assert recent.of(HASHES[0]) is None


def test_only_speeds_near_the_best_count() -> None:
    pace = Pace()
    assert not pace.counts(255, 0.1), "too few tokens"
    assert not pace.counts(1000, 0.0)
    assert pace.counts(1000, 1.0)
    assert not pace.counts(1000, 2.0), "it waited in a queue"
    assert pace.counts(1000, 1.1)


def test_a_watcher_hears_of_updates_before_they_begin() -> None:
    class Manager:
        def update_weights_from_disk(self, request: str) -> str:
            heard.append(f"update {request}")
            return "updated"

    class Watcher:
        def weights_exchanged(self, by: str) -> None:
            heard.append(by)

    heard: list[str] = []
    watchers = [Watcher(), Watcher()]
    for watcher in watchers:
        assert weight_updates.watch(Manager, watcher) == ["update_weights_from_disk"]
    assert Manager().update_weights_from_disk("r") == "updated"
    assert heard == ["update_weights_from_disk"] * 2 + ["update r"]
    assert weight_updates.watch(type("Other", (), {}), watchers[0]) == []


def test_settings_name_what_is_missing() -> None:
    assert options.read({"socket": "/s", "backend_name": "kvconn"}, NEEDED) == options.Settings("/s")
    for flag, message in (
        (NEEDED.replace("true", "false"), "hicache_storage_pass_prefix_keys"),
        (NEEDED.replace("shm", "default"), '"allocator": "shm"'),
        ("@settings.json", "as text"),
        (None, "as text"),
        ("[]", "no JSON object"),
    ):
        with pytest.raises(ValueError, match=message):
            options.read({"socket": "/s"}, flag)
