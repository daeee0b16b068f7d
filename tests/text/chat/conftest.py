"""The renderer of chat templates."""

from collections.abc import Iterator

import pytest

from quire.text.chat.template_pool import TemplatePool


@pytest.fixture(scope="module")
def renderer() -> Iterator[TemplatePool]:
    made = TemplatePool(timeout_s=20)
    yield made
    made.close()
