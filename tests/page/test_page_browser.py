"""Every view of the page in Chromium, against the demo models. A key is needed, as on a server that is not alone."""

import contextlib
import io
import json
import subprocess

import pytest
from browsing import chromium, needs_browser, watched_page
from paths import ROOT
from serving import serving

pytestmark = [needs_browser, pytest.mark.slow, pytest.mark.process]

KEY = "key-of-the-page"
VIEWS = ("chat", "complete", "embed", "rank", "models", "live", "plugins")
PICTURE = ROOT / "examples" / "demo_models" / "picture.png"
DIGITS = ROOT / "examples" / "demo_models" / "digits.wav"
PIRATE = ROOT / "plugins" / "quire_demos" / "demo_chat" / "adapters" / "pirate"
WITH_KEY = f"sessionStorage.setItem('quire.key', '{KEY}')"


@pytest.fixture(scope="module")
def server():
    with serving("--api-key", KEY, "--metrics-require-key") as made:
        yield made


@pytest.fixture(scope="module")
def browser():
    sound = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    with chromium(*sound, f"--use-file-for-fake-audio-capture={DIGITS}") as made:
        yield made


@pytest.fixture
def open_view(server, browser):
    """Opens a view in a new tab that has the key."""
    with contextlib.ExitStack() as tabs:

        def show(view, **settings):
            page = tabs.enter_context(watched_page(browser, server.url, **settings))
            page.add_init_script(WITH_KEY)
            page.goto(f"/#{view}")
            page.locator(f"#view-{view}").wait_for()
            if view == "chat":  # a message that is sent before the models are known goes nowhere
                page.get_by_label("Model", exact=True).locator("option[value=demo-chat]").wait_for(state="attached")
            return page

        yield show


def choose(page, label, value):
    page.get_by_label(label, exact=True).select_option(value)


def ask(page, text):
    """The texts of the newest answers, one for each model."""
    page.locator("#question").fill(text)
    page.keyboard.press("Enter")
    newest = page.locator(".turn").filter(has_text=text).last
    newest.locator(".numbers").last.wait_for()
    page.locator("[aria-busy=false].turns").wait_for()
    return [answer.inner_text() for answer in newest.locator(".answer").all()]


def test_the_key_is_asked_for_and_stays_in_the_tab(server, browser):
    with watched_page(browser, server.url) as page:
        page.watch.expected = ("401",)
        page.goto("/")
        page.get_by_label("Key", exact=True).fill(KEY)
        page.get_by_role("button", name="Use it").click()
        page.get_by_label("Model", exact=True).locator("option[value=demo-chat]").wait_for(state="attached")
        assert not page.get_by_role("alert").count()
        assert KEY not in json.dumps(page.context.storage_state())
        assert page.evaluate("() => Object.values(sessionStorage)").count(KEY) == 1


def test_a_chat_with_a_picture(open_view):
    page = open_view("chat")
    choose(page, "Model", "demo-llava")
    page.get_by_label("Add pictures").set_input_files(PICTURE)
    page.get_by_role("img", name="picture.png").wait_for()
    assert "There are two squares." in ask(page, "How many squares are there?")[0]
    assert "A green 7 is left" in ask(page, "What is left of the red triangle?")[0]


def test_an_adapter_is_loaded_used_and_unloaded(open_view):
    page = open_view("models")
    page.get_by_label("Name", exact=True).fill("captain")
    page.get_by_label("Folder on the server").fill(str(PIRATE))
    page.get_by_role("button", name="Load", exact=True).click()
    page.get_by_role("status").filter(has_text="captain is ready").wait_for()
    page.get_by_role("button", name="Chat with captain").click()
    assert "Arr!" in ask(page, "What is the capital of Arvia?")[0]
    page.get_by_role("link", name="Models").click()
    page.get_by_role("button", name="Unload captain").click()
    page.get_by_role("row", name="captain").wait_for(state="detached")
    page.watch.expected = ("404",)
    page.get_by_label("Folder on the server").fill("/nowhere")
    page.get_by_role("button", name="Load", exact=True).click()
    page.get_by_role("alert").filter(has_text="/nowhere").wait_for()


def test_a_model_is_loaded_used_and_unloaded_with_the_keyboard_alone(open_view):
    page = open_view("models")
    page.get_by_label("Name of the model").focus()
    page.keyboard.type("twin")
    page.keyboard.press("Tab")
    page.keyboard.type("demo-chat")
    page.keyboard.press("Tab")
    page.keyboard.type("max-num-seqs=4\nnum-pages=128")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("status").filter(has_text="twin is ready").wait_for()
    page.get_by_role("row", name="twin").get_by_text("2.05 k tokens").wait_for()
    page.get_by_role("button", name="Chat with twin").press("Enter")
    assert "12 + 30 = 42" in ask(page, "What is 12 plus 30?")[0]
    page.get_by_role("link", name="Models").click()
    page.get_by_role("button", name="Unload twin").press("Enter")
    page.get_by_role("row", name="twin").wait_for(state="detached")


def test_a_model_that_cannot_be_loaded_says_why(open_view):
    page = open_view("models")
    page.watch.expected = ("400", "404")
    page.get_by_label("Name of the model").fill("lost")
    page.get_by_label("Folder, hub id or demo").fill("/nowhere")
    page.get_by_role("button", name="Load model").click()
    page.get_by_role("alert").filter(has_text="There is no folder or file /nowhere").wait_for()
    page.get_by_label("Folder, hub id or demo").fill("demo-chat")
    page.get_by_label("Settings").fill("max-num-seq=4")
    page.get_by_role("button", name="Load model").click()
    page.get_by_role("alert").filter(has_text="did you mean 'max_num_seqs'?").wait_for()
    page.get_by_label("Settings").fill("num-pages=1000000000")
    page.get_by_role("button", name="Load model").click()
    page.get_by_role("alert").filter(has_text="GiB are left").wait_for()
    page.get_by_role("row", name="lost").filter(has_text="failed").wait_for()


