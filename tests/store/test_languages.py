"""Search by words in other languages, and English as it always was."""

import pytest

from forage.data.records import Document
from forage.store.bm25 import Tokenizer
from forage.store.document_store import DocumentStore
from forage.store.options import StoreOptions

RUSSIAN = {
    "Подагра": "При подагре болит большой палец ноги. Причина в мочевой кислоте.",
    "Астма": "Дыхательные пути сужаются. Человеку трудно дышать.",
    "Мигрень": "Головная боль с одной стороны. Помогает тёмная комната.",
    "Анемия": "Не хватает железа. Кожа бледная.",
}
CHINESE = {
    "痛风": "痛风是尿酸过多引起的。大脚趾在夜里会很痛。",
    "哮喘": "气道变窄，病人呼吸困难。",
    "偏头痛": "头的一侧疼痛，安静的暗室有帮助。",
    "贫血": "身体缺铁，皮肤苍白。",
}
THAI = {
    "เกาต์": "โรคเกาต์ทำให้ปวดนิ้วหัวแม่เท้าตอนกลางคืน",
    "หอบหืด": "หลอดลมตีบ ทำให้หายใจลำบาก",
    "ไมเกรน": "ปวดศีรษะข้างเดียว",
}
GERMAN = {
    "Gicht": "Kristalle in den Füßen, vor allem in der großen Zehe.",
    "Asthma": "Die Atemwege verengen sich, und das Atmen fällt schwer.",
    "Migräne": "Kopfschmerzen auf einer Seite. Ein dunkles Zimmer hilft.",
    "Blutarmut": "Dem Körper fehlt Eisen, die Haut ist blass.",
}


def first_titles(folder, texts, language, *queries):
    documents = [Document(str(n), title, text) for n, (title, text) in enumerate(texts.items())]
    store = DocumentStore.build(folder / language, documents, StoreOptions("none", language=language))
    assert DocumentStore.open(folder / language).options.language == language
    return [hits[0].title if hits else "" for hits in store.search(queries, 1, "sparse")]


@pytest.mark.parametrize(
    ("language", "texts", "queries"),
    [
        ("russian", RUSSIAN, {"от подагры": "Подагра", "человек дышит с трудом": "Астма", "мигрени": "Мигрень"}),
        ("other", CHINESE, {"脚趾痛是什么病": "痛风", "呼吸很困难": "哮喘", "皮肤为什么苍白": "贫血"}),
        ("other", THAI, {"ปวดนิ้วเท้า": "เกาต์", "หายใจไม่สะดวก": "หอบหืด"}),
        ("german", GERMAN, {"GROSSE ZEHEN": "Gicht", "dunkle Zimmer": "Migräne", "Körpern": "Blutarmut"}),
    ],
)
def test_a_language_finds_what_english_does_not(tmp_path, language, texts, queries):
    assert first_titles(tmp_path, texts, language, *queries) == list(queries.values())
    assert first_titles(tmp_path, texts, "english", *queries) != list(queries.values())


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("german", "Die Häuser der FÜSSE", ["die", "haus", "der", "fuss"]),
        ("russian", "подагра подагры ПОДАГРЕ", ["подагр"] * 3),
        ("other", "痛风的病因。铁", ["痛风", "风的", "的病", "病因", "铁"]),
    ],
)
def test_words_by_hand(language, text, words):
    assert Tokenizer(language=language)(text) == words


def test_chunks_of_a_script_without_spaces_are_not_endless(tmp_path):
    document = Document("d", "痛风", "痛风很痛。" * 100)
    options = StoreOptions("none", chunk_tokens=50, chunk_overlap=0, language="other")
    store = DocumentStore.build(tmp_path / "store", [document], options)
    assert len(store.chunks) == 10
    assert {len(chunk.text) for chunk in store.chunks} == {50}
