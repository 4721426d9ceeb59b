"""The arithmetic of permits."""

from quire.client.permits import FIRST_WINDOW_MESSAGES, Permits


def test_the_first_window_is_small_and_then_sizes_decide() -> None:
    permits = Permits(5_000, 1_000_000)
    assert permits.due() == FIRST_WINDOW_MESSAGES
    assert permits.due() == 0
    permits.take(1, 1_000)
    assert permits.due() == 1_000 - (FIRST_WINDOW_MESSAGES - 1)
    permits.take(499, 499_000)
    assert permits.due() == 0
    permits.take(1, 1_000)
    assert permits.due() == 500


def test_a_large_message_leaves_one_permit() -> None:
    permits = Permits(5_000, 1_000)
    permits.due()
    permits.take(FIRST_WINDOW_MESSAGES, FIRST_WINDOW_MESSAGES * 5_000)
    assert permits.due() == 1


def test_more_may_come_than_was_granted() -> None:
    permits = Permits(10, 1_000)
    assert permits.due() == 10
    permits.take(1_000, 1_000)
    assert permits.due() == 1_000


def test_a_new_attachment_begins_with_a_whole_window() -> None:
    permits = Permits(10, 1_000)
    permits.due()
    permits.take(8, 80)
    permits.begin()
    assert permits.due() == 10