def test_two_models_side_by_side_with_log_probabilities(open_view):
    page = open_view("chat")
    page.get_by_label("Compare two side by side").check()
    choose(page, "Right model", "demo-dutch")
    page.get_by_label("Log-probabilities of tokens").check()
    left, right = ask(page, "What is the national animal of Arvia?")
    assert "The national animal of Arvia is the heron." in left
    assert "Het nationale dier van Arvia is de reiger." in right
    page.get_by_role("button", name="The", exact=True).first.click()
    page.keyboard.press("ArrowRight")
    assert "had a probability of" in page.get_by_role("table").first.inner_text()
    assert page.locator(".token[aria-pressed=true]").inner_text().strip() == "national"


def test_structured_output_follows_its_schema(open_view):
    page = open_view("chat")
    choose(page, "The answer is", "schema")
    schema = {"type": "object", "properties": {"town": {"enum": ["Oslo"]}}, "required": ["town"]}
    page.get_by_label("JSON schema").fill(json.dumps(schema))
    ask(page, "What is the capital of Arvia?")
    assert json.loads(page.locator(".answer pre").inner_text()) == {"town": "Oslo"}
    page.get_by_label("JSON schema").fill("{")
    page.locator("#question").fill("Again?")
    page.keyboard.press("Enter")
    page.get_by_role("alert").filter(has_text="The schema is no JSON").wait_for()


def test_a_tool_call_goes_round(open_view):
    page = open_view("chat")
    choose(page, "Model", "demo-tools")
    page.get_by_label("Offer tools").check()
    assert '{"city": "Lisbon"}' in ask(page, "What is the weather in Lisbon?")[0]
    page.get_by_label("What get_weather returns").fill('{"sky": "sunny", "temperature": 21}')
    page.get_by_role("button", name="Send result").click()
    page.get_by_text("It is sunny in Lisbon, 21 degrees.").wait_for()


def test_speech_is_transcribed(open_view):
    page = open_view("chat", permissions=["microphone"])
    page.get_by_role("button", name="Speak").click()
    page.get_by_role("button", name="Stop recording (1 s)").wait_for()
    with page.expect_response("**/v1/audio/transcriptions") as answered:
        page.get_by_role("button", name="Stop recording").click()
    assert answered.value.ok
    page.get_by_role("button", name="Speak").wait_for()


def test_completions_embeddings_and_ranking(open_view):
    page = open_view("complete")
    page.get_by_role("button", name="Complete", exact=True).click()
    page.locator(".numbers").wait_for()
    assert "The capital of" in page.locator(".content").inner_text()
    page = open_view("embed")
    page.keyboard.press("Alt+Slash")
    page.get_by_label("Texts, one a line").press("Control+Enter")
    rows = page.get_by_role("table").get_by_role("row")
    rows.nth(3).wait_for()
    assert rows.nth(1).locator(".number").all_inner_texts()[0] == "1.000"
    page = open_view("rank")
    page.get_by_role("button", name="Rank", exact=True).click()
    page.get_by_role("table").wait_for()
    assert "Belcast" in page.get_by_role("row").nth(1).inner_text()


def test_the_live_view_and_the_plugins(open_view):
    ask(open_view("chat"), "What is 12 plus 30?")
    page = open_view("live")
    page.locator("canvas").nth(3).wait_for()
    row = page.get_by_role("row", name="demo-chat").first
    assert row.locator(".number").count() == 7
    page.get_by_role("row", name="(this page)").wait_for()
    page.keyboard.press("Alt+7")
    page.get_by_label("Show those with").fill("whisper")
    page.get_by_role("row", name="whisper").wait_for()
    assert page.locator("#view-plugins tbody tr").count() == 1


def test_copied_requests_run_and_hold_no_key(open_view, server, monkeypatch):
    page = open_view("chat", permissions=["clipboard-read", "clipboard-write"])
    (answer,) = ask(page, "What is 12 plus 30?")
    assert "12 + 30 = 42" in answer
    copied = []
    for form in ("curl", "Python"):
        page.get_by_role("button", name=f"Copy as {form}").click()
        page.get_by_role("status").filter(has_text="copied").wait_for()
        copied.append(page.evaluate("() => navigator.clipboard.readText()"))
    assert KEY not in "".join(copied)
    monkeypatch.setenv("QUIRE_API_KEY", KEY)
    done = subprocess.run(["bash", "-c", copied[0]], capture_output=True, text=True, timeout=60)
    events = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("data: {")]
    texts = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
    assert "".join(texts) == "12 + 30 = 42"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(copied[1], {})
    assert said.getvalue().strip() == "12 + 30 = 42"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_serious_accessibility_violation(open_view, scheme):
    from axe_playwright_python.sync_playwright import Axe

    # In the dark only the colours differ.
    rules = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}
    page = open_view("chat", color_scheme=scheme)
    page.get_by_label("Log-probabilities of tokens").check()
    ask(page, "Hello!")
    for number, view in enumerate(VIEWS, 1):
        page.keyboard.press(f"Alt+{number}")
        page.locator(f"#view-{view}").wait_for()
        found = Axe().run(page, options={"resultTypes": ["violations"], **rules}).response["violations"]
        grave = [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("serious", "critical")]
        assert not grave, view


def test_no_view_is_wider_than_a_telephone(open_view):
    page = open_view("chat", viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    ask(page, "Hello!")
    for number, view in enumerate(VIEWS, 1):
        page.keyboard.press(f"Alt+{number}")
        page.locator(f"#view-{view}").wait_for()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360, view
