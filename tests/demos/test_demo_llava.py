"""The demo LLaVA: its generator of pictures and questions, its split and what the shipped weights see."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from demo_scripts import modules_of
from PIL import Image
from torch.nn.functional import cross_entropy
from transformers import AutoProcessor, LlavaForConditionalGeneration, LlavaProcessor

from quire_plugins.vision.llava import quire_demo_models as demo_models

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "examples" / "demo_models"
(DEMO,) = demo_models()
FOLDER = DEMO.folder()
MODULES = (
    "data.chat.reply_styles",
    "data.images.scenes",
    "data.images.drawing",
    "data.images.picture_questions",
    "models.llava_tokenizer",
    "data.images.picture_batches",
    "evaluation.image_answers",
)


@pytest.fixture(scope="module")
def demo() -> Iterator[Any]:
    with modules_of(*MODULES) as found:
        yield found


@pytest.fixture(scope="module")
def model() -> LlavaForConditionalGeneration:
    return LlavaForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def processor() -> LlavaProcessor:
    return AutoProcessor.from_pretrained(FOLDER)


def scene_of(demo: Any, **things: str) -> Any:
    """Things by the number of their place: p4="red circle" is in the middle."""
    made = (
        demo.scenes.Thing(place=int(place[1:]), shape=noun.split()[1], colour=noun.split()[0])
        for place, noun in things.items()
    )
    return demo.scenes.Scene(tuple(sorted(made)))


def first(stream: Iterator[Any], count: int) -> list[Any]:
    return list(itertools.islice(stream, count))


def asked_of(demo: Any, scene: Any, times: int = 400) -> list[Any]:
    return [
        question for seed in range(times) for question in demo.picture_questions.ask_all(scene, random.Random(seed))
    ]


# --- the generator -----------------------------------------------------------------------------------


def test_equal_seeds_give_equal_pictures_and_questions_and_others_do_not(demo: Any) -> None:
    def said(seed: str) -> list[Any]:
        return [(e.scene, e.question, e.picture.tobytes()) for e in demo.image_answers.held_out(18, seed)]

    assert said("a") == said("a")
    assert not {key for key, *_ in said("a")} & {key for key, *_ in said("b")}


def test_a_thing_is_drawn_in_its_place_and_in_its_colour(demo: Any) -> None:
    noun = {shape: f"red {shape}" for shape in (*demo.scenes.SHAPES, *demo.scenes.DIGITS)}
    for place, shape in itertools.product(range(9), noun):
        picture = demo.drawing.draw(scene_of(demo, **{f"p{place}": noun[shape]}), random.Random(place), 90)
        row, column = divmod(place, 3)
        inside = picture.crop((30 * column, 30 * row, 30 * column + 30, 30 * row + 30))
        ground = picture.getpixel((0, 0))
        colours = {colour for _, colour in inside.getcolors(900)}
        assert any(r > 220 and g < 40 and b < 40 for r, g, b in colours), (place, shape)
        picture.paste(ground, (30 * column, 30 * row, 30 * column + 30, 30 * row + 30))
        assert picture.getcolors() == [(8100, ground)], (place, shape)


def test_no_two_shapes_are_drawn_alike(demo: Any) -> None:
    forms = (*demo.scenes.SHAPES, *demo.scenes.DIGITS)
    drawn = {demo.drawing.draw(scene_of(demo, p4=f"blue {s}"), random.Random(1), 72).tobytes() for s in forms}
    assert len(drawn) == len(forms)


def test_a_question_has_one_answer_however_often_it_is_asked(demo: Any) -> None:
    answers: dict[tuple[Any, str], str] = {}
    for scene in first(demo.scenes.training_scenes(random.Random(0)), 60):
        for question in asked_of(demo, scene, 20):
            assert answers.setdefault((scene, question.text), question.answer) == question.answer
    assert len(answers) > 2000


def test_answers_are_what_the_scene_shows(demo: Any) -> None:
    scene = scene_of(demo, p0="red circle", p2="orange square", p3="blue 7", p8="red circle")
    answers = {question.text: question.answer for question in asked_of(demo, scene)}
    expected = {
        "What colour is the square?": "The square is orange.",
        "What colour is the digit?": "The digit is blue.",
        "Which shape is orange?": "The orange shape is a square.",
        "How many circles are there?": "There are two circles.",
        "How many red things are there?": "There are two red things.",
        "How many things are there?": "There are four things.",
        "How many squares are there?": "There is one square.",
        "How many crosses are there?": "There are no crosses.",
        "Where is the square?": "The square is at the top right.",
        "What is in the middle?": "Nothing is in the middle.",
        "What is at the top right?": "An orange square is at the top right.",
        "What is left of the orange square?": "A red circle is left of the orange square.",
        "What is below the orange square?": "A red circle is below the orange square.",
        "What is right of the digit?": "Nothing is right of the digit.",
        "Which digit is shown?": "The digit is 7.",
        "Is there an orange circle?": "No, there is no orange circle.",
        "Is there a red circle?": "Yes, there is a red circle.",
        "Describe the picture.": "A red circle at the top left, an orange square at the top right, "
        "a blue 7 on the left and a red circle at the bottom right.",
    }
    assert {text: answers[text] for text in expected} == expected
    ambiguous = {
        "What colour is the circle?",
        "Where is the circle?",
        "Where is the red circle?",
        "Which shape is red?",
    }
    assert not ambiguous & set(answers)


def test_training_shows_and_mentions_nothing_that_is_held_out(demo: Any) -> None:
    rng = random.Random("split")
    scenes = first(demo.scenes.training_scenes(rng), 2000)
    crowded = first(demo.scenes.training_scenes(rng, crowded=True), 500)
    assert not any(demo.reply_styles.is_held_out(scene.key) or scene.is_new for scene in scenes + crowded)
    said = {text for s in scenes for q in demo.picture_questions.ask_all(s, rng) for text in (q.text, q.answer)}
    assert not [text for text in said for pair in demo.scenes.NEW_PAIRS if " ".join(pair) in text]


@pytest.mark.parametrize("new", [False, True])
def test_held_out_pictures_are_held_out_and_ask_every_kind_equally_often(demo: Any, new: bool) -> None:
    examples = demo.image_answers.held_out(45, "split", new=new)
    assert all(demo.reply_styles.is_held_out(e.scene.key) and e.scene.is_new == new for e in examples)
    kinds = [e.question.kind for e in examples]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(demo.picture_questions.KINDS, 5)


# --- tokens and batches ------------------------------------------------------------------------------


def test_the_scripts_rebuild_the_shipped_tokenizer(demo: Any, processor: LlavaProcessor, tmp_path: Path) -> None:
    demo.llava_tokenizer.train_tokenizer(3000, processor.tokenizer.model_max_length).save_pretrained(tmp_path)
    rebuilt, shipped = (json.loads((folder / "tokenizer.json").read_text()) for folder in (tmp_path, FOLDER))
    assert rebuilt["model"] == shipped["model"]
    assert rebuilt["added_tokens"] == shipped["added_tokens"]


def test_the_tokenizer_restores_any_text(processor: LlavaProcessor) -> None:
    tokenizer = processor.tokenizer
    for text in ("Where is the red 7?", "Ünïcödé 東京 🙂\n- a", "  two  spaces "):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_template_takes_texts_and_parts_and_puts_pictures_first(processor: LlavaProcessor) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image"}]
    answered = [{"role": "user", "content": parts}, {"role": "assistant", "content": "A circle."}]
    render = processor.apply_chat_template
    assert render(answered[:1], add_generation_prompt=True) == "<|user|><image>What is this?<|assistant|>"
    assert processor.tokenizer.apply_chat_template(answered[:1], tokenize=False) == "<|user|><image>What is this?"
    again = [{"role": "system", "content": "Be brief."}, *answered, {"role": "user", "content": " And? "}]
    assert render(again, add_generation_prompt=True) == (
        "<|system|>Be brief.<|user|><image>What is this?<|assistant|>A circle.<|end|><|user|>And?<|assistant|>"
    )


def test_a_question_in_a_row_is_read_as_if_it_stood_alone(
    demo: Any, model: LlavaForConditionalGeneration, processor: LlavaProcessor
) -> None:
    lessons = demo.picture_batches.Teacher(processor, 256).lessons("alone", 16)
    inner = model.model
    features = inner.get_image_features(lessons.pictures.pixels).pooler_output
    embedded = inner.language_model.embed_tokens(lessons.ids)
    embedded[lessons.ids == model.config.image_token_id] = torch.cat(list(features))
    mask = torch.zeros(lessons.visible.shape).masked_fill(~lessons.visible, -1e30)
    with torch.inference_mode():
        hidden = inner.language_model(
            inputs_embeds=embedded, attention_mask=mask, position_ids=lessons.positions, use_cache=False
        ).last_hidden_state
        logits = model.lm_head(hidden)
        learned = lessons.targets != demo.picture_batches.IGNORE
        checked = 0
        for row, last in enumerate(learned.int().cumsum(1).argmax(1).tolist()):
            seen = lessons.visible[row, 0, last].nonzero()[:, 0]
            ids = lessons.ids[row, seen]
            pixels = lessons.pictures.pixels[row : row + 1] if model.config.image_token_id in ids else None
            alone = model(input_ids=ids[None], pixel_values=pixels).logits[0]
            torch.testing.assert_close(logits[row, seen], alone, atol=1e-4, rtol=1e-4)
            answers = learned[row, seen].nonzero()[:, 0]
            assert cross_entropy(alone[answers - 1], ids[answers]) < 2
            checked += len(answers)
    assert checked > 80


# --- the shipped model -------------------------------------------------------------------------------


def test_the_demo_is_small_and_in_hugging_face_format() -> None:
    assert DEMO.name == "demo-llava"
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    names |= {"chat_template.jinja", "preprocessor_config.json", "processor_config.json"}
    assert {file.name for file in FOLDER.iterdir()} == names
    assert (FOLDER / "model.safetensors").stat().st_size <= 8 << 20
    config = json.loads((FOLDER / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlavaForConditionalGeneration"], "bfloat16")
    assert (config["vision_feature_select_strategy"], config["vision_feature_layer"]) == ("default", -2)


def test_a_picture_of_any_size_is_as_many_tokens_as_the_tower_gives_rows(
    model: LlavaForConditionalGeneration, processor: LlavaProcessor, demo: Any
) -> None:
    picture = demo.image_answers.held_out(1, "size")[0].picture
    for size in ((216, 216), (50, 90), (640, 480)):
        batch = processor(images=picture.resize(size), text="<|user|><image>", return_tensors="pt")
        count = int((batch["input_ids"] == model.config.image_token_id).sum())
        assert count == model.config.image_seq_length == 81
        assert len(model.model.get_image_features(batch["pixel_values"]).pooler_output[0]) == count


@pytest.mark.parametrize("new", [False, True])
def test_transformers_answers_questions_about_held_out_pictures(
    demo: Any, model: LlavaForConditionalGeneration, processor: LlavaProcessor, new: bool
) -> None:
    examples = demo.image_answers.held_out(90, "test", new=new)
    shares = demo.image_answers.score(examples, demo.image_answers.answer(model, processor, examples))
    assert set(shares) == {*demo.picture_questions.KINDS, "overall"}
    assert shares["overall"] >= (0.9 if new else 0.95), shares


def test_it_answers_as_its_page_says(
    demo: Any, model: LlavaForConditionalGeneration, processor: LlavaProcessor
) -> None:
    kinds = "|".join(demo.picture_questions.KINDS)
    rows = re.findall(rf"^\| ({kinds}) \| (.+[?.]) \| (.+) \|$", (SOURCES / "README.md").read_text(), re.MULTILINE)
    assert [kind for kind, *_ in rows] == list(demo.picture_questions.KINDS)
    picture = Image.open(SOURCES / "picture.png")
    for _, text, answer in rows:
        chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
        assert generated(model, processor, chat, images=picture) == answer


def generated(model: LlavaForConditionalGeneration, processor: LlavaProcessor, chat: Any, **pictures: Any) -> str:
    batch = processor(
        text=processor.apply_chat_template(chat, add_generation_prompt=True), return_tensors="pt", **pictures
    )
    output = model.generate(**batch, max_new_tokens=80, do_sample=False)
    return processor.decode(output[0, batch["input_ids"].shape[1] :], skip_special_tokens=True)


def test_it_follows_a_conversation_and_misses_a_picture_that_is_not_there(
    demo: Any, model: LlavaForConditionalGeneration, processor: LlavaProcessor
) -> None:
    picture = demo.drawing.draw(scene_of(demo, p0="red circle", p2="orange square", p3="blue 7"), random.Random(0))
    parts = [{"type": "image"}, {"type": "text", "text": "which digit is shown"}]
    chat: list[dict[str, Any]] = [{"role": "system", "content": "You are a helpful assistant."}]
    chat += [{"role": "user", "content": parts}]
    chat += [{"role": "assistant", "content": generated(model, processor, chat, images=picture)}]
    assert chat[-1]["content"] == "The digit is 7."
    chat += [{"role": "user", "content": "What color is the square?"}]
    assert generated(model, processor, chat, images=picture) == "The square is orange."
    blind = [{"role": "user", "content": "What colour is the square?"}]
    assert generated(model, processor, blind) == demo.picture_questions.NO_PICTURE
